#pragma once

#include <cstddef>

namespace bigmem {

// How a range is to be mapped: `small` insists on 4 KiB pages, `huge` asks for 2 MiB ones, `plain`
// leaves the choice to the system.
enum class PageSize : int { plain, small, huge };

enum class Advice : int { dontneed, free };

// How a decommit went. It fell back where the kernel refused the advice and the memory went back
// by other means, which take longer.
struct Decommitted {
  int error = 0;
  bool fell_back = false;
};

// What the core needs of memory, as plain C functions so that native threads may call them: one
// table for each kind of pages. Addresses and sizes are multiples of 4 KiB. Functions that return
// int return 0 or an errno.
struct PagesTable {
  void* context;
  // Takes an address range of nbytes at the alignment; null with errno set when refused.
  void* (*reserve)(void* context, std::size_t nbytes, std::size_t alignment, PageSize page);
  // Makes a range usable. Parts of it, or all, may be usable already: they stay as they are.
  int (*commit)(void* context, void* address, std::size_t nbytes, PageSize page);
  // Gives the memory of a range back, the address range stays. After Advice::free the contents are
  // stale or zero; after Advice::dontneed they are zero if zero_after_decommit says so.
  Decommitted (*decommit)(void* context, void* address, std::size_t nbytes, PageSize page,
                          Advice advice);
  // Makes a range resident that no thread uses; the contents stay. Takes as long as the range is
  // large: callers go in chunks.
  int (*populate)(void* context, void* address, std::size_t nbytes);
  // Overwrites with zeros what is resident of a range that no thread uses, and drops what is not,
  // copies in swap included. Afterwards every byte reads as zero; nothing becomes resident by it.
  int (*wipe)(void* context, void* address, std::size_t nbytes);
  // Whether children that fork from now on find zeros in the range instead of its contents, and
  // share none of its pages.
  int (*set_wiped_on_fork)(void* context, void* address, std::size_t nbytes, bool wiped);
  // Gives the address range back, with whatever memory it holds.
  int (*unreserve)(void* context, void* address, std::size_t nbytes);
  bool zero_after_decommit;
  bool needs_commit;
  // Moves a committed range with its memory to the beginning of one of `larger` bytes, committed
  // too, and gives the old address range back. The new address is the same modulo `alignment`, and
  // may be the old one. Null with errno set, and nothing has changed, when refused; as it is where
  // the range consists of several mappings. The whole function is null where pages cannot move.
  void* (*remap)(void* context, void* address, std::size_t nbytes, std::size_t larger,
                 std::size_t alignment) = nullptr;
  // What is committed and decommitted, 4 KiB or 2 MiB; addresses and sizes are multiples of it
  // then. An arena asks to commit what it has warm as well.
  std::size_t granularity = 4096;
  // Other processors go by the addresses of these very pages: they are resident from commit to
  // decommit, whatever the system counts them as, and never reach a child of fork.
  bool pinned = false;
};

// The NUMA node that memory is to come from: whichever the thread's policy says; the one that runs
// the thread that touches it first; all of them in turn; or one by its number.
enum class Numa : int { unset, local, interleave, node };

struct AnonymousOptions {
  Numa numa = Numa::unset;
  int node = 0;  // with Numa::node
  // Neither in a core dump nor in a forked child.
  bool secret = false;
};

constexpr int most_nodes = 1024;

// Private anonymous memory that costs nothing until it is touched.
PagesTable anonymous_pages(const AnonymousOptions& options);

// The same where the system counts every writable page against a limit when it is mapped
// (vm.overcommit_memory=2): ranges are inaccessible until committed.
PagesTable strict_pages(const AnonymousOptions& options);

// strict_pages under strict accounting, else anonymous_pages.
PagesTable default_pages(const AnonymousOptions& options);

// The errno with which the kernel refuses to place memory as the options say, or 0. Pages that it
// refuses to place are used where they come.
int numa_refusal(const AnonymousOptions& options);

// Whether memory that asks for 2 MiB pages gets any now, in this process. Touches one of them, or a
// few of 4 KiB.
bool huge_pages_work();

}  // namespace bigmem
