#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "observer.hpp"
#include "stalls.hpp"

namespace bigmem {

// A log of events in the JSON array form of the Chrome trace format, one event a line, written
// straight into a mapped file. Any thread may write, without Python and without a lock: a writer
// claims its bytes by moving a cursor. Bytes that a killed process claimed and never wrote are NUL.
//
// What `Traced` says of the events is the format, whose number the first line tells.
//
// The file has its full size, on disk, from the start: writing to a hole of a full disk would kill
// the process. Events that find no room are counted and dropped. A child of fork shares the mapping
// and never writes to it.
class TraceLog final : public Observer, public StallObserver {
 public:
  // In memory if `path` is null. Null with errno set on failure.
  static std::shared_ptr<TraceLog> open(const char* path, std::size_t max_bytes, std::string name);
  ~TraceLog() override;

  void allocated(double begin, double seconds, std::uintptr_t address, std::size_t nbytes,
                 bool zeroed, std::string_view where) noexcept;
  // `touched` are bytes that were in memory, if anyone looked.
  void released(double begin, double seconds, std::uintptr_t address, std::size_t nbytes,
                std::optional<std::size_t> touched) noexcept;
  // A layer of the program. Those of one thread nest, and those of one task, 0 for none.
  void layer(std::string_view name, double begin, double seconds, std::uint64_t task) noexcept;
  void reclaimed(std::size_t nbytes, double begin, double seconds) noexcept override;
  void waited(double begin, double seconds) noexcept override;
  void stalled(const char* mechanism, double begin, double seconds) noexcept override;

  // Completes the array and cuts the file to it. Idempotent; waits for writers, which do not wait.
  void close() noexcept;

  const char* begin() const { return map_; }
  std::size_t length() const { return cursor_.load(); }
  std::uint64_t dropped() const { return dropped_.load(); }

  // In a child of fork: whatever log is open belongs to the parent.
  static void disown_all() noexcept { ++generation_; }

 private:
  TraceLog(int file, char* map, std::size_t size, std::string name);

  bool usable() const { return !closed_.load() && born_ == generation_.load(); }
  void write(std::string_view text) noexcept;
  void count_live(double when, std::size_t live) noexcept;

  static std::atomic<std::uint64_t> generation_;

  // A program may have closed the descriptor, and opened a file of its own under the number.
  bool owns_file() const noexcept;

  const int file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char* const map_;
  const std::size_t size_;
  const std::string name_;
  const int process_;
  const std::uint64_t born_;
  std::atomic<std::size_t> cursor_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::size_t> live_{0};
  std::atomic<int> writers_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace bigmem
