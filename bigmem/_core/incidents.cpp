#include "incidents.hpp"

#include <atomic>

namespace bigmem {
namespace {

struct Record {
  std::atomic<bool> noted{false};
  std::atomic<bool> taken{false};
  std::atomic<int> error{0};
};

Record records[incident_count];
std::atomic<bool> waiting{false};

}  // namespace

void note_incident(Incident incident, int error) noexcept {
  Record& record = records[static_cast<int>(incident)];
  if (record.noted.load(std::memory_order_relaxed)) return;
  record.error.store(error);
  if (!record.noted.exchange(true)) waiting.store(true);
}

bool incidents_wait() noexcept { return waiting.load(std::memory_order_relaxed); }

bool take_incident(Incident* incident, int* error) noexcept {
  waiting.store(false);
  for (int i = 0; i < incident_count; ++i) {
    if (!records[i].noted.load() || records[i].taken.exchange(true)) continue;
    waiting.store(true);  // there may be more
    *incident = static_cast<Incident>(i);
    *error = records[i].error.load();
    return true;
  }
  return false;
}

}  // namespace bigmem
