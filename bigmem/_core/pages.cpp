#include "pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace bigmem {
namespace {

void* map_aligned(std::size_t nbytes, std::size_t alignment, int protection) {
  // The kernel aligns to 4 KiB: map more and give the ends back.
  const std::size_t padding = alignment > 4096 ? alignment : 0;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(nullptr, nbytes + padding, protection, flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (!padding) return mapped;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (begin + alignment - 1) & ~(alignment - 1);
  if (aligned > begin) munmap(mapped, aligned - begin);
  const std::size_t tail = begin + padding - aligned;
  if (tail) munmap(reinterpret_cast<void*>(aligned + nbytes), tail);
  return reinterpret_cast<void*>(aligned);
}

void set_page_size(void* address, std::size_t nbytes, PageSize page) {
  // Refusal is no error: a kernel without transparent huge pages serves 4 KiB ones.
  const int saved = errno;
  if (page == PageSize::huge) madvise(address, nbytes, MADV_HUGEPAGE);
  if (page == PageSize::small) madvise(address, nbytes, MADV_NOHUGEPAGE);
  errno = saved;
}

void* reserve(void*, std::size_t nbytes, std::size_t alignment, PageSize page) {
  void* address = map_aligned(nbytes, alignment, PROT_READ | PROT_WRITE);
  if (address) set_page_size(address, nbytes, page);
  return address;
}

int commit(void*, void*, std::size_t, PageSize) { return 0; }

int decommit(void*, void* address, std::size_t nbytes, Advice advice) {
  const int flag = advice == Advice::free ? MADV_FREE : MADV_DONTNEED;
  return madvise(address, nbytes, flag) == 0 ? 0 : errno;
}

int unreserve(void*, void* address, std::size_t nbytes) {
  return munmap(address, nbytes) == 0 ? 0 : errno;
}

void* strict_reserve(void*, std::size_t nbytes, std::size_t alignment, PageSize) {
  return map_aligned(nbytes, alignment, PROT_NONE);
}

int strict_commit(void*, void* address, std::size_t nbytes, PageSize page) {
  if (mprotect(address, nbytes, PROT_READ | PROT_WRITE) != 0) return errno;
  set_page_size(address, nbytes, page);
  return 0;
}

int strict_decommit(void*, void* address, std::size_t nbytes, Advice advice) {
  if (advice == Advice::free) return madvise(address, nbytes, MADV_FREE) == 0 ? 0 : errno;
  // Taking the write permission away would not lower the commit charge; a fresh mapping does.
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(address, nbytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? errno : 0;
}

bool accounting_is_strict() {
  const int file = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char mode = '0';
  const bool known = read(file, &mode, 1) == 1;
  close(file);
  return known && mode == '2';
}

constexpr PagesTable anonymous{nullptr, reserve, commit, decommit, unreserve, true, false};
constexpr PagesTable strict{nullptr,   strict_reserve, strict_commit, strict_decommit,
                            unreserve, true,           true};

}  // namespace

const PagesTable& anonymous_pages() { return anonymous; }

const PagesTable& strict_pages() { return strict; }

const PagesTable& default_pages() {
  static const bool is_strict = accounting_is_strict();
  return is_strict ? strict : anonymous;
}

}  // namespace bigmem
