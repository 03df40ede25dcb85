# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # settings are assigned by name, and read by tpu.sh
# Verbs and settings of tpu.sh: their help, and how they are read and checked.

# shellcheck disable=SC2016 # the ` is meant
verb_table='create|asks for the TPU VM, and waits until it is ready
setup|builds the wheel, installs it on all workers with the config, and prints versions
train|starts `jaxtrain train` on all workers, where it goes on without this machine
status|says of each worker whether its run goes on, and exits with the worst status
logs|prints the log of a worker, and follows it while the run goes on
stop|sends SIGTERM to all workers, and waits until they saved and left
delete|deletes the VM or the queued resource'

# flag|default|verbs that read it|meaning
setting_table='name||all|name of the TPU VM, and of its queued resource
zone||all|its zone, such as us-west4-a
project||all|its project; else the one gcloud is set to
accelerator_type||create|kind and size, such as v5litepod-16
runtime_version||create|software of the VM; else the usual one for the accelerator
network||create|VPC network; else the default one
internal_ip|false|create setup train status logs stop|no external addresses; ssh takes the internal ones
spot|false|create|cheaper, but may be preempted at any time
queued|false|create delete|asks by a queued resource, and waits in the queue
create_flags||create train|more flags for the create command of gcloud, parted by blanks
wait_minutes|60|create train|how long to wait until the VM is ready
extras|tpu,gcs|setup train|extras of jaxtrain to install
config||setup train|a file, which is copied to the workers, or the name of a packaged config
files||setup train|more files to copy, parted by colons, such as your own model.py
workdir||train|folder of the run; several workers need one that all see, such as gs://...
follow|false|train|prints the log until all workers ended, exits with the worst status
retries|0|train|follows, and starts again so often after 75 (stopped) or 7 (peer lost)
recreate|false|train|a retry makes a preempted VM anew, as it was, but for --create_flags
worker|0|logs train|whose log: a number, or all
force|false|stop|SIGTERM twice (jaxtrain then leaves without saving), at last SIGKILL
stop_seconds|300|stop train|how long saving and leaving may take
poll_seconds|10|create train|how often the state is asked for
lost_seconds|300|train|how long workers may not answer before following ends
dry_run|false|all|prints the commands, quoted as a shell takes them, and runs none'

say() { printf 'tpu.sh: %s\n' "$1" >&2; }

die() { # exit status, message
  say "error: $2"
  exit "$1"
}

usage() { # verb, or nothing for all
  local word default readers meaning
  printf 'usage: scripts/tpu.sh %s [--FLAG[=VALUE] ...]' "${1:-VERB}"
  if [[ ${1:-train} == train ]]; then printf ' [-- ARGS of jaxtrain train]'; fi
  printf '\n\n'
  while IFS='|' read -r word meaning; do
    if [[ ${1:-$word} == "$word" ]]; then printf '  %-8s %s\n' "$word" "$meaning"; fi
  done <<<"$verb_table"
  printf '\nFlags; --zone is TPU_ZONE in the environment, and so with all (a flag wins):\n\n'
  while IFS='|' read -r word default readers meaning; do
    if [[ -z ${1:-} || " all $readers " == *" $1 "* || $readers == all ]]; then
      printf '  --%-17s %s%s\n' "$word" "$meaning" "${default:+ [$default]}"
    fi
  done <<<"$setting_table"
  printf '\nExit status: 2 bad usage; 1 no such VM, or it is not ready; 255 a worker cannot be reached;
else the worst of the workers: any but 0, 75 and 7 first, then 7, 75 and 0.\n'
}

declare -A defaults readers_of

read_settings() { # verb, words
  local verb=$1 word flag default readers variable
  shift
  while IFS='|' read -r flag default readers _; do
    variable=TPU_${flag^^}
    printf -v "$flag" '%s' "${!variable:-$default}"
    defaults[$flag]=$default
    readers_of[$flag]=$readers
  done <<<"$setting_table"
  arguments=()
  while (($#)); do
    word=$1
    shift
    case $word in
      --help | -h)
        usage "$verb"
        exit
        ;;
      --)
        [[ $verb == train ]] || die 2 "-- $*: only train takes arguments for jaxtrain, not $verb"
        arguments=("$@")
        break
        ;;
      --*) ;;
      *) die 2 "$word is no flag; write --FLAG=VALUE, and put what is for jaxtrain after --" ;;
    esac
    flag=${word%%=*} flag=${flag#--}
    [[ -v defaults[$flag] ]] ||
      die 2 "--$flag is no flag; see tpu.sh $verb --help, and put what is for jaxtrain after --"
    [[ " all $verb " == *" ${readers_of[$flag]} "* || " ${readers_of[$flag]} " == *" $verb "* ]] ||
      die 2 "--$flag is read by ${readers_of[$flag]// /, }, not by $verb; leave it out"
    if [[ $word == *=* ]]; then
      printf -v "$flag" '%s' "${word#*=}"
    elif [[ ${defaults[$flag]} == false ]]; then
      printf -v "$flag" true
    else
      die 2 "--$flag has no value; write --$flag=VALUE"
    fi
  done
  check_settings "$verb"
}

check_settings() { # verb
  local flag file
  for flag in "${!defaults[@]}"; do
    if [[ ${defaults[$flag]} == false ]]; then
      [[ ${!flag} =~ ^(true|false)$ ]] || die 2 "$flag=${!flag} is not true or false"
    elif [[ ${defaults[$flag]} =~ ^[0-9]+$ && $flag/${!flag} != worker/all ]]; then
      [[ ${!flag} =~ ^[0-9]{1,6}$ ]] || die 2 "$flag=${!flag} is not a whole number; write $flag=${defaults[$flag]}"
    fi
  done
  [[ -n $name ]] || die 2 "no name; write --name=NAME or set TPU_NAME"
  [[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    die 2 "name=$name is no name for a VM; use small letters, digits and -, such as pod-1"
  [[ -n $zone ]] || die 2 "no zone; write --zone=ZONE or set TPU_ZONE"
  [[ $extras =~ ^[a-z0-9,-]*$ ]] || die 2 "extras=$extras is no list of extras; write extras=tpu,gcs"
  if [[ $1 == create ]]; then choose_runtime; fi
  subnetwork='' internal_only=$internal_ip # for which the flags of train are those of the VM
  local IFS=:
  sent=()
  config_name=$config
  if [[ $config == */* || $config == *.py || $config == *.json ]]; then
    sent=("$config")
    config_name=${config##*/}
  fi
  # shellcheck disable=SC2206 # to be parted at the colons
  sent+=($files)
  for file in "${sent[@]}"; do
    [[ -f $file ]] || die 2 "$file is no file here; mend --config or --files, or use a packaged config such as mnist_mlp"
  done
  common=("--zone=$zone" ${project:+"--project=$project"} --quiet)
}

choose_runtime() {
  [[ -n $accelerator_type ]] || die 2 "no accelerator_type; write --accelerator_type=TYPE, such as v5litepod-16"
  [[ -z $runtime_version ]] || return 0
  case $accelerator_type in
    v[234]-*) runtime_version=tpu-ubuntu2204-base ;;
    v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime_version=v2-alpha-tpuv5 ;;
    v6e-*) runtime_version=v2-alpha-tpuv6e ;;
    tpu7*) die 2 "accelerator_type=$accelerator_type has no TPU VMs; use scripts/jobset.yaml on GKE" ;;
    *) die 2 "accelerator_type=$accelerator_type is not known here; write --runtime_version=VERSION as well" ;;
  esac
}
