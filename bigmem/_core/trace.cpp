#include "trace.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "clock.hpp"
#include "text.hpp"

namespace bigmem {
namespace {

// Kept free for the last event and the end of the array.
constexpr std::size_t room_to_close = 512;
constexpr std::size_t longest_event = 2048;
constexpr std::size_t longest_name = 128;
constexpr std::size_t longest_site = 512;
// Of the format that bigmem.wrappers.Traced documents: 2 added "version", "zeroed" and "touched".
constexpr std::uint64_t format_version = 2;

// Looked up anew in a child of fork, whose one thread has another number there.
std::uint64_t thread_id(pid_t process) {
  static thread_local std::uint64_t id = 0;
  static thread_local pid_t known_in = 0;
  if (known_in != process) {
    id = static_cast<std::uint64_t>(syscall(SYS_gettid));
    known_in = process;
  }
  return id;
}

// Microseconds, which the format counts in, with the nanoseconds behind the point.
struct Microseconds {
  double seconds;
};

Text& operator<<(Text& text, Microseconds time) {
  const auto ns = static_cast<std::uint64_t>(time.seconds > 0 ? time.seconds * 1e9 : 0);
  const char digits[] = {'.', static_cast<char>('0' + ns / 100 % 10),
                         static_cast<char>('0' + ns / 10 % 10), static_cast<char>('0' + ns % 10)};
  return text << ns / 1000 << std::string_view(digits, sizeof digits);
}

// The full size on disk where the file system can promise it, a hole where it cannot.
bool give_size(int file, std::size_t size) {
  if (fallocate(file, 0, 0, static_cast<off_t>(size)) == 0) return true;
  return (errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(file, static_cast<off_t>(size)) == 0;
}

}  // namespace

std::atomic<std::uint64_t> TraceLog::generation_{0};

namespace {

// Beside the place that it is to take: whoever maps the file there, another log perhaps, would be
// killed if that were cut. -1 with errno set where a plain file cannot be.
int create_beside(const std::string& path, std::string* fresh) {
  struct stat there;
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    errno = S_ISDIR(there.st_mode) ? EISDIR : EEXIST;
    return -1;
  }
  for (int attempt = 0;; ++attempt) {
    *fresh = path + "." + std::to_string(getpid()) + "-" + std::to_string(attempt);
    const int file = ::open(fresh->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST || attempt == 99) return file;
  }
}

}  // namespace

std::shared_ptr<TraceLog> TraceLog::open(const char* path, std::size_t max_bytes,
                                         std::string name) {
  std::string fresh;
  const int file = path ? create_beside(path, &fresh) : memfd_create("bigmem-trace", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* map = MAP_FAILED;
  // A memory file pays for what is written to it; its first touch finds room or ends the process
  // as any other memory does.
  const bool sized =
      path ? give_size(file, max_bytes) : ftruncate(file, static_cast<off_t>(max_bytes)) == 0;
  if (sized) map = mmap(nullptr, max_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (map == MAP_FAILED || (path && rename(fresh.c_str(), path) != 0)) {
    const int error = errno;
    if (map != MAP_FAILED) munmap(map, max_bytes);
    if (path) unlink(fresh.c_str());
    ::close(file);
    errno = error;
    return nullptr;
  }
  std::shared_ptr<TraceLog> log(
      new TraceLog(file, static_cast<char*>(map), max_bytes, std::move(name)));
  watch_stalls(log.get());
  return log;
}

TraceLog::TraceLog(int file, char* map, std::size_t size, std::string name)
    : file_(file),
      map_(map),
      size_(size),
      name_(std::move(name)),
      process_(getpid()),
      born_(generation_.load()) {
  struct stat status;
  if (fstat(file, &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
  char line[longest_event];
  Text text(line, sizeof line);
  text << "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" << std::uint64_t(process_)
       << ",\"args\":{\"name\":\"bigmem ";
  text.json(name_, longest_name) << "\",\"version\":" << format_version << "}},\n";
  write(text.view());
}

TraceLog::~TraceLog() {
  close();
  munmap(map_, size_);
  if (owns_file()) ::close(file_);
}

bool TraceLog::owns_file() const noexcept {
  struct stat status;
  return fstat(file_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

void TraceLog::close() noexcept {
  unwatch_stalls(this);
  if (closed_.exchange(true) || born_ != generation_.load()) return;
  while (writers_.load()) sched_yield();
  char line[room_to_close];
  Text text(line, sizeof line);
  text << "{\"ph\":\"i\",\"name\":\"close\",\"s\":\"p\",\"ts\":" << Microseconds{seconds_now()}
       << ",\"pid\":" << std::uint64_t(process_) << ",\"tid\":" << thread_id(process_)
       << ",\"args\":{\"dropped\":" << dropped_.load() << "}}\n]\n";
  const std::size_t at = cursor_.load();
  std::memcpy(map_ + at, line, text.length());
  cursor_.store(at + text.length());
  // Should that fail, the reader finds the end all the same.
  if (!owns_file()) return;
  if (ftruncate(file_, static_cast<off_t>(cursor_.load())) != 0) return;
}

void TraceLog::write(std::string_view text) noexcept {
  ++writers_;
  if (usable()) {
    const std::size_t limit = size_ - room_to_close;
    std::size_t at = cursor_.load();
    bool fits;
    while ((fits = text.size() <= limit - at) &&
           !cursor_.compare_exchange_weak(at, at + text.size()))
      continue;
    if (fits)
      std::memcpy(map_ + at, text.data(), text.size());
    else
      ++dropped_;
  }
  --writers_;
}

namespace {

// What events have in common, up to further members.
Text& event(Text& text, std::string_view phase, std::string_view name, std::string_view category,
            int process, double when) {
  text << "{\"ph\":\"" << phase << "\",\"name\":\"";
  text.json(name, longest_name) << "\",\"cat\":\"";
  text.json(category, longest_name)
      << "\",\"ts\":" << Microseconds{when} << ",\"pid\":" << std::uint64_t(process)
      << ",\"tid\":" << thread_id(process);
  return text;
}

// The same of complete events, up to the inside of their arguments.
Text& complete_event(Text& text, std::string_view name, std::string_view category, int process,
                     double begin, double seconds) {
  return event(text, "X", name, category, process, begin)
         << ",\"dur\":" << Microseconds{seconds} << ",\"args\":{";
}

// The same of a block; its arguments are open.
Text& block_event(Text& text, std::string_view name, std::string_view category, int process,
                  double begin, double seconds, std::uintptr_t address, std::size_t nbytes) {
  complete_event(text, name, category, process, begin, seconds)
      << "\"nbytes\":" << nbytes << ",\"address\":\"";
  return text.hexadecimal(address) << "\"";
}

}  // namespace

void TraceLog::allocated(double begin, double seconds, std::uintptr_t address, std::size_t nbytes,
                         bool zeroed, std::string_view where) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  block_event(text, "allocate", name_, process_, begin, seconds, address, nbytes);
  if (zeroed) text << ",\"zeroed\":true";
  if (!where.empty()) (text << ",\"where\":\"").json(where, longest_site) << "\"";
  text << "}},\n";
  write(text.view());
  count_live(begin + seconds, live_ += nbytes);
}

void TraceLog::released(double begin, double seconds, std::uintptr_t address, std::size_t nbytes,
                        std::optional<std::size_t> touched) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  block_event(text, "release", name_, process_, begin, seconds, address, nbytes);
  if (touched) text << ",\"touched\":" << *touched;
  text << "}},\n";
  write(text.view());
  count_live(begin, live_ -= nbytes);
}

void TraceLog::layer(std::string_view name, double begin, double seconds,
                     std::uint64_t task) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  if (task == 0) {
    complete_event(text, name, "layer", process_, begin, seconds) << "}},\n";
  } else {
    // Tasks share a thread and overlap, which complete events must not.
    event(text, "b", name, "layer", process_, begin) << ",\"id\":\"";
    text.hexadecimal(task) << "\"},\n";
    event(text, "e", name, "layer", process_, begin + seconds) << ",\"id\":\"";
    text.hexadecimal(task) << "\"},\n";
  }
  write(text.view());
}

void TraceLog::reclaimed(std::size_t nbytes, double begin, double seconds) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  complete_event(text, "reclaim", name_, process_, begin, seconds)
      << "\"nbytes\":" << nbytes << "}},\n";
  write(text.view());
}

void TraceLog::waited(double begin, double seconds) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  complete_event(text, "wait", name_, process_, begin, seconds) << "}},\n";
  write(text.view());
}

void TraceLog::stalled(const char* mechanism, double begin, double seconds) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  complete_event(text, "stall", "pinned memory", process_, begin, seconds)
      << "\"mechanism\":\"" << mechanism << "\"}},\n";
  write(text.view());
}

void TraceLog::count_live(double when, std::size_t live) noexcept {
  char line[longest_event];
  Text text(line, sizeof line);
  text << "{\"ph\":\"C\",\"name\":\"";
  text.json(name_, longest_name) << " live\",\"ts\":" << Microseconds{when}
                                 << ",\"pid\":" << std::uint64_t(process_)
                                 << ",\"args\":{\"bytes\":" << live << "}},\n";
  write(text.view());
}

}  // namespace bigmem
