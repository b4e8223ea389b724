#include "clearing.hpp"

#include <atomic>
#include <cstring>

#include "clock.hpp"

namespace bigmem {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
// Cleared each way to find out: more than the caches hold of it, as a large range is.
constexpr std::size_t sample = std::size_t{32} << 20;

constexpr int unknown = -1, finding_out = -2;
std::atomic<int> verdict{unknown};

// False if the system refused; the range is as it was then.
bool replace(const PagesTable& pages, char* begin, std::size_t nbytes) {
  return pages.decommit(pages.context, begin, nbytes, PageSize::huge, Advice::dontneed).error == 0;
}

// Clears two samples; the second pass over each stands for the write that is to come.
int find_out(const PagesTable& pages, char* begin) {
  const double start = seconds_now();
  std::memset(begin, 0, sample);
  std::memset(begin, 0, sample);
  const double overwritten = seconds_now();
  const bool replaced = replace(pages, begin + sample, sample);
  std::memset(begin + sample, 0, sample);
  return replaced && seconds_now() - overwritten < overwritten - start;
}

}  // namespace

void clear(const PagesTable& pages, void* address, std::size_t nbytes, PageSize page) noexcept {
  auto* begin = static_cast<char*>(address);
  // Where memory must be committed anew, giving it back makes it unusable; a processor that has
  // pinned memory would go on with the old pages.
  const bool replaceable = !pages.needs_commit && !pages.pinned;
  if (page == PageSize::huge && pages.zero_after_decommit && replaceable) {
    int found = verdict.load();
    if (found == unknown && nbytes >= 2 * sample &&
        verdict.compare_exchange_strong(found, finding_out)) {
      found = find_out(pages, begin);
      verdict.store(found);
      begin += 2 * sample;
      nbytes -= 2 * sample;
    }
    const std::size_t whole = nbytes / huge_page * huge_page;
    if (found == 1 && whole && replace(pages, begin, whole)) {
      begin += whole;
      nbytes -= whole;
    }
  }
  std::memset(begin, 0, nbytes);
}

int clearing_verdict() noexcept { return verdict.load(); }

void set_clearing_verdict(int found) noexcept { verdict.store(found); }

}  // namespace bigmem
