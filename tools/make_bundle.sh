#!/usr/bin/env bash
# Packs what runs on another machine into dist/fathom-VERSION-linux-x86_64.tar.gz: the binary, the
# tests of CUDA, checks and benchmarks of kernels, the kernels, and the shared libraries that they need and a GPU
# host may lack. The C library, the driver, cuBLAS, CUPTI and OpenSSL 3, which a host keeps up to date, are its own.
#   tools/make_bundle.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/make_bundle.sh BUILD}
limit_mib=20

version=$(sed -n 's/^project(fathom VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=fathom-$version-linux-x86_64
root=dist/$name
rm -rf "$root" "dist/$name.tar.gz"
mkdir -p "$root/bin" "$root/lib"

binaries=("$build/bin/fathom")
for binary in "$build"/tests/cuda_test "$build"/bin/*_bench "$build"/bin/*_check; do
  [ -x "$binary" ] && binaries+=("$binary")
done
pack() {
  local to=$2/$(basename "$1")
  strip -o "$to" "$1"
  # Where CUDA is on this machine is no run path of another: zeros end the string before it.
  perl -pi -e 's{(\$ORIGIN/\.\./lib)(:[^\0]+)}{$1 . "\0" x length $2}ge' "$to"
}
for binary in "${binaries[@]}"; do pack "$binary" "$root/bin"; done

# The dependencies' dependencies too: ldd walks them.
ldd "${binaries[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
  case $(basename "$library") in
    libc.so.*|libm.so.*|libdl.so.*|librt.so.*|libpthread.so.*|ld-linux*|libcuda.so*|libcublas*|libcupti*|libnccl*|libssl*|libcrypto*) ;;
    *) pack "$library" "$root/lib" ;;
  esac
done
if ldd "${binaries[@]}" | grep 'not found'; then
  echo "a library is missing here" >&2
  exit 1
fi
tools/cuda_sources.py > "$root/sources"  # what results of this bundle are results of
tar -C dist -cf - "$name" | gzip -9 > "dist/$name.tar.gz"
bytes=$(stat -c %s "dist/$name.tar.gz")
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
echo "dist/$name.tar.gz: $(mib "$bytes"); $(ls "$root/bin" | tr '\n' ' ')"
if [ "$bytes" -gt $((limit_mib << 20)) ]; then
  echo "more than $limit_mib MiB" >&2
  exit 1
fi
