#!/usr/bin/env bash
# Starts the training in this folder. Arguments are passed on to train.py, for example: --resume auto
#
# Environment, all optional:
#   DSGEN_RUN_DIR       folder of this run (default: a new runs/NAME/NNN under the current directory)
#   DSGEN_BASE_DIR      folder that the recipe's relative paths count from (default: this folder)
#   DSGEN_STOP_SECONDS  time for saving after TERM or Ctrl-C (default: 120); a second one ends the ranks at once
#   DSGEN_DRY_RUN=1     print the environment and the command, start nothing
#   MASTER_PORT         port of rank 0
#   PYTHON              the Python that has DeepSpeed (default: python3)
set -euo pipefail

name=tiny-cpu
kind=cpu
per_node=2
python=${PYTHON:-python3}
run_dir=${DSGEN_RUN_DIR:-}
stop_seconds=${DSGEN_STOP_SECONDS:-120}
dry_run=${DSGEN_DRY_RUN:-}

here=$(dirname -- "${BASH_SOURCE[0]:-$0}")
[[ $here == /* ]] || here=${PWD%/}/$here
base_dir=${DSGEN_BASE_DIR:-$here}

# A closed terminal must not end a script that still has ranks to stop.
say() { printf 'launch.sh: %s\n' "$*" >&2 || true; }
fail() {
  say "$*"
  exit 1
}
[[ $stop_seconds =~ ^[0-9]+$ ]] || fail "DSGEN_STOP_SECONDS=$stop_seconds is not a number of seconds"

# ---- environment

added=()
# A value of the user's own shell wins; it is reported, because the recipe was checked with the other one.
setting() {
  local variable=$1 value=$2 reason=$3
  [[ $variable =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || fail "not a name for an environment variable: $variable"
  if [ -z "${!variable+set}" ]; then
    export "$variable=$value"
    added+=("$variable")
  elif [ "${!variable}" != "$value" ]; then
    say "$variable=${!variable} is set in your shell and stays; the recipe has $value ($reason)"
  fi
}
setting HF_HUB_OFFLINE 1 'the recipe names nothing on a hub, so nothing is looked up there'
setting OMP_NUM_THREADS 1 '2 cores shared by 2 ranks: without it each rank starts a thread per core'
setting TOKENIZERS_PARALLELISM false 'tokenizer threads of several ranks on one host only get in each other'"'"'s way'

# Without it DeepSpeed guesses: where the device's libraries do not load, it trains on the CPU and says nothing.
[ "${DS_ACCELERATOR:-$kind}" = "$kind" ] || say "DS_ACCELERATOR=$DS_ACCELERATOR of your shell is replaced by $kind"
export DS_ACCELERATOR=$kind
added+=(DS_ACCELERATOR)

python=$(command -v "$python") || fail "no ${PYTHON:-python3}: set PYTHON to the Python that has DeepSpeed"
# DeepSpeed builds its operators with the ninja that stands beside its Python.
export PATH="${python%/*}:$PATH"

# ---- checks

check() {
  local file module
  for file in train.py ds_config.json; do
    [ -f "$here/$file" ] || fail "$here/$file is missing: render the recipe again"
  done
  for module in torch deepspeed dsgen; do
    "$python" -c 'import sys, importlib.util as find; sys.exit(find.find_spec(sys.argv[1]) is None)' "$module" ||
      fail "$python has no $module: set PYTHON to the Python that has it, or activate its environment"
  done
}
if [ -z "$dry_run" ]; then check "$@"; fi

# ---- folder and command of the run

# Below the range of outgoing connections, where another program could get the port before rank 0 opens it, and away
# from the ports of HCCL.
free_port() {
  "$python" -c 'import random, socket
for port in random.sample(range(12000, 16000), 100):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            continue
    print(port)
    break'
}
port=${MASTER_PORT:-$(free_port)}
[[ $port =~ ^[0-9]+$ ]] || fail "no usable port for rank 0: MASTER_PORT='$port'"

next_run_dir() {
  local root=${PWD%/}/runs/$name number=0 taken
  for taken in "$root"/[0-9]*; do
    taken=${taken##*/}
    [[ ! $taken =~ ^[0-9]+$ ]] || ((10#$taken <= number)) || number=$((10#$taken))
  done
  printf '%s/%03d\n' "$root" $((number + 1))
}
if [ -n "$run_dir" ]; then
  [[ $run_dir == /* ]] || run_dir=${PWD%/}/$run_dir
  [ -n "$dry_run" ] || mkdir -p -- "$run_dir"
else
  run_dir=$(next_run_dir)
  [ -n "$dry_run" ] || mkdir -p -- "${run_dir%/*}"
  # mkdir decides: of two runs that start at the same moment, one takes the next number.
  until [ -n "$dry_run" ] || mkdir -- "$run_dir" 2>/dev/null; do
    [ -d "$run_dir" ] || fail "$run_dir cannot be made"
    run_dir=$(next_run_dir)
  done
fi

# With -m, because a `deepspeed` that stands on PATH may belong to another Python.
command=("$python" -m deepspeed.launcher.runner --no_local_rank --master_port "$port")
# Otherwise DeepSpeed takes /job/hostfile where it happens to exist.
command+=(--hostfile /dev/null)
command+=(--num_gpus "$per_node")
command+=("$here/train.py" --run-dir "$run_dir" --base-dir "$base_dir" "$@")

if [ -n "$dry_run" ]; then
  for variable in "${added[@]}"; do printf 'export %s=%q\n' "$variable" "${!variable}"; done
  # shellcheck disable=SC2016
  printf 'export PATH=%q:$PATH\n' "${python%/*}"
  printf '%q ' "${command[@]}"
  echo
  exit
fi
# Also where relative paths count from, for whoever goes on with this run.
printf '%s\n' "$base_dir" >"$run_dir/.started"

# ---- operator builds

# torch waits for ever, silently, for the lock of a build that was killed. A build that is alive keeps it open.
build_locks() {
  local root=${TORCH_EXTENSIONS_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/torch_extensions} lock
  for lock in "$root"/*/lock "$root"/*/*/lock; do
    [ ! -f "$lock" ] || printf '%s\n' "$lock"
  done
}
is_held_by() {
  local lock=$1 process file
  for process in "${@:2}"; do
    for file in "/proc/$process"/fd/*; do
      [[ ! $file -ef $lock ]] || return 0
    done
  done
  return 1
}
changed_lately() { [ -n "$(find "$1" -maxdepth 1 -mmin -5 -print -quit 2>/dev/null)" ]; }

while read -r lock; do
  folder=${lock%/*}
  # shellcheck disable=SC2046
  if is_held_by "$lock" $(cd /proc && echo [0-9]*); then continue; fi
  # Its builder may be on another node or in another container, out of sight.
  if changed_lately "$folder"; then
    say "waiting, at most 5 minutes, for $folder: another job may be building an operator there"
  fi
  while [ -f "$lock" ] && changed_lately "$folder"; do sleep 2; done
  if [ -f "$lock" ]; then
    say "removing $lock, left by a build that was killed"
    rm -f -- "$lock"
  fi
done < <(build_locks)

# ---- processes of this job

# They carry a mark: torchrun gives every rank a session of its own, and a rank whose launcher was killed has no
# parent left to be found by.
job=$(uname -n)-$$-$(date +%s)
job_processes() { grep -lzxFs "DSGEN_JOB=$job" /proc/[0-9]*/environ | cut -d/ -f3 || true; }
is_rank() { grep -qzs '^LOCAL_RANK=' "/proc/$1/environ"; }
job_ranks() {
  local pid
  for pid in $(job_processes); do
    # Helpers of a rank, such as data loaders, inherit its environment.
    if is_rank "$pid" && ! is_rank "$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)"; then
      echo "$pid"
    fi
  done
}
send() {
  # shellcheck disable=SC2086
  [ -z "$2" ] || kill "-$1" $2 2>/dev/null || true
}

stopping=
deadline=0
request_stop() {
  if [ -z "$stopping" ]; then
    say "$1: the ranks save and stop, within $stop_seconds s (a second signal ends them at once)"
    stopping=$1
    deadline=$((SECONDS + stop_seconds))
  else
    say "$1: ending the ranks now"
    deadline=0
  fi
}

asked=
# Only the ranks: DeepSpeed's launcher kills them 30 s after a TERM of its own, in the middle of a checkpoint.
ask_ranks() {
  local pid ranks
  ranks=$(job_ranks)
  # No rank so far: the launcher itself is still starting.
  [ -n "$ranks$asked" ] || send TERM "$(job_processes)"
  for pid in $ranks; do
    [[ " $asked " == *" $pid "* ]] || send TERM "$pid"
    asked+=" $pid"
  done
}

end_now() {
  send KILL "$(job_processes)"
}

abandoned=()
at_exit() {
  [ -z "$(job_processes)" ] || end_now
  rm -f -- "${abandoned[@]}"
}

# ---- run

# A scheduler's values would be taken for those of a rank.
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE LOCAL_WORLD_SIZE

trap at_exit EXIT
trap : PIPE
for signal in INT TERM HUP; do
  # shellcheck disable=SC2064
  trap "request_stop $signal" "$signal"
done

# A process group of its own: Ctrl-C in a terminal reaches this script alone, which then asks the ranks to save.
set -m
DSGEN_JOB=$job "${command[@]}" </dev/null &
launcher=$!
set +m
status=0
wait "$launcher" || status=$?

# Left over for a moment: helpers that see their rank end.
for ((i = 0; i < 10; i++)); do
  if [ -n "$stopping" ] || [ -z "$(job_processes)" ]; then break; fi
  sleep 0.5
done
while processes=$(job_processes) && [ -n "$processes" ]; do
  [ -n "$stopping" ] || request_stop "the launcher ended before its ranks"
  while read -r lock; do
    # shellcheck disable=SC2086
    ! is_held_by "$lock" $processes || abandoned+=("$lock")
  done < <(build_locks)
  if ((SECONDS < deadline)); then ask_ranks; else end_now; fi
  sleep 0.5
done

# ---- outcome

case $stopping in
INT) exit 130 ;;
TERM) exit 143 ;;
HUP) exit 129 ;;
esac
((status == 0)) || exit "$status"

# DeepSpeed's launcher also exits with 0 when it was killed: only the report of rank 0 tells that training ended well.
report=$run_dir/report.json
# Ranks that were stopped because their launcher was lost have saved, but the training has not ended well.
ended=finished
[ -n "$stopping" ] || ended='finished|stopped'
if [ ! "$report" -nt "$run_dir/.started" ] || ! grep -Eq "\"status\": *\"($ended)\"" "$report"; then
  fail "the launcher ended and told no error, but $report does not say that training ended: see $run_dir/logs"
fi
