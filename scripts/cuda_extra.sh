#!/usr/bin/env bash
# Prints the extra, with a comma before it, that brings the CuPy this machine's NVIDIA driver can
# run, or nothing if VENV has CuPy.
#   scripts/cuda_extra.sh VENV
set -euo pipefail
venv=$1

fail() { echo "no GPU to run on: $*" >&2; exit 1; }

command -v nvidia-smi >/dev/null ||
  fail "no NVIDIA driver here (nvidia-smi is missing); run this on a machine with an NVIDIA GPU."
answer=$(nvidia-smi 2>&1) || fail "nvidia-smi finds no usable GPU: ${answer%%$'\n'*}"
if "$venv/bin/python" -c 'import cupy' 2>/dev/null; then exit 0; fi
cuda=$(sed -nE 's/.*CUDA[A-Z ]* Version: *([0-9]+).*/\1/p' <<<"$answer")
case $cuda in
  12) echo ,cuda12 ;;
  1[3-9]) echo ,cuda13 ;;
  *) fail "the NVIDIA driver serves CUDA '$cuda'; CUDA 12 or newer is needed." ;;
esac
