#!/usr/bin/env bash
# Compiles the circuits and makes their witnesses again.
#   circuits/build.sh [DIRECTORY]     DIRECTORY: where the results go, beside the sources if absent
# Needs Python 3.11 (PYTHON names another than python3), node, and the compiler: run `npm ci` in
# tests/interop first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
modules=$(realpath -m "$here/../tests/interop/node_modules")
target=$(realpath -m "${1:-$here/membership}")

[ -f "$modules/circom2/package.json" ] ||
  { echo "build: the circuit compiler is missing; run 'npm ci' in tests/interop." >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here"/membership/*.circom "$work"
"${PYTHON:-python3}" "$here/membership/make_inputs.py" "$work"
cd "$work" # the compiler finds includes below the working directory only
node "$modules/circom2/cli.js" membership.circom --r1cs --wasm -p bn128 --O2 -o .
for input in input_*.json; do
  number=${input##*_}
  node "$modules/snarkjs/build/cli.cjs" wtns calculate membership_js/membership.wasm \
    "$input" "witness_${number%.json}.wtns"
done
mkdir -p "$target"
cp round_constants.circom input_*.json ./*.r1cs ./*.wtns "$target"
