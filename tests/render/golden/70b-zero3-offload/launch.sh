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

name=70b-zero3-offload
kind=npu
per_node=8
nodes=4
hosts=(node-1 node-2 node-3 node-4)
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
kept=()
# A value of the user's own shell wins; it is reported, because the recipe was checked with the other one.
setting() {
  local variable=$1 value=$2 reason=$3
  [[ $variable =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || fail "not a name for an environment variable: $variable"
  if [ -z "${!variable+set}" ]; then
    export "$variable=$value"
    added+=("$variable")
  elif [ "${!variable}" != "$value" ]; then
    say "$variable=${!variable} is set in your shell and stays; the recipe has $value ($reason)"
    kept+=("$variable")
  fi
}
setting CPU_AFFINITY_CONF 1 'each rank stays on the cores near its NPU'
setting DEEPSPEED_TIMEOUT 35 'minutes; must be longer than HCCL_EXEC_TIMEOUT, or torch gives up before HCCL says which peer is missing (DeepSpeed'"'"'s default is 10)'
setting HCCL_BUFFSIZE 200 'MB; each communicator holds twice that: 400 MB of device memory (HCCL'"'"'s own default, written out)'
setting HCCL_CONNECT_TIMEOUT 1800 'ranks that load data or weights start minutes apart; the default of 120 s gives EI0006'
setting HCCL_EVENT_TIMEOUT 1868 'must be longer than HCCL_EXEC_TIMEOUT'
setting HCCL_EXEC_TIMEOUT 1836 'how long a collective waits for its peers; HCCL'"'"'s own default on A2, written out because it differs between device families; a multiple of 68 as the 910 family takes it'
setting HCCL_IF_BASE_PORT 27104 'a port range of its own for each job name: two jobs on one host otherwise meet at 60000 (EI0019)'
setting HF_HUB_OFFLINE 1 'the recipe names nothing on a hub, so nothing is looked up there'
setting OMP_NUM_THREADS 24 '192 cores shared by 8 ranks: without it each rank starts a thread per core'
setting PYTORCH_NPU_ALLOC_CONF expandable_segments:True 'less fragmentation; excludes max_split_size_mb and garbage_collection_threshold'
setting TASK_QUEUE_ENABLE 1 'operators are queued; 2 is faster on the host and needs more device memory'
setting TOKENIZERS_PARALLELISM false 'tokenizer threads of several ranks on one host only get in each other'"'"'s way'

# Without it DeepSpeed guesses: where the device's libraries do not load, it trains on the CPU and says nothing.
[ "${DS_ACCELERATOR:-$kind}" = "$kind" ] || say "DS_ACCELERATOR=$DS_ACCELERATOR of your shell is replaced by $kind"
export DS_ACCELERATOR=$kind
added+=(DS_ACCELERATOR)

python=$(command -v "$python") || fail "no ${PYTHON:-python3}: set PYTHON to the Python that has DeepSpeed"
# DeepSpeed builds its operators with the ninja that stands beside its Python.
export PATH="${python%/*}:$PATH"

cann_scripts() {
  local root script
  for root in /usr/local/Ascend "${HOME:-}/Ascend"; do
    for script in "${ASCEND_TOOLKIT_HOME:-$root/ascend-toolkit}"/{,../}set_env.sh "$root"/cann*/set_env.sh; do
      [ -f "$script" ] || continue
      echo "$script"
      [ ! -f "$root/nnal/atb/set_env.sh" ] || echo "$root/nnal/atb/set_env.sh"
      return
    done
  done
}

sourced=()
[ -n "${ASCEND_HOME_PATH:-}" ] || mapfile -t sourced < <(cann_scripts)
if [ -z "$dry_run" ]; then
  for script in "${sourced[@]}"; do
    # Vendor scripts read unset variables and run commands that fail.
    set +eu
    # shellcheck disable=SC1090
    source "$script"
    set -eu
  done
  [ -n "${ASCEND_HOME_PATH:-}" ] ||
    fail "no CANN: ASCEND_HOME_PATH is not set, and no set_env.sh stands in /usr/local/Ascend or ~/Ascend; install CANN, or source its set_env.sh"
fi

# DeepSpeed would send the value of this machine to all others, where it is wrong.
of_one_node=(HCCL_IF_IP)
for variable in "${of_one_node[@]}"; do
  if [ -n "${!variable+set}" ]; then
    say "$variable is not sent to the nodes: set it in the login environment of each"
    unset "$variable"
  fi
done

# ---- devices

mask_name=ASCEND_RT_VISIBLE_DEVICES
[ -z "${!mask_name+set}" ] ||
  fail "$mask_name has no effect on a job of several nodes: unset it, and give the job whole nodes"

# ---- checks

check() {
  local file module
  for file in train.py ds_config.json hostfile .deepspeed_env; do
    [ -f "$here/$file" ] || fail "$here/$file is missing: render the recipe again"
  done
  for module in torch deepspeed dsgen torch_npu; do
    "$python" -c 'import sys, importlib.util as find; sys.exit(find.find_spec(sys.argv[1]) is None)' "$module" ||
      fail "$python has no $module: set PYTHON to the Python that has it, or activate its environment"
  done

  [ "$(grep -cE "^[^#[:space:]]+[[:space:]]+slots=$per_node\$" "$here/hostfile")" = "$nodes" ] ||
    fail "$here/hostfile does not list $nodes hosts with slots=$per_node: render the recipe again"
  local tool word
  for tool in ssh pdsh; do
    command -v "$tool" >/dev/null ||
      fail "DeepSpeed starts the nodes with $tool, which is not installed; install it, or write 'launcher: torchrun' and start launch.sh on every node"
  done
  # DeepSpeed and pdsh paste these into a shell line of the nodes, unquoted.
  for word in "$PWD" "$python" "$here" "$run_dir" "$base_dir" "$@"; do
    [[ $word =~ ^[[:alnum:]_@+=:,./-]*$ ]] ||
      fail "a job of several nodes cannot carry '$word': use paths and arguments of letters, digits and _@+=:,./-"
  done
}
if [ -z "$dry_run" ]; then check "$@"; fi

# ---- folder and command of the run

port=${MASTER_PORT:-29500}
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
command+=(--hostfile "$here/hostfile" --master_addr "${hosts[0]}")
command+=("$here/train.py" --run-dir "$run_dir" --base-dir "$base_dir" "$@")

if [ -n "$dry_run" ]; then
  for script in "${sourced[@]}"; do printf 'source %q\n' "$script"; done
  for variable in "${added[@]}"; do printf 'export %s=%q\n' "$variable" "${!variable}"; done
  # shellcheck disable=SC2016
  printf 'export PATH=%q:$PATH\n' "${python%/*}"
  printf '%q ' "${command[@]}"
  echo
  exit
fi
# Also where relative paths count from, for whoever goes on with this run.
printf '%s\n' "$base_dir" >"$run_dir/.started"

# ---- the nodes

on_every_node() {
  local host task tasks=() failed=0
  for host in "${hosts[@]}"; do
    { ssh -o BatchMode=yes -o ConnectTimeout=10 "$host" bash -s <<<"$1" || fail "$host: $2"; } &
    tasks+=($!)
  done
  for task in "${tasks[@]}"; do wait "$task" || failed=1; done
  return "$failed"
}
on_every_node "test -x '$python' && test -f '$here/train.py' && test -f '$run_dir/.started'" \
  "no ssh without a password, or it does not see $python, $here and $run_dir under the same names" || exit 1

# DeepSpeed puts a value between double quotes, as it is, in a shell line of each node; pdsh replaces %n, %h and %u.
env_line() {
  local value=$2
  [[ $value != *$'\n'* ]] || fail "$1 holds a line break, which cannot be sent to the nodes"
  value=${value//\\/\\\\} value=${value//\"/\\\"} value=${value//\$/\\\$} value=${value//\`/\\\`} value=${value//%/%%}
  printf '%s=%s\n' "$1" "$value"
}

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

# Rank 0 looks for this file after every step.
ask_ranks() { : >"$run_dir/stop"; }

end_now() {
  on_every_node "job='$job'
    $(declare -f job_processes send)
    send KILL \"\$(job_processes)\"" "ranks may be left" || true
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
export DSGEN_JOB=$job DSGEN_CONSOLE=${DSGEN_CONSOLE:-lines} DS_ENV_FILE=$run_dir/.deepspeed_env.sent
{
  while IFS= read -r line; do
    [[ $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || fail "$here/.deepspeed_env: a line that is not NAME=VALUE: '$line'"
    printf '%s\n' "$line"
  done <"$here/.deepspeed_env"
  # The last line of a name counts.
  for variable in DS_ACCELERATOR DSGEN_CONSOLE DSGEN_JOB "${kept[@]}"; do
    [ -z "${!variable+set}" ] || env_line "$variable" "${!variable}"
  done
} >"$DS_ENV_FILE"
export -n DSGEN_JOB

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
# A shared folder can show it late.
for ((i = 0; i < 30; i++)); do
  ls -- "$run_dir" >/dev/null
  [ ! "$report" -nt "$run_dir/.started" ] || break
  sleep 2
done
if [ ! "$report" -nt "$run_dir/.started" ] || ! grep -Eq "\"status\": *\"($ended)\"" "$report"; then
  fail "the launcher ended and told no error, but $report does not say that training ended: see $run_dir/logs"
fi
