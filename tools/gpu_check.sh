#!/usr/bin/env bash
# Runs all GPU tests and benchmarks from the bundle, in some twenty minutes, of which sanitizers take
# five, and stores what they say in bench/results/, in a folder by the device's name (h200). Needs an NVIDIA GPU with a driver for CUDA 13,
# python3, a bundle in dist/ (make bundle), and of CUDA's toolkit or PyTorch's packages cuBLASLt and CUPTI; and
# compute-sanitizer: what does not run without one of these fails, and the page says so. Without PyTorch
# its attention is not timed, and that is said.
#   tools/gpu_check.sh              all
#   tools/gpu_check.sh --quick      without sanitizer and benchmarks
#   tools/gpu_check.sh --only sanitizers,accuracy    some parts again; the rest stays as stored. If that is
#                      of other sources nothing is stored, which is said, and the results lie in a folder in /tmp
set -euo pipefail
cd "$(dirname "$0")/.."
bundles=(dist/fathom-*-linux-x86_64.tar.gz)
[ -e "${bundles[0]}" ] || { echo "no bundle in dist/: run make bundle where nvcc is installed" >&2; exit 1; }
command -v nvidia-smi >/dev/null || { echo "no NVIDIA driver here" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xzf "${bundles[-1]}"
python3 tools/gpu_record.py --bundle "$folder"/fathom-* "$@"
