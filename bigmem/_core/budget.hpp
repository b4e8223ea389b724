#pragma once

#include <atomic>
#include <cstddef>

namespace bigmem {

// A byte limit that several sources share. Charged before memory may become resident, credited
// after it has gone back, so that the sum never passes the limit.
class Budget {
 public:
  explicit Budget(std::size_t limit) : limit_(limit) {}

  bool charge(std::size_t nbytes) {
    std::size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (nbytes > limit_ || used > limit_ - nbytes) return false;
    } while (!used_.compare_exchange_weak(used, used + nbytes, std::memory_order_relaxed));
    return true;
  }
  void credit(std::size_t nbytes) { used_.fetch_sub(nbytes, std::memory_order_relaxed); }
  std::size_t limit() const { return limit_; }
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> used_{0};
};

}  // namespace bigmem
