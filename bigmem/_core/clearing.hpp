#pragma once

#include <cstddef>

#include "pages.hpp"

namespace bigmem {

// Zeroes a range that is in use, and begins on a 2 MiB border if `page` is huge, by whichever way
// is cheaper until every byte of it has been written once more: overwriting it, or giving its huge
// pages back for fresh ones. Of small pages that is overwriting, by a factor of three and more; of
// huge ones it depends on the machine. The first large range is cleared half each way to find out.
void clear(const PagesTable& pages, void* address, std::size_t nbytes, PageSize page) noexcept;

// What has been found out: -1 nothing yet, 0 overwriting is cheaper, 1 fresh huge pages are.
int clearing_verdict() noexcept;
// For tests.
void set_clearing_verdict(int verdict) noexcept;

}  // namespace bigmem
