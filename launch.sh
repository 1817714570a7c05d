#!/usr/bin/env bash
# Trains from a recipe: ./launch.sh RECIPE|FOLDER [options of `dsgen launch`]
#
# Uses the first Python that has DeepSpeed: $PYTHON, the active environment, .venv beside this file, python3.
# Where none has it, .venv is made and filled; DSGEN_NO_BOOTSTRAP=1 forbids that.
set -euo pipefail

here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
core=(click jinja2 pydantic rich yaml)

say() { printf 'launch.sh: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 1
}

# Looks for modules without importing them: torch alone takes seconds.
has() {
  command -v "$1" >/dev/null && "$1" -c 'import sys
if sys.version_info < (3, 10):
    sys.exit(1)
from importlib.util import find_spec
sys.exit(any(find_spec(name) is None for name in sys.argv[1:]))' "${@:2}" 2>/dev/null
}

pythons=()
[ -z "${PYTHON:-}" ] || pythons+=("$PYTHON")
[ -z "${VIRTUAL_ENV:-}" ] || pythons+=("$VIRTUAL_ENV/bin/python")
[ -z "${CONDA_PREFIX:-}" ] || pythons+=("$CONDA_PREFIX/bin/python")
pythons+=("$here/.venv/bin/python" python3.13 python3.12 python3.11 python3.10 python3)

for python in "${pythons[@]}"; do
  if has "$python" "${core[@]}" torch deepspeed transformers; then
    [ "$python" = "${PYTHON:-$python}" ] || say "PYTHON=$PYTHON lacks DeepSpeed or packages of dsgen: using $python"
    exec "$python" -m dsgen launch "$@"
  fi
done

remedy="pip install -e '${here}[train]' -c '$here/constraints.txt'"
[ "${DSGEN_NO_BOOTSTRAP:-0}" != 1 ] ||
  fail "no Python here has dsgen's packages and DeepSpeed, and DSGEN_NO_BOOTSTRAP=1 forbids to install them; do it yourself: $remedy"

base=
for python in "${pythons[@]}"; do
  if [ "$python" != "$here/.venv/bin/python" ] && has "$python" venv ensurepip; then
    base=$python
    break
  fi
done
[ -n "$base" ] || fail "no Python of version 3.10 or newer that can make environments (on Debian and Ubuntu: apt-get install python3-venv)"

venv=$here/.venv
mkdir -p -- "$venv" || fail "$here cannot be written to: make an environment elsewhere, then set PYTHON to its Python: $remedy"
(
  flock --nonblock 9 || { say "another launch.sh is at work in $venv: waiting for it" && flock 9; }
  if ! has "$venv/bin/python" "${core[@]}" pip; then
    say "no Python here has DeepSpeed: making $venv, and installing dsgen into it (some seconds)"
    "$base" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet -c "$here/constraints.txt" -e "$here" ||
      fail "pip could not install dsgen (its message is above): check the network, a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL), and start again"
  fi
) 9>"$venv/.lock"

exec "$venv/bin/python" -m dsgen launch --bootstrap "$@"
