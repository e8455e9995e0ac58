#!/usr/bin/env bash
# Runs libFuzzer's targets under ASan and UBSan, each for FATHOM_FUZZ_SECONDS (60 unless given), from
# the stored corpora on. What is found besides stays in build/fuzz/found; an input that fails is named.
#   tools/run_fuzz.sh [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/fuzz
seconds=${FATHOM_FUZZ_SECONDS:-60}
targets=("$@")
[ ${#targets[@]} -gt 0 ] ||
  targets=(http request template tokenizer safetensors step_plan step_masks step_result hello grammar)

cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 -DFATHOM_TESTS=OFF -DFATHOM_CUDA=OFF \
  -DFATHOM_FUZZ=ON -DFATHOM_SANITIZE=fuzzer-no-link,address,undefined >/dev/null
ninja -C "$build" "${targets[@]/#/fuzz_}"

export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
for target in "${targets[@]}"; do
  found=$build/found/$target
  mkdir -p "$found"
  printf '\n== %s, %s s\n' "$target" "$seconds"
  "$build/bin/fuzz_$target" "$found" "tests/fuzz/corpus/$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -max_len=16384 -artifact_prefix="$build/found/$target-" -print_final_stats=1 \
    -verbosity=0 -dict=tests/fuzz/words.dict
done
