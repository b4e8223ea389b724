#pragma once

#include <cstddef>

namespace bigmem {

// How a range is to be mapped: `small` insists on 4 KiB pages, `huge` asks for 2 MiB ones, `plain`
// leaves the choice to the system.
enum class PageSize : int { plain, small, huge };

enum class Advice : int { dontneed, free };

// What the core needs of memory, as plain C functions so that native threads may call them: one
// table for each kind of pages. Functions that return int return 0 or an errno.
struct PagesTable {
  void* context;
  // Takes an address range of nbytes at the alignment; null with errno set when refused.
  void* (*reserve)(void* context, std::size_t nbytes, std::size_t alignment, PageSize page);
  // Makes a clean range usable.
  int (*commit)(void* context, void* address, std::size_t nbytes, PageSize page);
  // Gives the memory of a range back, the address range stays. After Advice::free the contents are
  // stale or zero; after Advice::dontneed they are zero if zero_after_decommit says so.
  int (*decommit)(void* context, void* address, std::size_t nbytes, Advice advice);
  // Gives the address range back, with whatever memory it holds.
  int (*unreserve)(void* context, void* address, std::size_t nbytes);
  bool zero_after_decommit;
  bool needs_commit;
};

// Private anonymous memory that costs nothing until it is touched.
const PagesTable& anonymous_pages();

// The same where the system counts every writable page against a limit when it is mapped
// (vm.overcommit_memory=2): ranges are inaccessible until committed.
const PagesTable& strict_pages();

// strict_pages under strict accounting, else anonymous_pages.
const PagesTable& default_pages();

}  // namespace bigmem
