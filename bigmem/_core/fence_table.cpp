#include "fence_table.hpp"

#include <algorithm>
#include <utility>

namespace bigmem {

FenceTable::Entry FenceTable::new_entry() {
  std::map<std::uintptr_t, Block> one;
  one.emplace(0, Block{});
  return one.extract(one.begin());
}

void FenceTable::enter(Entry entry, std::uintptr_t begin, std::size_t size, void* token) {
  entry.key() = begin;
  entry.mapped() = Block{};
  entry.mapped().begin = begin;
  entry.mapped().size = size;
  entry.mapped().token = token;
  blocks_.insert(std::move(entry));
}

FenceTable::Block* FenceTable::live_block(std::uintptr_t address) {
  auto found = blocks_.upper_bound(address);
  if (found == blocks_.begin()) return nullptr;
  Block& block = (--found)->second;
  return address - block.begin < block.size && !block.released ? &block : nullptr;
}

bool FenceTable::attach(std::uintptr_t address, Moment* moment) {
  Block* block = live_block(address);
  if (!block) return false;
  moment->next = nullptr;
  (block->first ? block->last->next : block->first) = moment;
  block->last = moment;
  block->had_fences = true;
  return true;
}

void FenceTable::release(std::uintptr_t begin, bool held) {
  Block& block = blocks_.find(begin)->second;
  block.released = true;
  block.held = held;
  block.release = ++releases_;
  (block.had_fences ? fenced_ : unguarded_).push(&block);
}

FenceTable::Entry FenceTable::unhold(std::uintptr_t begin) {
  const auto found = blocks_.find(begin);
  found->second.held = false;
  return found->second.passed ? blocks_.extract(found) : Entry{};
}

void FenceTable::begin_round(std::size_t blocks) {
  may_guard_ = ask_guards_ = true;
  live_ = nullptr;
  blocks_left_ = std::min(blocks, fenced_.size);
}

bool FenceTable::begin_round_of(std::uintptr_t address) {
  may_guard_ = ask_guards_ = false;
  blocks_left_ = 0;
  live_ = live_block(address);
  live_left_ = live_questions;
  return live_ != nullptr;
}

FenceTable::Question FenceTable::next() {
  asked_ = nullptr;
  if (live_ && live_->first && live_left_-- > 0) {
    asked_ = live_;
    return {Ask::done, live_->first->fence};
  }
  live_ = nullptr;
  const std::uint64_t guarded = guards_.last ? guards_.last->until : 0;
  if (std::exchange(may_guard_, false) && unguarded_.last && unguarded_.last->release > guarded) {
    covered_ = unguarded_.last->release;
    return {Ask::guard, nullptr};
  }
  if (ask_guards_ && guards_.first) return {Ask::done, guards_.first->fence};
  while (blocks_left_ && fenced_.first) {
    if (fenced_.first->first) {
      asked_ = fenced_.first;
      return {Ask::done, asked_->first->fence};
    }
    --blocks_left_;
    pass(fenced_.pop());
  }
  return {Ask::none, nullptr};
}

void FenceTable::answer(bool done) {
  if (asked_ && done) {
    drop_first(asked_);
  } else if (asked_ && asked_ == live_) {
    live_ = nullptr;
  } else if (asked_) {
    --blocks_left_;
    fenced_.push(fenced_.pop());
  } else if (done) {
    Moment* guard = guards_.pop();
    while (unguarded_.first && unguarded_.first->release <= guard->until) pass(unguarded_.pop());
    dropped_.push(guard);
  } else {
    ask_guards_ = false;
  }
}

void FenceTable::answer(Moment* guard) {
  if (!guard) return;
  guard->until = covered_;
  guards_.push(guard);
  if (guards_.size > most_guards) thin_guards();
}

// Every second one goes, the newest stays.
void FenceTable::thin_guards() {
  Queue<Moment> kept;
  while (guards_.first) {
    const bool stays = guards_.size % 2 == 1;
    Moment* guard = guards_.pop();
    (stays ? kept : dropped_).push(guard);
  }
  guards_ = kept;
}

void FenceTable::pass(Block* block) {
  block->passed = true;
  if (!block->held) free_.push(block);
}

void FenceTable::drop_first(Block* block) {
  Moment* moment = block->first;
  block->first = moment->next;
  dropped_.push(moment);
}

FenceTable::Moment* FenceTable::take_dropped() { return dropped_.first ? dropped_.pop() : nullptr; }

FenceTable::Entry FenceTable::take_free() {
  return free_.first ? blocks_.extract(free_.pop()->begin) : Entry{};
}

void FenceTable::forsake() {
  while (unguarded_.first) pass(unguarded_.pop());
  while (fenced_.first) pass(fenced_.pop());
}

void FenceTable::clear() {
  const auto delete_all = [](Moment* moment) {
    while (moment) delete std::exchange(moment, moment->next);
  };
  for (auto& each : blocks_) delete_all(each.second.first);
  delete_all(guards_.first);
  delete_all(dropped_.first);
  blocks_.clear();
  unguarded_ = fenced_ = free_ = {};
  guards_ = dropped_ = {};
}

}  // namespace bigmem
