#pragma once

#include <cstdint>

// What a ledger leaves: a header, then the tables that it names, in the machine's own byte order.
// `bigmem.profile.record` reads it, and must describe the same fields.
namespace bigmem {

constexpr char ledger_magic[8] = {'b', 'm', 'l', 'e', 'd', 'g', 'r', '1'};

// A piece of the text table.
struct TextPiece {
  std::uint32_t offset;
  std::uint32_t length;
};

struct LineRecord {
  TextPiece file;
  std::uint64_t line;
  std::uint64_t calls;
  std::uint64_t bytes;
  double allocate_seconds;
  double release_seconds;
  double gil_seconds;      // the part of release_seconds with the GIL held
  std::uint64_t releases;  // and blocks that were in use at the end
  std::uint64_t released_bytes;
  std::uint64_t looks;            // blocks whose pages are or were looked at
  std::uint64_t looked_at_bytes;  // of those that are released
  std::uint64_t faulted_small;    // pages that came while the block lived
  std::uint64_t faulted_huge;
  std::uint64_t touched_small;  // pages in memory at its end
  std::uint64_t touched_huge;
};

enum EventKind : std::uint32_t {
  allocation_event = 0,
  release_event = 1,
  layer_event = 2,
  resize_event = 3
};

struct EventRecord {
  double begin;
  double seconds;
  std::uint64_t nbytes;  // of a block; the task of a layer, 0 for none
  std::uint64_t live;    // after it
  TextPiece name;        // of a layer
  std::uint32_t kind;
  std::uint32_t line;
  std::uint64_t thread;
};

struct ThreadRecord {
  std::uint64_t thread;
  TextPiece name;
};

// A call of the driver that may have made the whole process wait.
struct StallRecord {
  double begin;
  double seconds;
  std::uint64_t thread;
  char mechanism[8];  // of pinning; filled up with NUL
};

struct LedgerHeader {
  char magic[8];
  std::uint64_t process;
  std::uint64_t ended;       // 1 when the program came to its end, and the fields for that hold
  std::uint64_t tells_huge;  // 0: huge pages were counted as 512 small ones
  double begin;
  double end;
  std::uint64_t faults_at_begin;
  std::uint64_t faults_at_end;
  std::uint64_t live;
  std::uint64_t peak;
  std::uint64_t fresh;  // bytes by which allocations raised `live` beyond the former peak
  std::uint64_t lines_at, lines, lines_room;
  std::uint64_t events_at, events, events_room;  // `events` counts on; the latest are kept
  std::uint64_t threads_at, threads, threads_room;
  std::uint64_t stalls_at, stalls, stalls_room;  // as of events
  std::uint64_t text_at, text, text_room;
};

}  // namespace bigmem
