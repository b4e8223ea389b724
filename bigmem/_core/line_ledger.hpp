#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ledger.hpp"
#include "ledger_file.hpp"
#include "residency.hpp"
#include "source_lines.hpp"
#include "stalls.hpp"

namespace bigmem {

// The account of a program's large allocations by the source line that made them: calls, bytes,
// seconds, pages faulted in. It is kept in a mapped file, which has it however the program ends.
// Everything but stalled() needs the GIL.
class LineLedger final : public Ledger, public StallObserver {
 public:
  using Visitor = std::function<void(Note&, const void* address, std::size_t nbytes)>;

  // Opens the file at `path`, which must exist, and begins the account. Null with errno set.
  static std::unique_ptr<LineLedger> open(const char* path, std::size_t events,
                                          SourceLines::Prefixes prefixes);
  ~LineLedger() override;
  LineLedger(const LineLedger&) = delete;
  LineLedger& operator=(const LineLedger&) = delete;

  // From here on the C library maps blocks by themselves, until one of that size has been released.
  std::size_t min_bytes() const noexcept override { return 128 << 10; }
  void allocated(Note& note, const void* address, std::size_t nbytes, double begin,
                 double seconds) noexcept override;
  void before_resize(Note& note, const void* address, std::size_t nbytes,
                     std::size_t wanted) noexcept override;
  void resized(Note& note, const void* address, std::size_t before, std::size_t nbytes,
               double begin, double seconds, std::uint64_t faults) noexcept override;
  void before_release(Note& note, const void* address, std::size_t nbytes) noexcept override;
  void released(const Note& note, std::size_t nbytes, double begin, double seconds,
                bool held_gil) noexcept override;

  // For the picture of the run: a layer that has ended, of a task or of the thread itself (0).
  void layer(std::string_view name, double begin, double seconds, std::uint64_t thread,
             std::uint64_t task) noexcept;

  void stalled(const char* mechanism, double begin, double seconds) noexcept override;

  // Completes the account. Blocks still in use, which `each` calls a visitor with, count as if
  // released now, at no cost. Idempotent; a child of fork leaves its parent's account alone.
  void finish(const std::function<void(const Visitor&)>& each) noexcept;

 private:
  LineLedger(char* map, std::size_t size, SourceLines::Prefixes prefixes);

  LineRecord& line(std::uint32_t number);
  void enlarge(LineRecord& line, Note& note, std::size_t nbytes) noexcept;
  bool worth_a_look(const LineRecord& line, double now) const noexcept;
  Resident look(const void* address, std::size_t nbytes) noexcept;
  std::uint32_t number(std::string_view file, int line);
  Resident brought(const void* address, std::size_t nbytes, std::uint64_t faults) noexcept;
  void close_account(const Note& note) noexcept;
  void add_event(const EventRecord& event);
  void meet_this_thread();
  TextPiece keep(std::string_view text);

  char* const map_;
  const std::size_t size_;
  LedgerHeader& header_;
  Residency residency_;
  SourceLines lines_;
  double looking_ = 0;  // seconds
  std::unordered_map<std::string, TextPiece> texts_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

}  // namespace bigmem
