#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "fences.hpp"

namespace bigmem {

// Which blocks of an arena have which fences, and which released ones wait for what.
//
// A block with fences of its own is free again when all of them are done, whether that is seen
// before its release or after it; one that never had any, when a guard is done that was made after
// its release. One guard does for all that were released before it.
//
// Pure: no lock, no clock, and no call of Fences. What should be asked comes out as questions, one
// at a time, so that nothing need be locked while they are asked; only one asker at a time may have
// a round. What is done with one block is O(log n). Nothing here allocates either: callers bring an
// Entry for a block and a Moment for a fence, so that a release cannot fail.
class FenceTable {
 public:
  struct Moment {
    Fences::Fence* fence = nullptr;
    Moment* next = nullptr;
    std::uint64_t until = 0;  // of a guard: the latest release that it covers
  };

  struct Block {
    std::uintptr_t begin = 0;
    std::size_t size = 0;
    void* token = nullptr;
    Moment *first = nullptr, *last = nullptr;  // fences not known to be done, in order
    Block* next = nullptr;                     // in the queue in which it waits
    std::uint64_t release = 0;                 // its place in the order of releases
    bool had_fences = false;
    bool released = false;
    bool held = false;    // not free before unhold(), whatever is done
    bool passed = false;  // but for that it would be free
  };
  using Entry = std::map<std::uintptr_t, Block>::node_type;

  // `none`: the round is over.
  enum class Ask { none, guard, done };
  struct Question {
    Ask ask;
    Fences::Fence* fence;  // of Ask::done
  };

  FenceTable() = default;
  ~FenceTable() { clear(); }
  FenceTable(const FenceTable&) = delete;
  FenceTable& operator=(const FenceTable&) = delete;

  // Throws std::bad_alloc.
  static Entry new_entry();

  // A block comes alive.
  void enter(Entry entry, std::uintptr_t begin, std::size_t size, void* token);
  // A fence of the live block that contains the address; false if there is none.
  bool attach(std::uintptr_t address, Moment* moment);
  void release(std::uintptr_t begin, bool held);
  // The entry of the block, if that sets it free.
  Entry unhold(std::uintptr_t begin);

  bool is_live(std::uintptr_t address) { return live_block(address) != nullptr; }
  // How many released blocks wait for answers.
  std::size_t waiting() const { return unguarded_.size + fenced_.size; }

  // What may be asked about released blocks: for a guard if some need one; about guards, the oldest
  // first, until one is not done; and about the fences of so many blocks, those asked about longest
  // ago first, until one of each is not done.
  void begin_round(std::size_t blocks);
  // What may be asked about the oldest fences of a live block, so that they do not pile up where
  // one block is used over and over. False if no such block contains the address.
  bool begin_round_of(std::uintptr_t address);
  // The next question, which must be answered before another comes.
  Question next();
  void answer(bool done);
  // To Ask::guard: null if there is none now.
  void answer(Moment* guard);

  // After each answer. A fence that is not needed any more, for the caller to drop and to delete;
  // or null.
  Moment* take_dropped();
  // A block that is free again; or an empty entry.
  Entry take_free();

  // The work is not of this process: released blocks wait for nothing any more, unless they are
  // held.
  void forsake();
  // Deletes everything, and drops nothing.
  void clear();

 private:
  // More guards than that are thinned out: waiting for a later one is safe.
  static constexpr std::size_t most_guards = 16;
  // Fences of a live block that one round asks about.
  static constexpr int live_questions = 2;

  template <typename Item>
  struct Queue {
    Item *first = nullptr, *last = nullptr;
    std::size_t size = 0;

    void push(Item* item) {
      item->next = nullptr;
      (last ? last->next : first) = item;
      last = item;
      ++size;
    }
    Item* pop() {
      Item* item = first;
      if (!(first = item->next)) last = nullptr;
      item->next = nullptr;
      --size;
      return item;
    }
  };

  Block* live_block(std::uintptr_t address);
  void pass(Block* block);
  void drop_first(Block* block);
  void thin_guards();

  std::map<std::uintptr_t, Block> blocks_;
  Queue<Block> unguarded_;  // in the order of their release
  Queue<Block> fenced_;     // those asked about longest ago first
  Queue<Block> free_;
  Queue<Moment> guards_, dropped_;
  std::uint64_t releases_ = 0;

  // The round under way.
  bool may_guard_ = false, ask_guards_ = false;
  std::size_t blocks_left_ = 0;
  Block* live_ = nullptr;  // the only block that it is about, if it is that kind of a round
  int live_left_ = 0;
  Block* asked_ = nullptr;     // the block whose first fence is asked about; else it is a guard
  std::uint64_t covered_ = 0;  // the latest release before the guard that is being made
};

}  // namespace bigmem
