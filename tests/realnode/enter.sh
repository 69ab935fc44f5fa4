#!/usr/bin/env bash
# Runs a command on a node of its own: own mounts, processes and cgroups, the network of the host.
# Usage: enter.sh NAME COMMAND...   (nodes of different names run beside each other)
#        enter.sh --join NAME COMMAND...   (in the node of that name, which runs)
#        enter.sh --stop NAME              (kills it with all that it runs)
# When the command ends, however it ends, every process that it left is killed, and mounts and cgroups go.
# What the node writes below build/ stays: logs in build/logs/realnode/NAME. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

refuse() { echo "not run: a real node. $*" >&2; exit 1; }

hierarchies() {  # MOUNTPOINT TYPE OPTIONS of every cgroup hierarchy; version 1 has many, version 2 one
  awk '{for (i = 7; $i != "-"; i++); if ($(i + 1) ~ /^cgroup2?$/) print $5, $(i + 1), $(i + 3)}' /proc/self/mountinfo
}

cgroup_of() {  # cgroup_of TYPE OPTIONS: where this process is in that hierarchy, below its mount
  local numbered controllers path
  while IFS=: read -r numbered controllers path; do
    if [ "$1" = cgroup2 ]; then
      [ "$numbered" = 0 ] && { echo /; return 0; }  # below the root: a group with processes has no controllers to give
    elif [[ ",$2," == *",$controllers,"* ]]; then
      echo "${path%/}"
      return 0  # said, for in a trap it would be what was before
    fi
  done </proc/self/cgroup
}

move_into_cgroups() {
  local at kind options group
  while read -r at kind options; do
    group=$at$(cgroup_of "$kind" "$options")
    group=${group%/}/$1
    mkdir -p "$group"
    for it in cpuset.cpus cpuset.mems; do  # empty at first in version 1, and nobody gets in
      if [ "$kind" = cgroup ] && [ -e "$group/$it" ]; then cat "${group%/*}/$it" >"$group/$it"; fi
    done
    echo "$BASHPID" >"$group/cgroup.procs"
  done < <(hierarchies)
}

remove_cgroups() {
  local at kind options group tries
  while read -r at kind options; do
    group=$at$(cgroup_of "$kind" "$options")/$1
    for tries in {1..100}; do  # the last of its processes may still be dying
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    [ ! -d "$group" ] || echo "enter.sh: $group stays, for there are processes in it (tried $tries times)" >&2
  done < <(hierarchies)
}

inside() {  # the first process of the node: makes it, runs the command and buries orphans
  local dir=$1 at kind options
  shift
  mount --make-rshared /
  # The host's directories as they are; what is written there stays in this node.
  mkdir -p "$dir/upper"
  mount -t tmpfs -o mode=755 node "$dir/upper"
  for at in /etc /var /usr/lib /dev; do
    mkdir -p "$dir/upper$at" "$dir/upper/work$at"
    mount -t overlay -o "lowerdir=$at,upperdir=$dir/upper$at,workdir=$dir/upper/work$at" node "$at"
  done
  mount -t devpts -o ptmxmode=666 devpts /dev/pts
  mount -t tmpfs -o mode=1777 node /dev/shm
  mount -t tmpfs -o mode=755 node /run
  for at in /var/lib/kubelet /var/lib/containerd; do  # the runtime wants a file system to lay its own overlays on
    mkdir -p "$at"
    mount -t tmpfs -o mode=755 node "$at"
  done
  while read -r at kind options; do
    umount "$at"
    mount -t "$kind" -o "${options#rw,}" "$kind" "$at"
    if [ "$kind" = cgroup2 ]; then
      mkdir -p "$at/init" && echo $$ >"$at/init/cgroup.procs"
      for it in $(cat "$at/cgroup.controllers"); do echo "+$it" >"$at/cgroup.subtree_control"; done
    fi
  done < <(hierarchies)
  "$@" || exit
}

first_process() { pgrep -P "$(cat "$dir/pid")"; }

if [ "$1" = --inside ]; then shift; inside "$@"; exit; fi
[ "$(id -u)" = 0 ] || refuse "It needs root, for mounts, cgroups and containers."
verb=
case $1 in --join | --stop) verb=$1; shift ;; esac
name=$1
shift
dir=$PWD/build/realnode/$name
export XPU_REALNODE=$name PATH=$PWD/build/tools:$PATH
if [ -n "$verb" ]; then
  [ -e "$dir/pid" ] || refuse "There is no node $name to ${verb#--}: no $dir/pid."
  if [ "$verb" = --stop ]; then
    kill -KILL "$(first_process)"  # and with it all others
    flock "build/realnode/$name.lock" true  # the enter.sh that runs it has cleaned up
    exit
  fi
  exec nsenter --target "$(first_process)" --mount --pid --cgroup --wd="$PWD" "$@"
fi

! pgrep -x kubelet >/dev/null || refuse "A kubelet runs here (process $(pgrep -x kubelet | head -n 1)); this is no machine to try one on."
[ ! -S /var/lib/kubelet/device-plugins/kubelet.sock ] || refuse "A kubelet lives here: /var/lib/kubelet/device-plugins/kubelet.sock."
[[ $name =~ ^[a-z0-9-]{1,20}$ ]] || refuse "$name is no name of a node: lower case letters, digits and -, at most 20."
mkdir -p "$dir"
exec 9>"build/realnode/$name.lock"
flock -n 9 || refuse "A node $name runs already; take another name."

leave() {
  remove_cgroups "xpu-realnode-$name"
  rm -rf "$dir"
}
trap leave EXIT
trap : INT TERM  # the command has them too, and ends first
leave && mkdir -p "$dir"
(
  move_into_cgroups "xpu-realnode-$name"
  echo "$BASHPID" >"$dir/pid"
  # Killed with the shell that waits for it; what it runs is killed with it.
  exec 9>&- setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    --cgroup -- "${BASH_SOURCE[0]}" --inside "$dir" "$@"
)
