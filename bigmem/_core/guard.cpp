#include "guard.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <string_view>

#include "text.hpp"

namespace bigmem {
namespace {

// Records come in slabs that are only ever added to: the handler walks them without a lock.
struct Slab {
  static constexpr std::size_t count = 64;
  GuardedRange records[count];
  Slab* next = nullptr;
};

std::atomic<Slab*> slabs{nullptr};
GuardedRange* free_records = nullptr;

constexpr int signals[] = {SIGSEGV, SIGBUS};
struct sigaction previous[2];

// The thread whose fault is being reported, 0 before any.
std::atomic<long> reporter{0};

const GuardedRange* find_record(std::uintptr_t address) {
  for (Slab* slab = slabs.load(); slab; slab = slab->next)
    for (const GuardedRange& record : slab->records)
      if (record.begin.load() <= address && address < record.end.load()) return &record;
  return nullptr;
}

// "write", "read", or "access" where the processor's report is not known here.
const char* kind_of_access(const void* context) {
#ifdef __x86_64__
  constexpr greg_t writing = 2;
  const auto* machine = static_cast<const ucontext_t*>(context);
  return machine->uc_mcontext.gregs[REG_ERR] & writing ? "write" : "read";
#else
  (void)context;
  return "access";
#endif
}

void report(const GuardedRange& record, std::uintptr_t address, const void* context) {
  char buffer[4096];
  Text text(buffer, sizeof buffer);
  text << "bigmem: " << kind_of_access(context);
  if (record.released.load())
    text << " after the release";
  else
    text << (address < record.address ? " before the beginning" : " past the end");
  text << " of a block, at ";
  text.hexadecimal(address) << ", offset ";
  if (address < record.address)
    text << "-" << std::uint64_t{record.address - address};
  else
    text << std::uint64_t{address - record.address};
  text << " of " << std::uint64_t{record.nbytes} << " bytes at ";
  text.hexadecimal(record.address) << ", from " << record.name << "\nallocated at:\n"
                                   << record.allocated_at;
  if (record.released.load()) text << "released at:\n" << record.released_at;
  const std::string_view all = text.view();
  for (std::size_t done = 0; done < all.size();) {
    const ssize_t written = write(STDERR_FILENO, all.data() + done, all.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

// To whom the fault would have gone without us. Where that is the system the instruction runs into
// its fault once more; a signal that somebody sent has to be sent again.
void pass_on(int number, siginfo_t* info, void* context, const struct sigaction& to) {
  if (to.sa_flags & SA_SIGINFO) return to.sa_sigaction(number, info, context);
  if (to.sa_handler != SIG_DFL && to.sa_handler != SIG_IGN) return to.sa_handler(number);
  const bool sent = info->si_code <= 0;
  if (sent && to.sa_handler == SIG_IGN) return;
  signal(number, SIG_DFL);
  if (sent) raise(number);  // arrives when the handler returns
}

void on_fault(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const long self = syscall(SYS_gettid);
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const GuardedRange* record = info->si_code > 0 ? find_record(address) : nullptr;
  struct sigaction to = previous[number == SIGBUS];
  long nobody = 0;
  if (reporter.load() == self) {
    // The previous handler has had its turn and sent the signal on; it may think that we are its
    // own predecessor.
    to = {};
    to.sa_handler = SIG_DFL;
  } else if (record && reporter.compare_exchange_strong(nobody, self)) {
    report(*record, address, context);
  } else if (record) {
    // The process is about to die of another thread's fault: its report comes first.
    const timespec second{1, 0};
    nanosleep(&second, nullptr);
  }
  errno = saved;
  pass_on(number, info, context, to);
}

}  // namespace

GuardedRange* take_record() noexcept {
  if (!free_records) {
    auto* slab = new (std::nothrow) Slab;
    if (!slab) return nullptr;
    for (GuardedRange& record : slab->records) {
      record.next_free = free_records;
      free_records = &record;
    }
    slab->next = slabs.load();
    slabs.store(slab);
  }
  GuardedRange* record = free_records;
  free_records = record->next_free;
  return record;
}

void give_record(GuardedRange* record) noexcept {
  record->end.store(0);
  record->begin.store(0);
  record->released.store(false);
  record->next_free = free_records;
  free_records = record;
}

void watch_faults() noexcept {
  for (const int number : signals) {
    struct sigaction present;
    if (sigaction(number, nullptr, &present) != 0) continue;
    if ((present.sa_flags & SA_SIGINFO) && present.sa_sigaction == on_fault) continue;
    previous[number == SIGBUS] = present;
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(number, &ours, nullptr);
  }
}

}  // namespace bigmem
