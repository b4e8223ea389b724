#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace bigmem {

// What is known of the addresses that were handed out, with a filter in front for everyone else's.
//
// Most addresses that are asked about are not in the table: those of small arrays, which must pay
// next to nothing. The filter counts the addresses of the table by hash; where it counts none there
// is none. It may be asked from any thread; all else needs the GIL.
template <typename Entry>
class AddressTable {
 public:
  // False for certain, true for perhaps. Whoever was handed an address sees it counted.
  bool may_hold(const void* address) const noexcept {
    return counter(address).load(std::memory_order_relaxed) != 0;
  }

  // The entry of an address; null if there is none.
  Entry* find(const void* address) {
    const auto found = entries_.find(address);
    return found == entries_.end() ? nullptr : &found->second;
  }

  // May throw std::bad_alloc. The address must not be in the table.
  Entry& insert(const void* address, Entry entry) {
    Entry& stored = entries_.emplace(address, std::move(entry)).first->second;
    counter(address).fetch_add(1, std::memory_order_relaxed);
    return stored;
  }

  Entry take(const void* address) {
    auto node = entries_.extract(address);
    counter(address).fetch_sub(1, std::memory_order_relaxed);
    return std::move(node.mapped());
  }

  // Files an entry under another address; needs no memory.
  Entry& move(const void* from, const void* to) {
    auto node = entries_.extract(from);
    node.key() = to;
    counter(to).fetch_add(1, std::memory_order_relaxed);
    counter(from).fetch_sub(1, std::memory_order_relaxed);
    return entries_.insert(std::move(node)).position->second;
  }

  // Every address and its entry, in no order.
  template <typename Visit>
  void for_each(Visit visit) {
    for (auto& [address, entry] : entries_) visit(address, entry);
  }

 private:
  static constexpr unsigned bits = 14;
  using Counter = std::atomic<std::uint32_t>;

  // Fibonacci hashing: the high bits of the product depend on all bits of the address.
  static std::size_t slot(const void* address) noexcept {
    const std::uint64_t golden = 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(address) * golden) >>
                                    (64 - bits));
  }
  Counter& counter(const void* address) noexcept { return counters_[slot(address)]; }
  const Counter& counter(const void* address) const noexcept { return counters_[slot(address)]; }

  std::array<Counter, std::size_t{1} << bits> counters_{};
  std::unordered_map<const void*, Entry> entries_;
};

}  // namespace bigmem
