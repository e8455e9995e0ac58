#!/usr/bin/env bash
# Unit and simulation tests under ASan + UBSan, then under TSan.
set -euo pipefail
cd "$(dirname "$0")/.."

run() { # run FOLDER SANITIZERS
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFATHOM_SANITIZE="$2" -DFATHOM_CUDA=OFF >/dev/null
  cmake --build "$1"
  ctest --test-dir "$1" --output-on-failure -j2
}

export UBSAN_OPTIONS=print_stacktrace=1
run build/asan address,undefined
run build/tsan thread
