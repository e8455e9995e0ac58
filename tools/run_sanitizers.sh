#!/usr/bin/env bash
# Unit and simulation tests under ASan + UBSan, then those with threads under TSan.
set -euo pipefail
cd "$(dirname "$0")/.."

build() { # build FOLDER SANITIZERS
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFATHOM_SANITIZE="$2" -DFATHOM_CUDA=OFF >/dev/null
  cmake --build "$1"
}

export UBSAN_OPTIONS=print_stacktrace=1
build build/asan address,undefined
ctest --test-dir build/asan --output-on-failure -j2 -LE no_sanitizer
build build/tsan thread
ctest --test-dir build/tsan --output-on-failure -j2 -L threads
