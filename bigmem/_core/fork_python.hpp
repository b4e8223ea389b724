#pragma once

namespace bigmem {

// After a fork that ended workers they start again, once the Python code that forked goes on.
void restart_workers_after_forks();

}  // namespace bigmem
