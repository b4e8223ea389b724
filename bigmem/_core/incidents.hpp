#pragma once

namespace bigmem {

// What goes wrong without anybody having to know at once: native threads note it, and the first of
// each kind is reported by the next caller that is in Python anyway.
enum class Incident : int { reclaim_refused, reclaim_fell_back, unmap_refused, worker_replaced };
constexpr int incident_count = 4;

// Async-signal-safe; `error` is an errno, or 0.
void note_incident(Incident incident, int error) noexcept;

// Whether a kind was noted and has not been taken yet: one atomic load.
bool incidents_wait() noexcept;

// Takes the next one, each kind once in the life of the process; false when there is none.
bool take_incident(Incident* incident, int* error) noexcept;

}  // namespace bigmem
