#!/usr/bin/env bash
# Unit and simulation tests under ASan + UBSan, then under TSan, and there two hosts over HTTP too.
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
# How hosts meet, refuse each other and end: a comparison of many answers takes minutes each. Who is killed on purpose
# leaves what was found in a file.
tools/python_env.sh build/venv
reports=$PWD/build/tsan/reports
rm -rf "$reports"
mkdir "$reports"
status=0
TSAN_OPTIONS=log_path=$reports/report FATHOM_BINARY=build/tsan/bin/fathom \
  build/venv/bin/python -m pytest -q tests/e2e/test_hosts.py -k "lost or prompt or refused or route or build" || status=1
cat "$reports"/* 2>/dev/null && status=1
exit $status
