#!/usr/bin/env bash
# Runs one command as several processes on this machine. See --help.
set -uo pipefail

# How long the last words of ended processes may take.
readonly DRAIN_SECONDS=5

usage() {
  cat <<'TEXT'
Usage: scripts/launch_local.sh [--devices=D] [--grace=SECONDS] N -- COMMAND [ARGUMENT...]

Starts N processes of COMMAND on this machine that find each other on 127.0.0.1, through JAX's
environment variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.

  --devices=D      each process has D CPU devices (JAX_NUM_CPU_DEVICES)
  --grace=SECONDS  how long the others may run on when one has failed, before they are killed
                   (90 unless said; make it longer than parallel.peer_timeout_seconds)

JAX_PLATFORMS is cpu unless it is set. The stdout of process 0 is this command's stdout, as it is;
everything else goes to stderr, each line of process K behind "[K] ". SIGTERM, SIGINT and SIGHUP
are passed on to all processes; where this command itself is killed by SIGKILL they run on. A process
that fails or is killed is named on stderr.

The exit status is that of the first process that failed in another way than 7 (a peer was lost)
or 75 (stopped after saving); else 7 if there is one; else 75 if there is one; else 0.

Example:
  scripts/launch_local.sh 2 -- jaxtrain train --config=mnist_mlp --workdir=runs/two
TEXT
}

say() {
  printf 'launch_local: %s\n' "$*" >&2
}

refuse() {
  say "error: $*; see --help"
  exit 2
}

is_whole() {
  [[ $1 =~ ^[0-9]{1,6}$ && $((10#$1)) -gt 0 ]]
}

# A port below those that the system gives out, where nobody listens now.
free_port() {
  local port
  while port=$((20000 + RANDOM % 12000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

# Sets `writing`, a descriptor whose lines go to stderr behind the number of a process.
open_prefixed() {
  mkfifo "$folder/lines"
  set -m
  (
    sed -u "s/^/[$1] /" {reports}>&-
    echo "lines $1 0" >&"$reports"
  ) <"$folder/lines" >&2 &
  prefixers+=($!)
  disown
  set +m
  exec {writing}>"$folder/lines"
  rm "$folder/lines"
}

# Starts process $1 of the command that follows, in a process group of its own: a Ctrl-C at the
# terminal is to reach it once, from here. Its shell outlives it, to report how it ended.
start() {
  local index=$1 writing
  shift
  open_prefixed "$index"
  set -m
  (
    trap : HUP INT TERM
    export JAX_COORDINATOR_ADDRESS=127.0.0.1:$port JAX_NUM_PROCESSES=$count JAX_PROCESS_ID=$index
    export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
    [[ -z $devices ]] || export JAX_NUM_CPU_DEVICES=$devices
    ((index == 0)) || exec >&"$writing"
    exec 2>/dev/null # bash has words for a command that was killed, and so have we
    (
      echo "start $index 0" >&"$reports"
      exec -- "$@" {reports}>&-
    ) 2>&"$writing" {writing}>&-
    echo "end $index $?" >&"$reports"
  ) </dev/null &
  groups[index]=$!
  disown
  set +m
  exec {writing}>&-
}

# Passes signals on to all processes, as soon as all are started.
pass_on() {
  local signal group
  ((started == count)) || return 0
  for signal in "${signals[@]}"; do
    for group in "${groups[@]}"; do
      kill -s "$signal" -- "-$group" 2>/dev/null
    done
  done
  signals=()
}

# Takes notice of how a process ended.
note_end() {
  local index=$1 status=$2
  case $status in
    0) return ;;
    7) ((worst == 0 || worst == 75)) && worst=7 ;;
    75) ((worst == 0)) && worst=75 ;;
    *)
      case $worst in
        0 | 7 | 75)
          worst=$status
          say "process $index $(how "$status")"
          ;;
      esac
      ;;
  esac
  : "${deadline:=$((SECONDS + grace))}"
}

how() {
  local name
  if (($1 > 128 && $1 != 130)) && name=$(kill -l $(($1 - 128)) 2>/dev/null); then
    echo "was killed by SIG$name"
  else
    echo "ended with status $1"
  fi
}

# Takes notice of processes whose shell was killed before it could report.
note_vanished() {
  local index
  for index in "${!groups[@]}"; do
    if ! kill -0 -- "-${groups[index]}" 2>/dev/null && ! read -r -t 0 -u "$reports"; then
      unset "groups[index]"
      note_end "$index" 137
    fi
  done
}

kill_rest() {
  local index
  for index in "${!groups[@]}"; do
    say "process $index has not ended $grace s after another: it is killed"
    kill -s KILL -- "-${groups[index]}" 2>/dev/null
  done
  groups=()
}

count='' devices='' grace=90
while (($#)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --devices=*) devices=${1#*=} ;;
    --grace=*) grace=${1#*=} ;;
    --)
      shift
      break
      ;;
    -*) refuse "unknown option $1" ;;
    *)
      [[ -z $count ]] || refuse "stray word '$1': put -- between N and the command"
      count=$1
      ;;
  esac
  shift
done
[[ -n $count ]] || refuse "say how many processes there are to be"
is_whole "$count" || refuse "the number of processes must be a whole number above 0, not '$count'"
[[ -z $devices ]] || is_whole "$devices" || refuse "--devices=$devices must be a whole number above 0"
is_whole "$grace" || refuse "--grace=$grace must be a whole number of seconds above 0"
count=$((10#$count)) grace=$((10#$grace))
(($#)) || refuse "say after -- what to run"
if ! type -P -- "$1" >/dev/null; then
  say "error: there is no command '$1'"
  exit 127
fi

groups=() prefixers=() signals=() started=0 worst=0 deadline='' folder=''
trap '[[ -z $folder ]] || rm -rf "$folder"' EXIT
for signal in HUP INT TERM; do
  # shellcheck disable=SC2064 # the signal of now is meant
  trap "signals+=($signal); pass_on" "$signal"
done
folder=$(mktemp -d) && mkfifo "$folder/reports" || exit 1
exec {reports}<>"$folder/reports"

port=$(free_port)
for ((k = 0; k < count; k++)); do
  start "$k" "$@"
done

outputs=$count
while ((${#groups[@]} || outputs)); do
  if read -r -t 0.5 -u "$reports" what index status; then
    case $what in
      start)
        ((started++))
        pass_on
        ;;
      lines) ((outputs--)) ;;
      end)
        unset "groups[index]"
        note_end "$index" "$status"
        ((${#groups[@]})) || deadline=$((SECONDS + DRAIN_SECONDS))
        ;;
    esac
    continue
  fi
  note_vanished
  if [[ -n $deadline ]] && ((SECONDS >= deadline)); then
    if ((${#groups[@]} == 0)); then # something that was left behind keeps the output open
      for k in "${prefixers[@]}"; do
        kill -s KILL -- "-$k" 2>/dev/null
      done
      break
    fi
    kill_rest
    deadline=$((SECONDS + DRAIN_SECONDS))
  fi
done
exit "$worst"
