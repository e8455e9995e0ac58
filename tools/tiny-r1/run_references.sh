#!/bin/bash
# Makes the fixtures of the set extra and the answers, and packs them: run_references.sh OUT
# writes OUT/references.tar.gz, with paths as in tests/golden/. Wants PyTorch 2.11 and transformers 5.17.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 OUT" >&2; exit 2; }
out=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1
mkdir -p "$work/golden/tiny-r1" "$out"

python="${PYTHON:-python3}"
"$python" "$here/make_fixtures.py" "$work/golden" --set extra
"$python" "$here/make_answers.py" "$root/models/tiny-r1" "$root/tests/golden/tiny-r1/questions.json" \
  "$work/golden/tiny-r1/answers.json" --verify 100
tar -C "$work/golden" -czf "$out/references.tar.gz" .
ls -l "$out/references.tar.gz"
