# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # what tpu.sh reads, and what settings.sh assigns by name
# How tpu.sh calls gcloud, and what it makes of the answers: of the service, and of the workers.

folder=jaxtrain-worker # in the home folder of each worker; see worker.sh

quote() { # the words as a shell reads them back
  local word quoted=() escaped="'\\''"
  for word; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//\'/$escaped}'"
    quoted+=("$word")
  done
  printf '%s' "${quoted[*]}"
}

run() { # every command that asks or changes something outside; none can prompt
  if [[ $dry_run == true ]]; then
    printf '%s\n' "$(quote "$@")"
  else
    "$@" </dev/null
  fi
}

tpu() { run gcloud compute tpus "$1" "$2" "$name" "${common[@]}" "${@:3}"; }

workers=0

find_state() { # tpu-vm or queued-resources; sets state, and workers where it has some
  local format='value(state,networkEndpoints.len())' said count
  if [[ $1 == queued-resources ]]; then format='value(state.state)'; fi
  if [[ $dry_run == true ]]; then
    tpu "$1" describe "--format=$format"
    state=READY workers=1
  elif said=$(tpu "$1" describe "--format=$format" 2>&1); then
    read -r state count <<<"${said##*$'\n'}"
    if [[ $count =~ ^[1-9] ]]; then workers=$count; fi
  elif [[ $said == *NOT_FOUND* ]]; then
    state=NOT_FOUND
  else
    printf '%s\n' "$said" >&2
    state=UNKNOWN
  fi
}

is_gone() { [[ $state =~ ^(NOT_FOUND|PREEMPTED|TERMINATED|STOPP(ING|ED)|SUSPEND(ING|ED)|DELETING|FAILED)$ ]]; }

# Has `create` and `delete` take for settings what the VM was made with.
read_vm() {
  local said fields what=acceleratorType,runtimeVersion,queuedResource
  what+=,schedulingConfig.spot,schedulingConfig.preemptible
  what+=,networkConfig.network,networkConfig.subnetwork,networkConfig.enableExternalIps
  said=$(tpu tpu-vm describe "--format=value($what)") || die $? "gcloud could not describe $name"
  if [[ $dry_run == true ]]; then
    printf '%s\n' "$said"
    return
  fi
  mapfile -t fields <<<"${said//$'\t'/$'\n'}"
  accelerator_type=${fields[0]} runtime_version=${fields[1]} queued=false spot=false internal_only=false
  if [[ -n ${fields[2]} ]]; then queued=true; fi
  if [[ ${fields[3]}${fields[4]} == *True* ]]; then spot=true; fi
  network=${fields[5]} subnetwork=${fields[6]}
  if [[ ${fields[7]} != True ]]; then internal_only=true; fi
}

ssh_flags() { # ssh or scp; sets flags
  local option
  flags=(--strict-host-key-checking=no --no-user-output-enabled)
  if [[ $internal_ip == true ]]; then flags+=(--internal-ip); fi
  for option in BatchMode=yes ConnectTimeout=20 ServerAliveInterval=30; do
    flags+=("--$1-flag=-o$option")
  done
}

declare -A answers states # of the last on_workers, by number of the worker

# Runs one command on a worker or on all, and prints what they say unless quiet=true. Sets answers (the
# exit status of each), states (what `worker.sh status` says) and worst.
on_workers() { # number or all, command
  local which=$1 line number status=0 expected=("$1") flags
  ssh_flags ssh
  answers=() states=()
  # gcloud exits with the status of the first worker that failed; the lines have that of each.
  while IFS= read -r line; do
    if [[ $dry_run == false && $line =~ worker\ ([^\ :]+):\ exit\ ([0-9]+)$ ]]; then
      answers[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
      continue
    fi
    if [[ $line =~ ^worker\ ([^\ :]+):\ (running|not\ started|lost|finished\ with\ status\ .*) ]]; then
      states[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    fi
    if [[ ${quiet:-} != true || $dry_run == true ]]; then printf '%s\n' "$line"; fi
  done < <(tpu tpu-vm ssh "--worker=$which" "${flags[@]}" "--command=$2")
  wait "$!" || status=$?
  if [[ $which == all ]]; then mapfile -t expected < <(seq 0 $((workers - 1))); fi
  for number in "${expected[@]}"; do
    if ((status == 0 || ${#answers[@]} >= ${#expected[@]})); then break; fi
    if [[ -v answers[$number] ]]; then continue; fi
    if ((status == 127)); then
      answers[$number]=2
      say "error: worker $number is not set up; run tpu.sh setup first"
    else
      answers[$number]=255
      say "error: worker $number cannot be reached"
    fi
  done
  worst_of "${answers[@]}"
}

worker_script() { on_workers "$1" "$(quote bash "$folder/worker.sh" "${@:2}")"; }

# Any status but 0, 75 and 7 is a cause, of which the others are consequences.
worst_of() { # statuses; sets worst
  local status rank highest=0
  worst=0
  for status; do
    case $status in 0) rank=0 ;; 75) rank=1 ;; 7) rank=2 ;; 255) rank=3 ;; *) rank=4 ;; esac
    if ((rank > highest)); then highest=$rank worst=$status; fi
  done
}

name_failures() { # verb
  local number numbers
  if ((worst == 0)); then return; fi
  mapfile -t numbers < <(printf '%s\n' "${!answers[@]}" | sort -V)
  for number in "${numbers[@]}"; do
    if [[ ! ${answers[$number]} =~ ^(0|255)$ ]]; then
      say "error: $1 ended with status ${answers[$number]} on worker $number"
    fi
  done
}

copy_to_workers() { # files
  local flags
  ssh_flags scp
  run gcloud compute tpus tpu-vm scp "$@" "$name:$folder/" "${common[@]}" --worker=all "${flags[@]}" ||
    die $? "gcloud could not copy $(quote "$@") to all workers"
}
