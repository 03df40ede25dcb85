#!/usr/bin/env bash
# Trains on Google Cloud TPU VMs, from a single host to the slice of a pod: see tpu.sh --help.
#
# Beside it, in tpu/, settings.sh reads the flags, gcloud.sh calls gcloud, and worker.sh does on each
# worker what this asks of it through ssh.
# shellcheck disable=SC2154 # settings are assigned by their names in settings.sh
set -euo pipefail
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "tpu.sh: error: bash $BASH_VERSION is too old; it takes 4.4 or later" >&2
  exit 2
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source-path=SCRIPTDIR source=tpu/settings.sh
source "$root/scripts/tpu/settings.sh"
# shellcheck source-path=SCRIPTDIR source=tpu/gcloud.sh
source "$root/scripts/tpu/gcloud.sh"

# --- the VM

kind() { if [[ $queued == true ]]; then echo queued-resources; else echo tpu-vm; fi; }

not_known="gcloud cannot tell, in its words above; see gcloud auth login, --project and --zone"

need_ready() {
  local fix="tpu.sh create makes it, or waits for it"
  find_state tpu-vm
  if [[ $state == READY ]]; then return; fi
  if [[ $state != NOT_FOUND ]] && is_gone; then fix="tpu.sh delete, then create it again"; fi
  if [[ $state == UNKNOWN ]]; then fix=$not_known; fi
  die 1 "$name is $state, not READY; $fix"
}

wait_while_pending() { # tpu-vm or queued-resources; until it is ready, or gone
  local deadline=$((SECONDS + 60 * wait_minutes)) last=''
  while true; do
    find_state "$1"
    if [[ $dry_run == true ]]; then return; fi
    if [[ $state != "$last" ]]; then say "$name is $state"; fi
    last=$state
    if [[ $state == READY || $state == ACTIVE ]] || is_gone; then return; fi
    ((SECONDS < deadline)) ||
      die 1 "$name is still $state after wait_minutes=$wait_minutes; tpu.sh create waits on, tpu.sh delete gives up"
    sleep "$poll_seconds"
  done
}

create() {
  local flags=("--accelerator-type=$accelerator_type") more
  read -ra more <<<"$create_flags"
  if [[ $queued == true ]]; then
    flags+=("--runtime-version=$runtime_version" "--node-id=$name")
  else
    flags+=("--version=$runtime_version")
  fi
  if [[ -n $network ]]; then flags+=("--network=$network"); fi
  if [[ -n $subnetwork ]]; then flags+=("--subnetwork=$subnetwork"); fi
  if [[ $internal_only == true ]]; then flags+=(--internal-ips); fi
  if [[ $spot == true ]]; then flags+=(--spot); fi
  find_state "$(kind)"
  [[ $state != UNKNOWN ]] || die 1 "the state of $name is not known: $not_known"
  if [[ $state == NOT_FOUND || $dry_run == true ]]; then
    tpu "$(kind)" create "${flags[@]}" "${more[@]}" || die $? "gcloud could not create $name"
  fi
  wait_while_pending "$(kind)"
  if is_gone; then
    die 1 "$name is $state and will not be ready; tpu.sh delete, then create it again"
  fi
}

delete() {
  local flags=()
  if [[ $queued == true ]]; then flags=(--force); fi
  tpu "$(kind)" delete "${flags[@]}" || die $? "gcloud could not delete $name"
}

setup() {
  local version wheel metadata=http://metadata.google.internal/computeMetadata/v1/instance
  local number="curl -sfm 5 -H Metadata-Flavor:Google $metadata/attributes/agent-worker-number || hostname"
  need_ready
  version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/jaxtrain/__init__.py")
  wheel=$root/dist/jaxtrain-$version-py3-none-any.whl
  run python3 -m pip wheel --quiet --no-deps "--wheel-dir=$root/dist" "$root" ||
    die $? "pip could not build $wheel; it needs Python 3.11 or later and the package index"
  # It answers as worker.sh does, which is not there yet.
  on_workers all "mkdir -p $folder; s=\$?; echo worker \$($number): exit \$s; exit \$s"
  if ((worst == 0)); then
    copy_to_workers "$root/scripts/tpu/worker.sh" "$wheel" "${sent[@]}"
    worker_script all setup "${wheel##*/}" "$extras"
  fi
  name_failures setup
  ((worst == 0)) || exit "$worst"
}

# --- the run

train() {
  local words=() tries=0
  if [[ -n $config ]]; then words+=("--config=$config_name"); fi
  if [[ -n $workdir ]]; then words+=("--workdir=$workdir"); fi
  words+=("${arguments[@]}")
  ((${#words[@]})) || die 2 "nothing to train; write --config=FILE or --workdir=DIR"
  need_ready
  if [[ $recreate == true ]]; then read_vm; fi
  start "${words[@]}"
  if [[ $follow == false ]] && ((retries == 0)); then
    if [[ $dry_run == true ]]; then return; fi
    say "started; tpu.sh logs follows it, tpu.sh status asks, tpu.sh stop ends it"
    return
  fi
  while true; do
    follow
    if [[ ! $outcome =~ ^(7|75)$ || $asked == true ]] || ((tries >= retries)); then exit "$outcome"; fi
    tries=$((tries + 1))
    say "it ended with status $outcome; starting it again, $tries of $retries"
    make_ready
    start "${words[@]}"
  done
}

start() { # arguments of jaxtrain train
  local number status
  quiet=true worker_script all status
  ((worst == 0)) || exit "$worst"
  for number in "${!states[@]}"; do
    [[ ${states[$number]} != running ]] ||
      die 2 "worker $number has a run going on; tpu.sh logs follows it, tpu.sh stop ends it"
  done
  if ((${#sent[@]})); then copy_to_workers "${sent[@]}"; fi
  worker_script all start "$@"
  if ((worst)); then
    name_failures start
    status=$worst
    halt
    exit "$status"
  fi
}

make_ready() {
  find_state tpu-vm
  # Not the queued resource, which stays active while its VM is repaired.
  if [[ $state != READY ]] && ! is_gone; then wait_while_pending tpu-vm; fi
  if [[ $state == READY ]]; then return; fi
  [[ $recreate == true ]] ||
    die 7 "$name is $state; tpu.sh delete, create, setup and train go on, as --recreate does by itself"
  find_state "$(kind)"
  if [[ $state != NOT_FOUND ]]; then delete; fi
  create
  setup
}

halt() { # ends what still runs: by SIGTERM, and by force where that does not help
  quiet=true worker_script all stop false "$stop_seconds"
  if some_run; then quiet=true worker_script all stop true "$stop_seconds"; fi
}

some_run() { [[ " ${states[*]} " == *' running '* ]]; }

# Until the run has ended on all workers; a failure on one ends it on the others. Sets outcome, the worst
# status (but not those of who was ended because of another), and asked: whether `tpu.sh stop` was it.
follow() {
  local log_stream cause=0 ended kept=() status since_stop='' since_silent=''
  outcome=0 asked=false
  if [[ $dry_run == true ]]; then
    worker_script "$worker" logs
    worker_script all status
    return
  fi
  set -m # a process group of its own, to be ended with its children
  worker_script "$worker" logs &
  log_stream=$!
  set +m
  trap 'stop_following "$log_stream"' INT TERM
  while true; do
    sleep "$poll_seconds"
    quiet=true worker_script all status
    ended_statuses
    worst_of "${ended[@]}"
    if [[ $cause$worst =~ ^0[^0] && $worst != 75 ]]; then
      cause=$worst
      say "error: status $cause on worker$(workers_with "$cause"); ending the others"
      halt
    elif [[ " ${answers[*]} " == *' 255 '* ]]; then
      since_silent=${since_silent:-$SECONDS}
      find_state tpu-vm
      if is_gone; then
        say "error: $name is $state"
        cause=7
        break
      elif ((SECONDS - since_silent >= lost_seconds)); then
        say "error: no answer of all workers for lost_seconds=$lost_seconds"
        cause=255
        halt
        break
      fi
    elif ! some_run; then
      break
    elif ((cause)); then
      halt # what could not be reached before
    else
      since_silent=''
      # They agree to stop together, and a second SIGTERM would keep them from saving: they have time.
      if ((worst == 75)); then since_stop=${since_stop:-$SECONDS}; fi
      if [[ -n $since_stop ]] && ((SECONDS - since_stop >= stop_seconds)); then halt; fi
    fi
  done
  for status in "${ended[@]}"; do
    # With a cause, these are of those that were ended because of it.
    if ((cause == 0)) || [[ ! $status =~ ^(130|137|143)$ ]]; then kept+=("$status"); fi
  done
  ((cause || ${#ended[@]} == workers)) || cause=7 # a worker lost its folder
  worst_of "$cause" "${kept[@]}"
  outcome=$worst
  end_stream "$log_stream"
  trap - INT TERM
}

stop_following() { # process group of the log
  end_stream "$1"
  say "it goes on; tpu.sh logs follows it, tpu.sh stop ends it"
  exit 130
}

ended_statuses() { # sets ended, the statuses of those that ended, and asked
  local text
  ended=()
  for text in "${states[@]}"; do
    if [[ $text =~ ^finished\ with\ status\ ([0-9]+) ]]; then ended+=("${BASH_REMATCH[1]}"); fi
    if [[ $text == lost ]]; then ended+=(7); fi # as when the machine restarts
    if [[ $text == *'by tpu.sh stop' ]]; then asked=true; fi
  done
}

workers_with() { # status
  local number
  for number in "${!states[@]}"; do
    if [[ ${states[$number]} =~ status\ $1(,|$) || $1/${states[$number]} == 7/lost ]]; then
      printf ' %s' "$number"
    fi
  done
}

end_stream() { # process group of a log that has a few seconds to come to its end
  local i
  for ((i = 0; i < 30; i++)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -- "-$1" 2>/dev/null || true
}

status() {
  local ended number
  need_ready
  quiet=true worker_script all status
  for number in "${!states[@]}"; do
    printf 'worker %s: %s\n' "$number" "${states[$number]}"
  done | sort -V
  ended_statuses
  worst_of "$worst" "${ended[@]}"
  exit "$worst"
}

logs() {
  if [[ $worker == all ]]; then need_ready; fi
  worker_script "$worker" logs
  exit "$worst"
}

stop() {
  need_ready
  worker_script all stop "$force" "$stop_seconds" asked
  name_failures stop
  exit "$worst"
}

main() {
  local known
  known=$(cut -d'|' -f1 <<<"$verb_table" | paste -sd, | sed 's/,/, /g')
  case ${1:-} in
    create | setup | train | status | logs | stop | delete) ;;
    -h | --help)
      usage
      exit
      ;;
    '') die 2 "no verb; it is one of $known; see tpu.sh --help" ;;
    *) die 2 "$1 is no verb; it is one of $known" ;;
  esac
  read_settings "$@"
  [[ $dry_run == true ]] || command -v gcloud >/dev/null ||
    die 2 "gcloud is not on the PATH; install the Google Cloud CLI"
  "$1"
}

main "$@"
