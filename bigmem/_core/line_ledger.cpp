#include "line_ledger.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "clock.hpp"

namespace bigmem {
namespace {

constexpr std::uint64_t most_lines = 8192, most_threads = 4096, most_text = 2 << 20;
constexpr std::uint64_t most_stalls = 4096;
// The part of the program's time that looking at pages may take, beyond the first blocks of a line:
// the first of them faults even where the later ones are memory that the C library has again.
constexpr double looking_share = 0.01;
constexpr std::uint64_t first_blocks = 2;
// What is smaller and faster than this cannot be seen in a picture of the run.
constexpr std::size_t drawn_bytes = 1 << 20;
constexpr double drawn_seconds = 50e-6;

std::uint64_t minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt);
}

std::uint64_t this_thread() {
  static thread_local const auto id = static_cast<std::uint64_t>(syscall(SYS_gettid));
  return id;
}

std::uint64_t gained(std::uint64_t before, std::uint64_t after) {
  return after > before ? after - before : 0;
}

// threading._active[get_ident()]._name, looked up without running any code of the program's.
std::string thread_name() {
  SavedError saved;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "threading");
  PyObject* dictionary = module && PyModule_Check(module) ? PyModule_GetDict(module) : nullptr;
  PyObject* threads = dictionary ? PyDict_GetItemString(dictionary, "_active") : nullptr;
  PyObject* ident = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
  PyObject* thread =
      threads && PyDict_Check(threads) && ident ? PyDict_GetItemWithError(threads, ident) : nullptr;
  PyObject* key = PyUnicode_FromString("_name");
  PyObject* text = thread && key ? PyObject_GenericGetAttr(thread, key) : nullptr;
  const char* utf8 = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  std::string name(utf8 ? utf8 : "");
  Py_XDECREF(text);
  Py_XDECREF(key);
  Py_XDECREF(ident);
  PyErr_Clear();
  return name;
}

}  // namespace

std::unique_ptr<LineLedger> LineLedger::open(const char* path, std::size_t events,
                                             SourceLines::Prefixes prefixes) {
  LedgerHeader header{};
  std::uint64_t size = sizeof header;
  const auto table = [&size](std::uint64_t room, std::size_t record) {
    return std::exchange(size, size + room * record);
  };
  std::memcpy(header.magic, ledger_magic, sizeof header.magic);
  header.process = static_cast<std::uint64_t>(getpid());
  header.lines_at = table(header.lines_room = most_lines, sizeof(LineRecord));
  header.events_at = table(header.events_room = events, sizeof(EventRecord));
  header.threads_at = table(header.threads_room = most_threads, sizeof(ThreadRecord));
  header.stalls_at = table(header.stalls_room = most_stalls, sizeof(StallRecord));
  header.text_at = table(header.text_room = most_text, 1);
  header.lines = 1;  // the first is for calls where no Python code runs
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* map = MAP_FAILED;
  // Emptied first: a program that replaces itself begins anew.
  if (ftruncate(file, 0) == 0 && ftruncate(file, static_cast<off_t>(size)) == 0)
    map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  errno = error;
  if (map == MAP_FAILED) return nullptr;
  header.faults_at_begin = minor_faults();
  header.begin = seconds_now();
  std::memcpy(map, &header, sizeof header);
  return std::unique_ptr<LineLedger>(
      new LineLedger(static_cast<char*>(map), size, std::move(prefixes)));
}

LineLedger::LineLedger(char* map, std::size_t size, SourceLines::Prefixes prefixes)
    : map_(map),
      size_(size),
      header_(*reinterpret_cast<LedgerHeader*>(map)),
      lines_(std::move(prefixes)) {
  header_.tells_huge = residency_.tells_huge();
}

LineLedger::~LineLedger() { munmap(map_, size_); }

void LineLedger::allocated(Note& note, const void* address, std::size_t nbytes, double begin,
                           double seconds) noexcept try {
  note = Note{};
  note.line = lines_.current([this](auto file, int line) { return number(file, line); });
  LineRecord& record = line(note.line);
  ++record.calls;
  record.allocate_seconds += seconds;
  enlarge(record, note, nbytes);
  add_event({begin, seconds, nbytes, header_.live, {}, allocation_event, note.line, 0});
  if (!worth_a_look(record, begin + seconds)) return;
  ++record.looks;
  note.before = look(address, nbytes);
  note.looked_at = true;
} catch (...) {
  // No memory for the account itself: it lacks this block.
}

void LineLedger::before_resize(Note& note, const void* address, std::size_t nbytes,
                               std::size_t wanted) noexcept {
  if (wanted < min_bytes()) return before_release(note, address, nbytes);
  if (!note.looked_at || wanted >= nbytes) return;
  note.lost += look(static_cast<const char*>(address) + wanted, nbytes - wanted);
}

void LineLedger::resized(Note& note, const void* address, std::size_t before, std::size_t nbytes,
                         double begin, double seconds, std::uint64_t faults) noexcept try {
  LineRecord& record = line(note.line);
  record.allocate_seconds += seconds;
  if (nbytes > before)
    enlarge(record, note, nbytes - before);
  else
    header_.live -= before - nbytes;
  add_event({begin, seconds, nbytes, header_.live, {}, resize_event, note.line, 0});
  if (!note.looked_at) return;
  // What has come so far has come along, or has been copied. Only the new end may be warm.
  if (nbytes > before)
    note.before += look(static_cast<const char*>(address) + before, nbytes - before);
  note.copied += brought(address, std::min(before, nbytes), faults);
} catch (...) {
  // It is missing in the picture.
}

void LineLedger::before_release(Note& note, const void* address, std::size_t nbytes) noexcept {
  if (note.looked_at) note.after = look(address, nbytes);
}

void LineLedger::released(const Note& note, std::size_t nbytes, double begin, double seconds,
                          bool held_gil) noexcept try {
  LineRecord& record = line(note.line);
  record.release_seconds += seconds;
  if (held_gil) record.gil_seconds += seconds;
  header_.live -= nbytes;
  close_account(note);
  add_event({begin, seconds, nbytes, header_.live, {}, release_event, note.line, 0});
} catch (...) {
  // It is missing in the picture.
}

void LineLedger::layer(std::string_view name, double begin, double seconds, std::uint64_t thread,
                       std::uint64_t task) noexcept try {
  add_event({begin, seconds, task, header_.live, keep(name), layer_event, 0, thread});
} catch (...) {
  // It is missing in the picture.
}

// A table of their own, since the events need the GIL.
void LineLedger::stalled(const char* mechanism, double begin, double seconds) noexcept {
  auto* stalls = reinterpret_cast<StallRecord*>(map_ + header_.stalls_at);
  StallRecord& record = stalls[header_.stalls++ % header_.stalls_room];
  record = {begin, seconds, this_thread(), {}};
  std::memcpy(record.mechanism, mechanism,
              std::min(std::strlen(mechanism), sizeof record.mechanism));
}

void LineLedger::finish(const std::function<void(const Visitor&)>& each) noexcept {
  if (header_.ended || header_.process != static_cast<std::uint64_t>(getpid())) return;
  header_.faults_at_end = minor_faults();
  header_.end = seconds_now();
  each([this](Note& note, const void* address, std::size_t nbytes) {
    before_release(note, address, nbytes);
    close_account(note);
  });
  header_.ended = 1;
}

LineRecord& LineLedger::line(std::uint32_t number) {
  return reinterpret_cast<LineRecord*>(map_ + header_.lines_at)[number];
}

void LineLedger::enlarge(LineRecord& line, Note& note, std::size_t nbytes) noexcept {
  line.bytes += nbytes;
  note.asked += nbytes;
  header_.live += nbytes;
  if (header_.live <= header_.peak) return;
  header_.fresh += header_.live - header_.peak;
  header_.peak = header_.live;
}

bool LineLedger::worth_a_look(const LineRecord& line, double now) const noexcept {
  return line.looks < first_blocks || looking_ <= looking_share * (now - header_.begin);
}

Resident LineLedger::look(const void* address, std::size_t nbytes) noexcept {
  const double begin = seconds_now();
  const Resident found = residency_.of(reinterpret_cast<std::uintptr_t>(address), nbytes);
  looking_ += seconds_now() - begin;
  return found;
}

std::uint32_t LineLedger::number(std::string_view file, int line) {
  std::string key(file);
  key.append(1, '\0').append(std::to_string(line));
  if (const auto known = numbers_.find(key); known != numbers_.end()) return known->second;
  if (header_.lines == header_.lines_room) return 0;
  const auto number = static_cast<std::uint32_t>(header_.lines);
  numbers_.emplace(std::move(key), number);
  LineRecord& record = this->line(number);
  record.file = keep(file);
  record.line = static_cast<std::uint64_t>(std::max(line, 0));
  ++header_.lines;
  return number;
}

// The pages that faults have brought while a range was written to: huge ones among them as in the
// whole range.
Resident LineLedger::brought(const void* address, std::size_t nbytes,
                             std::uint64_t faults) noexcept {
  if (faults == 0 || !residency_.tells_huge()) return {faults, 0};
  const Resident all = look(address, nbytes);
  const std::uint64_t pages = all.small + all.huge;
  const std::uint64_t huge = pages ? std::min(faults * all.huge / pages, all.huge) : 0;
  return {faults - huge, huge};
}

void LineLedger::close_account(const Note& note) noexcept {
  LineRecord& record = line(note.line);
  ++record.releases;
  record.released_bytes += note.asked;
  if (!note.looked_at) return;
  record.looked_at_bytes += note.asked;
  Resident touched = note.after;
  touched += note.lost;
  record.faulted_small += gained(note.before.small, touched.small) + note.copied.small;
  record.faulted_huge += gained(note.before.huge, touched.huge) + note.copied.huge;
  record.touched_small += touched.small;
  record.touched_huge += touched.huge;
}

void LineLedger::add_event(const EventRecord& event) {
  if (!header_.events_room) return;
  const bool layer = event.kind == layer_event;
  if (!layer && event.nbytes < drawn_bytes && event.seconds < drawn_seconds) return;
  auto* events = reinterpret_cast<EventRecord*>(map_ + header_.events_at);
  EventRecord& record = events[header_.events++ % header_.events_room];
  record = event;
  if (!layer) record.thread = this_thread();
  meet_this_thread();
}

TextPiece LineLedger::keep(std::string_view text) {
  const auto [piece, fresh] = texts_.try_emplace(std::string(text));
  if (fresh && text.size() <= header_.text_room - header_.text) {
    piece->second = {static_cast<std::uint32_t>(header_.text),
                     static_cast<std::uint32_t>(text.size())};
    std::memcpy(map_ + header_.text_at + header_.text, text.data(), text.size());
    header_.text += text.size();
  }
  return piece->second;
}

void LineLedger::meet_this_thread() {
  static thread_local const LineLedger* met_by = nullptr;
  if (met_by == this || header_.threads == header_.threads_room) return;
  if (WithGil::finalizing()) return;  // there may be no modules any more to look its name up in
  met_by = this;
  const std::string name = thread_name();
  if (name.empty()) return;
  auto* threads = reinterpret_cast<ThreadRecord*>(map_ + header_.threads_at);
  threads[header_.threads++] = {this_thread(), keep(name)};
}

}  // namespace bigmem
