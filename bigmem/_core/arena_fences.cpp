#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "arena.hpp"
#include "clock.hpp"

namespace bigmem {
namespace {

// Fences of work that is over show up in this time, in which no fresh page could be had.
constexpr double patience = 50e-6;

}  // namespace

bool attach_fence(const Fences* fences, std::uintptr_t address, Fences::Fence* fence) noexcept {
  return Reclaimer::attach(fences, address, fence);
}

bool Arena::may_attach(const Fences* fences, std::uintptr_t address) noexcept {
  if (!has_fences() || config_.fences.get() != fences) return false;
  std::lock_guard lock(mutex_);
  return fences_.is_live(address);
}

bool Arena::attach(std::uintptr_t address, Fences::Fence* fence) noexcept {
  std::unique_ptr<FenceTable::Moment> moment(new (std::nothrow) FenceTable::Moment{fence});
  if (!moment) return false;
  std::unique_lock lock(mutex_);
  // Before this one is among them, which is hardly done yet.
  if (!asking() && fences_.begin_round_of(address)) ask_round(lock);
  if (!fences_.attach(address, moment.get())) return false;
  moment.release();
  return true;
}

// Has a round of questions about released blocks, of which it asks about the fences of so many,
// unless another thread has one.
Arena::Asked Arena::ask(std::size_t blocks) noexcept {
  if (!has_fences()) return {};
  std::unique_lock lock(mutex_);
  if (!fences_.waiting()) return {};
  if (asking()) {
    Asked refused;
    refused.busy = asker_ != std::this_thread::get_id();  // else a fence calls us
    return refused;
  }
  fences_.begin_round(blocks);
  const Asked asked = ask_round(lock);
  lock.unlock();
  if (asked.paid.tried) forget_if_finished();
  return asked;
}

// Comes and leaves with the lock held.
Arena::Asked Arena::ask_round(std::unique_lock<std::mutex>& lock) noexcept {
  using Ask = FenceTable::Ask;
  Fences& fences = *config_.fences;
  Asked asked;
  asker_ = std::this_thread::get_id();
  for (;;) {
    const FenceTable::Question question = fences_.next();
    free_blocks(lock, asked);
    if (question.ask == Ask::none) break;
    lock.unlock();
    if (question.ask == Ask::guard) {
      auto* guard = new (std::nothrow) FenceTable::Moment;
      if (guard && !(guard->fence = fences.guard())) delete std::exchange(guard, nullptr);
      lock.lock();
      fences_.answer(guard);
    } else {
      const bool done = fences.done(question.fence);
      lock.lock();
      fences_.answer(done);
    }
    drop_fences(lock);
  }
  asker_ = {};
  return asked;
}

void Arena::drop_fences(std::unique_lock<std::mutex>& lock) noexcept {
  while (FenceTable::Moment* moment = fences_.take_dropped()) {
    lock.unlock();
    config_.fences->drop(moment->fence);
    delete moment;
    lock.lock();
  }
}

// Ends the wait of what waits for nothing any more; what its release owes is paid here.
void Arena::free_blocks(std::unique_lock<std::mutex>& lock, Asked& asked) noexcept {
  while (FenceTable::Entry entry = fences_.take_free()) {
    auto* extent = static_cast<Extent*>(entry.mapped().token);
    asked.freed = true;
    extent = extent->map->unfence(extent, unfenced_state(extent), seconds_now());
    lock.unlock();
    if (extent && pays_at_once()) {
      const Reclaimed paid = reclaim_extent(extent, Goal::clean, config_.advice);
      asked.paid.tried += paid.tried;
      asked.paid.returned += paid.returned;
      asked.paid.seconds += paid.seconds;
    }
    entry = {};
    lock.lock();
  }
}

// For an allocation that finds nothing warm.
void Arena::await_fences(std::size_t nbytes) noexcept {
  const double deadline = seconds_now() + patience;
  while (!ask(blocks_asked).freed && fenced() >= nbytes && seconds_now() < deadline)
    std::this_thread::yield();
}

// In a child of fork, with the lock held: no other thread exists.
void Arena::forsake_fences() noexcept {
  fences_.forsake();
  while (const FenceTable::Entry entry = fences_.take_free()) {
    auto* extent = static_cast<Extent*>(entry.mapped().token);
    extent->map->unfence(extent, State::pending, seconds_now());
  }
  fences_.clear();
  asker_ = {};
  forsaken_.store(true);
}

}  // namespace bigmem
