#!/usr/bin/env bash
# What scripts/tpu.sh runs on each worker of a TPU: bash worker.sh VERB ARGS...
#
#   setup WHEEL EXTRAS       installs the wheel into venv/ and prints versions
#   start ARGS...            starts `jaxtrain train ARGS...`, which outlives the ssh session
#   status                   running, finished with status N, lost or not started
#   logs                     prints run/log, and follows it as long as the run goes on
#   stop FORCE SECONDS [asked]  SIGTERM (FORCE=true: twice), and waits for the end; asked: by a person
#
# It works in the folder it lies in. Everything goes to stdout, each line led by the worker's number
# (tpu.sh reads many workers at once), and the last line is the exit status.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
  echo "error: $1"
  exit "$2"
}

# Whoever trains holds a lock on run/lock, which no crash and no restart of the machine leaves behind.
running() { [[ -e run/lock ]] && ! flock --nonblock run/lock true; }

new_environment() {
  local python
  for python in python3 python3.13 python3.12 python3.11; do
    if "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$python" -m venv venv
      return
    fi
  done
  echo "no Python 3.11 or later here; getting one with uv"
  python3 -m pip install --quiet --user uv
  python3 -m uv venv --quiet --clear --seed --python 3.12 venv
}

setup() {
  local wheel=$1 extras=$2 pip=(venv/bin/python -m pip --quiet --no-input --disable-pip-version-check)
  if running; then fail "a run is going on; stop it first" 2; fi
  "${pip[@]}" --version >/dev/null 2>&1 || new_environment
  "${pip[@]}" install "./$wheel${extras:+[$extras]}"
  # A changed checkout has the same version, which pip would take for installed.
  "${pip[@]}" install --force-reinstall --no-deps "./$wheel"
  echo "$(venv/bin/jaxtrain --version), $(venv/bin/python -c \
    'import platform; from importlib.metadata import version
print("python", platform.python_version() + ", jax", version("jax") + ", jaxlib", version("jaxlib"))')"
}

start() {
  [[ -x venv/bin/jaxtrain ]] || fail "jaxtrain is not installed; run tpu.sh setup first" 2
  mkdir -p run
  exec 9>>run/lock
  flock --nonblock 9 || fail "a run is going on; stop it first" 2
  rm -f run/status run/pid run/asked
  if [[ -e run/log ]]; then mv run/log run/log.previous; fi
  setsid bash worker.sh supervise "$@" </dev/null >run/log 2>&1 &
  until [[ -s run/pid ]]; do sleep 0.1; done
  echo "started, pid $(<run/pid)"
}

# Keeps the lock (file 9, which jaxtrain inherits) and writes down the status that jaxtrain ends with.
supervise() {
  local child status=0
  trap : TERM INT HUP # a machine that goes down tells all; jaxtrain saves, and this waits for it
  venv/bin/jaxtrain train "$@" &
  child=$!
  echo "$child" >run/pid
  while
    wait "$child" && status=0 || status=$?
    kill -0 "$child" 2>/dev/null
  do :; done
  echo "$status" >run/status.part
  mv run/status.part run/status
}

status() {
  if running; then
    echo "running"
  elif [[ -e run/status ]]; then
    echo "finished with status $(<run/status)$([[ ! -e run/asked ]] || echo ', by tpu.sh stop')"
  elif [[ -e run/pid ]]; then
    echo "lost: it ended without a status, as when the machine restarts"
  else
    echo "not started"
  fi
}

logs() {
  [[ -e run/log ]] || fail "no run was started here" 2
  if running; then
    tail --lines=+1 --follow --pid="$(<run/pid)" run/log
  else
    cat run/log
  fi
}

stop() {
  local force=$1 seconds=$2
  if running; then
    if [[ ${3:-} == asked ]]; then touch run/asked; fi
    kill -TERM "$(<run/pid)" || true
    if [[ $force == true ]]; then
      sleep 1
      kill -TERM "$(<run/pid)" || true
    fi
    # The lock is free when it has gone.
    if ! flock --wait "$seconds" run/lock true; then
      if [[ $force == false ]]; then
        status
        fail "it did not end within stop_seconds=$seconds; wait, or use --force" 1
      fi
      kill -KILL "$(<run/pid)" || true
      flock run/lock true
    fi
  fi 2>/dev/null
  status
  [[ $force == true || ! -e run/status || $(<run/status) =~ ^(0|75)$ ]] || exit "$(<run/status)"
}

run_verb() {
  local verb=$1
  shift
  case $verb in
    setup) setup "$@" ;;
    start) start "$@" ;;
    status) status ;;
    logs) logs ;;
    stop) stop "$@" ;;
    *) fail "$verb is not one of setup, start, status, logs, stop" 2 ;;
  esac
}

main() {
  local worker status
  if [[ $1 == supervise ]]; then
    shift
    supervise "$@"
    return
  fi
  # The number is that by which JAX knows the worker.
  worker=$(curl --silent --fail --max-time 5 --header Metadata-Flavor:Google \
    http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number) ||
    worker=$(hostname)
  set +e
  (
    set -e
    run_verb "$@"
  ) 2>&1 | sed --unbuffered "s/^/worker $worker: /"
  status=${PIPESTATUS[0]}
  echo "worker $worker: exit $status"
  return "$status"
}

main "$@"; exit # on one line: a new copy of this file then does not change what runs already
