#!/usr/bin/env bash
# Everything `make test` runs, in BUILD: style and layering, unit and simulation tests, golden
# references, differential fuzzing against the originals, and the server through the openai client.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/run_tests.sh BUILD}
python=$build/venv/bin/python

step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

step "layering, sizes, format and pages"
tools/check_layering.py --canary
tools/check_layering.py
tools/check_sizes.py --canary
tools/check_sizes.py
python3 tests/mutants/run.py --check
tools/plan_errors.py --rates
tools/make_performance.py --canary
tools/make_performance.py --check
git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror

step "stored results"
tools/cuda_sources.py --stored
tools/make_performance.py --stored

# The CUDA backend is compiled where there is an nvcc; its tests run on a GPU: tools/gpu_check.sh.
step "build"
cmake -S . -B "$build" -G Ninja -DFATHOM_TESTS=ON -DFATHOM_CUDA="${FATHOM_CUDA:-AUTO}" >/dev/null
cmake --build "$build"

step "predictions beside stored results"
tools/plan_errors.py --check --binary "$build/bin/fathom"
tools/ranks_record.py --check
tools/speculation_table.py --check

step "test clients"
tools/python_env.sh "$build/venv"

step "unit and simulation tests"
ctest --test-dir "$build" --output-on-failure -j2

step "golden references"
"$python" tests/golden/run.py --binary "$build/bin/fathom"

step "differential: tokenizer"
"$python" tests/fuzz/tokenizer_differential.py --binary "$build/tests/tokenize_lines" --count 100000
step "differential: JSON schemas"
"$python" tests/fuzz/xgrammar_schemas.py --binary "$build/tests/schema_takes"
step "differential: chat templates"
"$python" tests/fuzz/chat_template_differential.py --binary "$build/tests/chat_render" --count 3000

step "server, through the openai client"
FATHOM_BINARY=$build/bin/fathom "$python" -m pytest -q tests/e2e
step "docs/api.md beside what clients hear"
"$python" tools/make_api_fields.py --check --binary "$build/bin/fathom"
step "accuracy, a tenth of the questions"
"$python" tests/e2e/accuracy.py --binary "$build/bin/fathom" --model models/tiny-r1 --sample 10
step "accuracy of two groups that share experts, a twentieth of the questions"
"$python" tests/e2e/accuracy.py --binary "$build/bin/fathom" --model models/tiny-r1 --sample 20 --serve-flags="-dp 2 -ep"
step "accuracy of two pipeline stages, likewise"
"$python" tests/e2e/accuracy.py --binary "$build/bin/fathom" --model models/tiny-r1 --sample 20 --serve-flags="-pp 2"
step "accuracy of tensor-parallel ranks, likewise, whose sums have other bits"
"$python" tests/e2e/accuracy.py --binary "$build/bin/fathom" --model models/tiny-r1 --sample 20 --max-changed 0.03 --serve-flags="-tp 2"
step "done"
