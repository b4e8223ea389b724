#include "pages.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>

namespace bigmem {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t huge_bytes = std::size_t{2} << 20;
constexpr int mapping_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
// Linux 5.14; not in every C library that this may be compiled with.
constexpr int madv_populate_write = 23;

const AnonymousOptions& options_of(void* context) {
  return *static_cast<const AnonymousOptions*>(context);
}

// Tables outlive whoever asked for them, and there are few kinds: each is kept for good. A list
// without a lock, since a child of fork might find one held.
void* context_of(const AnonymousOptions& options) {
  struct Kept {
    AnonymousOptions options;
    Kept* next;
  };
  static std::atomic<Kept*> first{nullptr};
  Kept* head = first.load();
  Kept* added = nullptr;
  for (;;) {
    for (Kept* kept = head; kept; kept = kept->next) {
      const AnonymousOptions& known = kept->options;
      if (known.numa == options.numa && known.node == options.node &&
          known.secret == options.secret) {
        delete added;
        return &kept->options;
      }
    }
    if (!added) added = new Kept{options, nullptr};
    added->next = head;
    if (first.compare_exchange_weak(head, added)) return &added->options;
  }
}

// At an address that is `offset` modulo the alignment.
void* map_inaccessible(std::size_t nbytes, std::size_t alignment, std::uintptr_t offset = 0) {
  // The kernel aligns to 4 KiB: map more and give the ends back.
  const std::size_t padding = alignment > page_bytes ? alignment : 0;
  void* mapped = mmap(nullptr, nbytes + padding, PROT_NONE, mapping_flags, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (!padding) return mapped;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = begin + ((offset - begin) & (alignment - 1));
  if (aligned > begin) munmap(mapped, aligned - begin);
  const std::size_t tail = begin + padding - aligned;
  if (tail) munmap(reinterpret_cast<void*>(aligned + nbytes), tail);
  return reinterpret_cast<void*>(aligned);
}

// The system calls by themselves: they are all that is needed of libnuma.
int place(void* address, std::size_t nbytes, const AnonymousOptions& options) {
  constexpr std::size_t word = sizeof(unsigned long) * CHAR_BIT;
  unsigned long nodes[most_nodes / word] = {};
  constexpr unsigned long bits = most_nodes + 1;  // the kernel takes one off
  int mode = MPOL_DEFAULT;
  switch (options.numa) {
    case Numa::unset:
      return 0;
    case Numa::local:
      mode = MPOL_LOCAL;
      break;
    case Numa::interleave:
      mode = MPOL_INTERLEAVE;
      if (syscall(SYS_get_mempolicy, nullptr, nodes, bits, nullptr, MPOL_F_MEMS_ALLOWED) != 0)
        return errno;
      break;
    case Numa::node:
      // Not MPOL_BIND: once the node is full, that gets the process killed beside gigabytes of free
      // memory on the others.
      mode = MPOL_PREFERRED;
      nodes[options.node / word] = 1UL << options.node % word;
      break;
  }
  return syscall(SYS_mbind, address, nbytes, mode, nodes, bits, 0) == 0 ? 0 : errno;
}

// Makes an inaccessible range ready for use, as the options say.
int open_up(void* address, std::size_t nbytes, PageSize page, const AnonymousOptions& options) {
  // Under mlockall(MCL_FUTURE) a new mapping is locked, and the kernel would populate all of it
  // here, once it can be written.
  munlock(address, nbytes);
  if (mprotect(address, nbytes, PROT_READ | PROT_WRITE) != 0) return errno;
  // Refusal is no error: a kernel without transparent huge pages serves 4 KiB ones, one without
  // NUMA has a single node.
  if (page == PageSize::huge) madvise(address, nbytes, MADV_HUGEPAGE);
  if (page == PageSize::small) madvise(address, nbytes, MADV_NOHUGEPAGE);
  place(address, nbytes, options);
  // Here it is one: who asks for secrecy must not get memory without.
  if (options.secret && (madvise(address, nbytes, MADV_DONTDUMP) != 0 ||
                         madvise(address, nbytes, MADV_WIPEONFORK) != 0))
    return errno;
  return 0;
}

void* map_open(std::size_t nbytes, std::size_t alignment, PageSize page,
               const AnonymousOptions& options) {
  void* address = map_inaccessible(nbytes, alignment);
  if (!address) return nullptr;
  const int error = open_up(address, nbytes, page, options);
  if (!error) return address;
  munmap(address, nbytes);
  errno = error;
  return nullptr;
}

// Advice that takes pages away is refused where the user locked them.
Decommitted advise(void* address, std::size_t nbytes, int advice) {
  if (madvise(address, nbytes, advice) == 0) return {};
  munlock(address, nbytes);
  return {madvise(address, nbytes, advice) == 0 ? 0 : errno, true};
}

// Puts untouched memory of the same kind in the place of a range. It is made elsewhere, so that a
// refusal leaves the range as it was.
int replace(void* address, std::size_t nbytes, PageSize page, const AnonymousOptions& options) {
  void* fresh = map_open(nbytes, page_bytes, page, options);
  if (!fresh) return errno;
  if (mremap(fresh, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) != MAP_FAILED) return 0;
  const int error = errno;
  munmap(fresh, nbytes);
  return error;
}

void* reserve(void* context, std::size_t nbytes, std::size_t alignment, PageSize page) {
  return map_open(nbytes, alignment, page, options_of(context));
}

int commit(void*, void*, std::size_t, PageSize) { return 0; }

Decommitted decommit(void* context, void* address, std::size_t nbytes, PageSize page,
                     Advice advice) {
  if (advice == Advice::free) return advise(address, nbytes, MADV_FREE);
  const Decommitted advised = advise(address, nbytes, MADV_DONTNEED);
  if (!advised.error) return advised;
  return {replace(address, nbytes, page, options_of(context)), true};
}

int populate(void*, void* address, std::size_t nbytes) {
  if (madvise(address, nbytes, madv_populate_write) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // An older kernel. Writing back what was read changes nothing only because nobody else writes.
  auto* bytes = static_cast<volatile char*>(address);
  for (std::size_t at = 0; at < nbytes; at += page_bytes) bytes[at] = bytes[at];
  return 0;
}

bool is_zero(const char* page) {
  return !page[0] && std::memcmp(page, page + 1, page_bytes - 1) == 0;
}

int wipe(void*, void* address, std::size_t nbytes) {
  // Blank pages are left alone: one that was only read is the kernel's page of zeros, and writing
  // to that would take memory. Others show what they are within a few bytes.
  enum State : unsigned char { absent, blank, dirty };
  constexpr std::size_t step = 4096;
  unsigned char state[step];
  auto* begin = static_cast<char*>(address);
  for (std::size_t left = nbytes / page_bytes; left;) {
    const std::size_t pages = std::min(step, left);
    if (mincore(begin, pages * page_bytes, state) != 0) return errno;
    for (std::size_t i = 0; i < pages; ++i)
      state[i] = !(state[i] & 1) ? absent : is_zero(begin + i * page_bytes) ? blank : dirty;
    for (std::size_t first = 0, last; first < pages; first = last) {
      last = std::find_if(state + first, state + pages,
                          [&](unsigned char other) { return other != state[first]; }) -
             state;
      char* const run = begin + first * page_bytes;
      const std::size_t size = (last - first) * page_bytes;
      if (state[first] == dirty) std::memset(run, 0, size);
      if (state[first] == absent)
        if (const int error = advise(run, size, MADV_DONTNEED).error) return error;
    }
    begin += pages * page_bytes;
    left -= pages;
  }
  return 0;
}

int set_wiped_on_fork(void* context, void* address, std::size_t nbytes, bool wiped) {
  if (options_of(context).secret) return 0;  // all of it is, always
  return madvise(address, nbytes, wiped ? MADV_WIPEONFORK : MADV_KEEPONFORK) == 0 ? 0 : errno;
}

int unreserve(void*, void* address, std::size_t nbytes) {
  return munmap(address, nbytes) == 0 ? 0 : errno;
}

void* remap(void*, void* address, std::size_t nbytes, std::size_t larger, std::size_t alignment) {
  // What the user locked would be populated as far as it grows. A copy would not be locked either.
  munlock(address, nbytes);
  // Where it is, if what follows happens to be free. This also finds out, at no risk, whether there
  // is more than one mapping.
  if (mremap(address, nbytes, larger, 0) != MAP_FAILED) return address;
  if (errno != ENOMEM) return nullptr;
  // Whole page tables change hands, and huge pages stay whole, only between addresses that are the
  // same modulo 2 MiB: 1 GiB moves in 0.2 to 0.4 ms then, and takes 3 to 16 otherwise.
  const auto offset = reinterpret_cast<std::uintptr_t>(address);
  void* place = map_inaccessible(larger, std::max(alignment, huge_bytes), offset);
  if (!place) return nullptr;
  void* moved = mremap(address, nbytes, larger, MREMAP_MAYMOVE | MREMAP_FIXED, place);
  // Refused now, for want of page tables or mappings, the kernel may or may not have unmapped the
  // place, and somebody else may be there: that much address range is given up.
  return moved == MAP_FAILED ? nullptr : moved;
}

void* strict_reserve(void*, std::size_t nbytes, std::size_t alignment, PageSize) {
  return map_inaccessible(nbytes, alignment);
}

int strict_commit(void* context, void* address, std::size_t nbytes, PageSize page) {
  return open_up(address, nbytes, page, options_of(context));
}

Decommitted strict_decommit(void*, void* address, std::size_t nbytes, PageSize, Advice advice) {
  if (advice == Advice::free) return advise(address, nbytes, MADV_FREE);
  // Taking the write permission away would not lower the commit charge; a fresh mapping does.
  void* fresh = mmap(address, nbytes, PROT_NONE, mapping_flags | MAP_FIXED, -1, 0);
  return {fresh == MAP_FAILED ? errno : 0, false};
}

bool accounting_is_strict() {
  const int file = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char mode = '0';
  const bool known = read(file, &mode, 1) == 1;
  close(file);
  return known && mode == '2';
}

long minor_faults() {
  rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_minflt : 0;
}

}  // namespace

PagesTable anonymous_pages(const AnonymousOptions& options) {
  return {context_of(options), reserve,   commit, decommit, populate, wipe,
          set_wiped_on_fork,   unreserve, true,   false,    remap};
}

PagesTable strict_pages(const AnonymousOptions& options) {
  return {context_of(options),
          strict_reserve,
          strict_commit,
          strict_decommit,
          populate,
          wipe,
          set_wiped_on_fork,
          unreserve,
          true,
          true,
          remap};
}

PagesTable default_pages(const AnonymousOptions& options) {
  static const bool is_strict = accounting_is_strict();
  return is_strict ? strict_pages(options) : anonymous_pages(options);
}

int numa_refusal(const AnonymousOptions& options) {
  void* page = map_inaccessible(page_bytes, page_bytes);
  if (!page) return errno;
  const int refusal = place(page, page_bytes, options);
  munmap(page, page_bytes);
  return refusal;
}

bool huge_pages_work() {
  constexpr std::size_t tries = 4;  // fragmentation may refuse a few
  void* address = map_open(tries * huge_bytes, huge_bytes, PageSize::huge, {});
  if (!address) return false;
  bool came = false;
  for (std::size_t i = 0; i < tries && !came; ++i) {
    volatile char* unit = static_cast<char*>(address) + i * huge_bytes;
    // Both ends, since there are pages of sizes in between.
    const long before = minor_faults();
    unit[0] = 1;
    unit[huge_bytes - 1] = 1;
    came = minor_faults() - before == 1;
  }
  munmap(address, tries * huge_bytes);
  return came;
}

}  // namespace bigmem
