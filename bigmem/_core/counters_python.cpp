#include "counters_python.hpp"

namespace bigmem {

PyObject* counters_to_dict(const Counters& c) {
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:K,s:K,s:K,s:K,s:d,s:d,s:d,s:K,s:d,s:K}",
                       "live", c.live, "pending", c.pending, "reclaiming", c.reclaiming, "warm",
                       c.warm, "lazy", c.lazy, "clean", c.clean, "peak_live", c.peak_live,
                       "peak_resident", c.peak_resident, "allocations", c.allocations, "releases",
                       c.releases, "warm_hits", c.warm_hits, "reclaimed", c.reclaimed,
                       "allocate_seconds", c.allocate_seconds, "release_seconds", c.release_seconds,
                       "reclaim_seconds", c.reclaim_seconds, "waits", c.waits, "wait_seconds",
                       c.wait_seconds, "reclaim_failures", c.reclaim_failures);
}

}  // namespace bigmem
