#!/usr/bin/env bash
# Installs what fathom needs to build and test on Debian 12 (versions in comments are those of bookworm).
# Does nothing, and needs neither root nor network, when everything is already there. The source of
# xgrammar (PyPI) goes into the user's cache: cmake/xgrammar.cmake.
#   tools/install_deps.sh            build and run
#   tools/install_deps.sh --test     build, run and test
#   tools/install_deps.sh --tidy     build, run and `make tidy`
#   tools/install_deps.sh --fuzz     build, run and `make fuzz`
set -euo pipefail

build=(
  g++                    # 12.2
  make                   # 4.3
  cmake                  # 3.25
  ninja-build            # 1.11
  ccache                 # 4.7
  libboost1.81-dev       # 1.81: Asio, Beast (headers)
  libboost-json1.81-dev  # 1.81
  libcli11-dev           # 2.1
  libspdlog-dev          # 1.10
  libyaml-cpp-dev        # 0.7: --config
  libfmt-dev             # 9.1
  libpcre2-dev           # 10.42
  libhwy-dev             # 1.0.3
  prometheus-cpp-dev     # 1.0.1
  libssl-dev             # 3.0: OpenSSL
  libmsgpuck-dev         # 1.0.3: msgpack
  libjs-marked           # 4.2.3: these three are in the page that `fathom serve` has at /
  node-dompurify         # 2.4.1
  node-highlight.js      # 9.18.5
)
test=(
  libgtest-dev           # 1.12
  libbenchmark-dev       # 1.7
  python3-venv           # 3.11: the venv with the test clients
  openssl                # 3.0: their certificates
  clang-format-14        # 14.0.6
  prometheus             # 2.42: promtool
  chromium               # 156.0: a browser for that page; 15 s, 131 MB to download
  chromium-driver        # 156.0
  json-schema-test-suite # 2.0.0
  iproute2               # 6.1: hosts in network namespaces
  curl                   # 7.88: asks a server from there
)
fuzz=(
  clang-14               # 14.0.6: libFuzzer
  libclang-rt-14-dev     # 14.0.6
)

tidy=(
  libgtest-dev           # 1.12
  clang-tidy-19          # 19.1: older ones do not know coroutines. About 90 MB to download
)

packages=("${build[@]}")
case "${1:-}" in
  --test) packages+=("${test[@]}") ;;
  --tidy) packages+=("${tidy[@]}") ;;
  --fuzz) packages+=("${fuzz[@]}") ;;
esac

# Where there is no Boost 1.81 (Ubuntu 24.04), a later one under its plain name will do.
plain() { echo "${1/1.81/}"; }
installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
enough() {
  installed "$1" && return
  [ "$(plain "$1")" != "$1" ] && installed "$(plain "$1")" &&
    dpkg --compare-versions "$(dpkg-query -W -f='${Version}' "$(plain "$1")")" ge 1.81
}
missing=()
for package in "${packages[@]}"; do
  enough "$package" || missing+=("$package")
done
# Which a build would otherwise fetch itself: from here on it needs no network.
fetch_sources() { cmake -P "$(dirname "$0")/../cmake/xgrammar.cmake"; }
if [ ${#missing[@]} -eq 0 ]; then
  fetch_sources
  exit 0
fi

if ! command -v apt-get >/dev/null; then
  echo "fathom builds on Debian 12 or a relative of it: apt-get was not found. Missing: ${missing[*]}" >&2
  exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "not root, and no sudo: as root, run apt-get install ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
"${sudo[@]}" apt-get update -qq
for i in "${!missing[@]}"; do
  for name in "${missing[i]}" "$(plain "${missing[i]}")" ""; do
    [ -n "$(apt-cache show --no-all-versions "${name:-?}" 2>/dev/null)" ] && break
  done
  if [ -z "$name" ]; then
    echo "this release has no package ${missing[i]}: fathom is built on Debian 12 and its relatives" >&2
    exit 1
  fi
  missing[i]=$name
done
echo "installing: ${missing[*]}"
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fetch_sources
