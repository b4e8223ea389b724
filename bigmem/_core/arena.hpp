#pragma once

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "budget.hpp"
#include "extent_map.hpp"
#include "fence_table.hpp"
#include "fences.hpp"
#include "observer.hpp"
#include "pages.hpp"
#include "reclaimer.hpp"
#include "source.hpp"

namespace bigmem {

// Huge pages and their ranges come in this size.
constexpr std::size_t huge_unit = std::size_t{2} << 20;
constexpr std::size_t small_unit = 4096;

// Blocks of at least this size look at the process's memory limit before they take fresh memory.
constexpr std::size_t looks_at_limit = std::size_t{32} << 20;

inline std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

struct ArenaConfig {
  enum class Policy { inline_, deferred, recycle };
  enum class Huge { never, automatic, always };

  PagesTable pages = default_pages({});
  Policy policy = Policy::recycle;
  Advice advice = Advice::dontneed;
  double decay = 10;
  std::size_t max_warm = std::numeric_limits<std::size_t>::max();
  // Bytes that may wait for the workers before the next allocation helps them.
  std::size_t max_pending = std::numeric_limits<std::size_t>::max();
  Huge huge = Huge::automatic;
  bool wipe = false;               // contents are overwritten before anyone else can see them
  bool mapping_per_block = false;  // no reservation: each block is a mapping of its own
  std::size_t reserve = 0;         // address range of a region; 0 to let the arena choose
  std::shared_ptr<Reclaimer> reclaimer;
  std::shared_ptr<Budget> budget;
  std::shared_ptr<Fences> fences;  // whose work released blocks wait for; null for none
};

// Blocks cut from reserved address ranges, and the way of their memory back to the system.
//
// Blocks of huge pages live in a zone of their own, in which memory goes back in whole pages of
// 2 MiB: returning part of a huge page would free nothing. So do all blocks where pages come in
// such units. One mutex guards the maps, the table of fences and the counters; it is never held
// across a system call, nor a call of Fences, so that no release can wait for one.
class Arena final : public Source, public Reclaimable, public std::enable_shared_from_this<Arena> {
 public:
  enum class Result { good, over_budget, out_of_memory };
  struct Contents {
    bool dirty;  // the bytes are not known to be zero
    bool fresh;  // there may be no memory behind them yet
  };

  explicit Arena(ArenaConfig config);
  ~Arena() override;

  // Takes what is there, without any system call; false when try_allocate cannot serve.
  bool allocate_quickly(std::size_t nbytes, std::size_t alignment, Lease& lease,
                        Contents& contents);
  // May reserve, reclaim and wait. `lease.source` is left for the caller to fill in.
  Result allocate(std::size_t nbytes, std::size_t alignment, Lease& lease, Contents& contents);
  // Zeroes a dirty one.
  void clear_block(const Lease& lease) noexcept;
  // Makes a fresh range resident, a step at a time.
  void populate(const Lease& lease) noexcept;
  // What a block of that size counts as: whole pages.
  std::size_t rounded(std::size_t nbytes);
  // What a budget must have left for it, if no idle memory fits.
  std::size_t needed(std::size_t nbytes);
  void count_allocation(double seconds) noexcept;
  void count_wait(double seconds) noexcept;

  bool release(void* token, bool fenced) noexcept override;
  bool unfence(void* token) noexcept override;
  void settle(void* token) noexcept override;
  Resized resize(Lease& lease, std::size_t nbytes, bool may_block) noexcept override;

  // The latest release so far, for drain().
  std::uint64_t ticket() noexcept;
  // Reclaims on this thread until nothing released up to the ticket is pending; false when the
  // time is up, which is also how waiting for fences and for other threads shows.
  bool drain(std::uint64_t ticket, double seconds) noexcept;
  // Reclaims at least so many bytes that are not in use, if there are as many; returns how many.
  std::size_t reclaim(std::size_t nbytes) noexcept override;
  // All of them, and what waits for fences now as soon as those are done; returns how many at once.
  std::size_t trim() noexcept;
  std::size_t held() noexcept override;
  bool asks_fences() noexcept override { return has_fences(); }
  bool may_attach(const Fences* fences, std::uintptr_t address) noexcept override;
  bool attach(std::uintptr_t address, Fences::Fence* fence) noexcept override;
  // False when the budget has something to tell before the next allocation.
  bool attend(double now) noexcept { return !config_.budget || config_.budget->attend(now); }
  Counters counters() noexcept;
  std::size_t fenced() noexcept;
  // Who is told of reclaims and waits from now on; null for nobody.
  void observe(std::shared_ptr<Observer> observer) noexcept;
  // No further allocations: everything goes back as it is released.
  void retire() noexcept;

  Activity reclaim_due() noexcept override;
  bool finished() noexcept override;
  void before_fork() noexcept override;
  void after_fork(bool in_child) noexcept override;

 private:
  struct Zone {
    Zone(std::size_t unit, double decay, PageSize page, std::size_t first_chunk, std::size_t grain)
        : map(unit, decay, grain), unit(unit), grain(grain), page(page), chunk(first_chunk) {}
    ExtentMap map;
    const std::size_t unit;   // what can be reclaimed
    const std::size_t grain;  // what blocks are rounded to
    const PageSize page;
    std::atomic<std::size_t> chunk;  // bytes that take about 2 ms to reclaim
  };
  enum class Attempt { good, need_nodes, need_headroom, no_room, over_budget };
  enum class Goal { clean, reuse };  // of a reclaim: memory goes back, or may be used again
  struct Reclaimed {
    std::size_t tried = 0;     // bytes that the system was asked to take
    std::size_t returned = 0;  // bytes that it took, at once
    double seconds = 0;
  };
  struct Asked {
    bool freed = false;  // some range waits for nothing any more
    bool busy = false;   // another thread is asking; about what, is not known
    Reclaimed paid;      // what had to be reclaimed therefore
  };

  void rouse() noexcept;
  void note_peaks() noexcept;
  Zone& zone_for(std::size_t nbytes);
  Zone& zone_of(const Extent* extent) { return extent->map == &huge_.map ? huge_ : small_; }
  State released_state() const;
  State unfenced_state(const Extent* extent) const {
    return extent->serial <= trimmed_ && !pays_at_once() ? State::pending : released_state();
  }
  // A mapping that its releaser unmaps goes in one piece, as in free(): advising first would pay
  // twice. In the background it is emptied first, under the lock that does not stop page faults.
  bool only_unmap() const { return config_.mapping_per_block && pays_at_once(); }
  // Memory is committed in units of the huge zone.
  bool in_units() const {
    return !config_.mapping_per_block && config_.pages.granularity > small_unit;
  }
  // Fragments are for reuse at once: what is left of secrets is not, nor what is committed by the
  // page.
  bool has_fragments() const {
    if (config_.mapping_per_block) return true;
    return !config_.wipe && (in_units() || !config_.pages.needs_commit);
  }
  bool pays_at_once() const { return config_.policy == ArenaConfig::Policy::inline_; }
  // Not in a child of fork: what the parent's processor does is done to the parent's pages.
  bool has_fences() const { return config_.fences && !forsaken_.load(std::memory_order_relaxed); }
  bool shares_with_child() const { return !config_.wipe && !config_.pages.pinned; }
  bool needs_workers() const { return !pays_at_once() || has_fences(); }
  Goal background_goal(bool retired) const {
    const bool recycle = config_.policy == ArenaConfig::Policy::recycle && !retired;
    return recycle ? Goal::reuse : Goal::clean;
  }
  // What comes back soon: other threads have it in hand.
  std::size_t coming_back() const { return bytes(State::reclaiming) + unmapping_; }
  std::size_t bytes(State state) const { return small_.map.bytes(state) + huge_.map.bytes(state); }
  std::size_t resident() const;
  bool asking() const { return asker_ != std::thread::id{}; }
  std::size_t fenced_bytes() const { return small_.map.fenced() + huge_.map.fenced(); }
  std::size_t fragments() const { return small_.map.fragments() + huge_.map.fragments(); }
  std::size_t waiting_bytes() const { return bytes(State::pending) - fenced_bytes(); }

  void replace_small_pages(std::size_t nbytes) noexcept;
  bool takes_from_the_other(const Zone& zone, std::size_t size) const;
  Attempt attempt(Zone& zone, std::size_t size, std::size_t alignment, bool fresh, Lease& lease,
                  Contents& contents, Extent* added = nullptr);
  Attempt grow(Zone& zone, std::size_t size, std::size_t alignment, Lease& lease,
               Contents& contents);
  bool commit(Extent* extent, std::size_t size, bool zero) noexcept;
  bool refill(Zone& zone) noexcept { return lock_with_nodes(zone).owns_lock(); }
  std::unique_lock<std::mutex> lock_with_nodes(Zone& zone) noexcept;
  void prepare_for_fresh(Zone& zone, std::size_t nbytes) noexcept;
  std::size_t region_for(const Zone& zone, std::size_t least, std::size_t roomy);
  Asked ask(std::size_t blocks) noexcept;
  Asked ask_round(std::unique_lock<std::mutex>& lock) noexcept;
  void drop_fences(std::unique_lock<std::mutex>& lock) noexcept;
  void free_blocks(std::unique_lock<std::mutex>& lock, Asked& asked) noexcept;
  void await_fences(std::size_t nbytes) noexcept;
  void forsake_fences() noexcept;
  Resized shrink_block(Extent* extent, std::size_t size, bool may_block) noexcept;
  Resized grow_block(Lease& lease, std::size_t size, bool fresh, bool may_block) noexcept;
  void make_room(std::size_t nbytes) noexcept;
  bool commit_growth(Extent* extent, std::size_t before) noexcept;
  bool move_block(Lease& lease, std::size_t size) noexcept;
  Extent* take(Zone& zone, ExtentMap::Take what, std::size_t limit) noexcept;
  Reclaimed reclaim_extent(Extent* extent, Goal goal, Advice advice, bool had = true) noexcept;
  static void adapt_chunk(Zone& zone, std::size_t size, double seconds) noexcept;
  void finish(Extent* extent, ExtentMap::Outcome outcome, bool had,
              std::unique_lock<std::mutex>& lock);
  void unreserve(std::uintptr_t begin, std::size_t size) noexcept;
  Reclaimed reclaim_one(ExtentMap::Take what, std::size_t limit, Goal goal, Advice advice) noexcept;
  bool reclaim_pending() noexcept;
  bool overdue() noexcept;
  void help_with_pending() noexcept;
  void forget_if_finished() noexcept;
  void become_child() noexcept;
  bool keep_from_child(const Extent& extent, bool kept) noexcept;

  // What the map may take to cut off what an allocation took beyond its size.
  static constexpr std::size_t nodes_to_cut = 2;
  // So many blocks at most whose fences a worker or an allocation asks about at once.
  static constexpr std::size_t blocks_asked = 64;
  // A wait for what others have in hand.
  static constexpr std::chrono::microseconds breath{200};

  const ArenaConfig config_;
  // Where the address range is limited, or was refused: regions to measure, unmapped when clean.
  std::atomic<bool> unmap_when_clean_{false};
  std::mutex mutex_;
  Zone small_, huge_;
  Counters counters_;
  std::shared_ptr<Observer> observer_;
  std::uint64_t serial_ = 0;
  std::atomic<std::uint64_t> trimmed_{0};  // what was released up to this is not kept warm
  std::size_t uncredited_ = 0;             // out of the maps, but not yet unmapped
  std::size_t unmapping_ = 0;              // the same, credited or not
  // How often something that was coming back has: an attempt that was refused meanwhile may have
  // missed it.
  std::atomic<std::uint64_t> returns_{0};
  std::atomic<bool> retired_{false};
  bool moved_ = false;  // some block has a region of its own
  FenceTable fences_;
  std::thread::id asker_;  // who has a round of questions; nobody's if nobody has
  std::atomic<bool> forsaken_{false};
};

}  // namespace bigmem
