#!/usr/bin/env bash
# Makes the virtual environment of the tests, or brings it up to date with requirements.txt and
# requirements_alone.txt.
# Does nothing, and needs no network, when that is done already.
#   tools/python_env.sh VENV
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 VENV" >&2; exit 2; }
venv=${1%/}
here=$(dirname "$(realpath "$0")")
stamp=$venv/requirements.sha256
want=$(cat "$here"/requirements.txt "$here"/requirements_alone.txt | sha256sum)

current() { [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; }
current && exit 0

mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9  # two runs at once: the second waits, and finds the work done
current && exit 0

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
    echo "$venv exists and is not a virtual environment: name another folder" >&2
    exit 1
  fi
  python=/usr/bin/python3
  [ -x "$python" ] || python=$(command -v python3) || { echo "python3 was not found: install it" >&2; exit 1; }
  "$python" -m venv --clear "$venv"
fi
echo "installing the Python packages of the tests into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
  -r "$here/requirements_alone.txt"
echo "$want" >"$stamp"
