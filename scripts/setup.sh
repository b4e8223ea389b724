#!/usr/bin/env bash
# Makes a local virtual environment that holds bigmem (editable) and what the given extras name.
#   scripts/setup.sh VENV EXTRAS     e.g. scripts/setup.sh .venv bench,prover
# Does nothing when the environment is newer than everything it was built from.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
extras=$2
stamp=$venv/.ready-${extras//,/-}

fail() { echo "setup: $*" >&2; exit 1; }

inputs() { find pyproject.toml CMakeLists.txt scripts/setup.sh bigmem prover \
  -name '*.toml' -o -name CMakeLists.txt -o -name '*.[ch]pp' -o -name '*.cuh' -o -name setup.sh; }

# A stamp names the extras that were installed; one that has ours among them will do.
ready() {
  local made extra
  for made in "$venv"/.ready-*; do
    [ -f "$made" ] || continue
    for extra in ${extras//,/ }; do
      case "-${made##*/.ready-}-" in *"-$extra-"*) ;; *) continue 2 ;; esac
    done
    if [ -z "$(find $(inputs) -newer "$made" -print -quit)" ]; then return 0; fi
  done
  return 1
}
if ready; then exit 0; fi

[ "$(uname -s)" = Linux ] || fail "bigmem runs on Linux only (this is $(uname -s))."

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3 python3.13 python3.12 python3.11; do
    if suitable "$candidate"; then python=$candidate; break; fi
  done
fi
[ -n "$python" ] || fail "Python 3.11 or newer is missing; install it or name one: make PYTHON=/path/to/python3."
suitable "$python" || fail "$python is not Python 3.11 or newer; name another: make PYTHON=/path/to/python3."
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$python has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv)."
header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
[ -f "$header" ] || fail "the Python headers are missing ($header); install them (Debian, Ubuntu: apt-get install python3-dev)."

compiler=${CXX:-}
for candidate in c++ g++ clang++; do
  [ -n "$compiler" ] || ! command -v "$candidate" >/dev/null || compiler=$candidate
done
[ -n "$compiler" ] || fail "a C++17 compiler is missing; install one (Debian, Ubuntu: apt-get install g++)."
echo 'int main() { return __cplusplus < 201703L; }' | "$compiler" -std=c++17 -x c++ -fsyntax-only - 2>/dev/null ||
  fail "$compiler does not compile C++17; name another: CXX=/path/to/c++ make."

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
log=$venv/setup.log
echo "setup: installing bigmem[$extras] into $venv with $("$venv/bin/python" --version) (log: $log)"
touch "$venv/.begun"  # what is edited while it builds is newer
"$venv/bin/python" -m pip install --disable-pip-version-check -e ".[$extras]" >"$log" 2>&1 ||
  { tail -n 25 "$log" >&2; fail "the installation failed; the lines above say why (whole log: $log)."; }
mv "$venv/.begun" "$stamp"
