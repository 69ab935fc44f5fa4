#!/usr/bin/env bash
# Runs a command on a node of its own: own mounts, processes and cgroups, the network of the host.
# Usage: enter.sh NAME COMMAND...   (nodes of different names run beside each other)
#        enter.sh --join NAME COMMAND...   (in the node of that name, which runs)
#        enter.sh --stop NAME              (kills it with all that it runs)
# When the command ends, however it ends, every process that it left is killed, and mounts and cgroups go.
# What the node writes below build/ stays: logs in build/logs/realnode/NAME. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly KUBELET=/var/lib/kubelet/device-plugins/kubelet.sock

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
  for at in /etc /var /usr/lib /usr/local /dev; do
    mkdir -p "$dir/upper$at" "$dir/upper/work$at"
    mount -t overlay -o "lowerdir=$at,upperdir=$dir/upper$at,workdir=$dir/upper/work$at" node "$at"
  done
  mount -t devpts -o ptmxmode=666 devpts /dev/pts
  mount -t tmpfs -o mode=1777 node /dev/shm
  mount -t tmpfs -o mode=755 node /run
  # The runtime wants a file system to lay its own overlays on; an agent would go on from what the host's has kept.
  for at in /var/lib/kubelet /var/lib/containerd /var/lib/xpu-agent; do
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

first_process() {  # of the node, as the host sees it
  [ -e "$dir/pid" ] && pgrep -P "$(cat "$dir/pid")" || refuse "There is no node $name here that runs."
}

leave() {
  remove_cgroups "$group"
  rm -rf "$dir"
}

run() {
  ! pgrep -x kubelet >/dev/null || refuse "A kubelet runs here, process $(pgrep -x kubelet | head -n 1)."
  [ ! -S "$KUBELET" ] || refuse "A kubelet lives here: $KUBELET."
  [[ $name =~ ^[a-z0-9-]{1,20}$ ]] || refuse "$name is no name for one: lower case letters, digits and -, at most 20."
  mkdir -p "$dir"
  exec 9>"build/realnode/$name.lock"
  flock -n 9 || refuse "One of the name $name runs already; take another."
  trap leave EXIT
  trap : INT TERM  # the command has them too, and ends first
  leave && mkdir -p "$dir"
  (
    move_into_cgroups "$group"
    echo "$BASHPID" >"$dir/pid"
    # Killed with the shell that waits for it; what it runs is killed with it.
    exec 9>&- setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
      --cgroup -- tests/realnode/enter.sh --inside "$dir" "$@"
  )
}

main() {
  if [ "$1" = --inside ]; then shift; inside "$@"; return; fi
  [ "$(id -u)" = 0 ] || refuse "It needs root, for mounts, cgroups and containers."
  local verb=
  case $1 in --join | --stop) verb=$1; shift ;; esac
  name=$1 dir=$PWD/build/realnode/$1
  group=xpu-realnode-$name-$(cksum <<<"$PWD" | cut -d ' ' -f 1)  # another checkout may have one of that name
  shift
  export XPU_REALNODE=$name PATH=$PWD/build/tools:$PATH
  local first
  case $verb in
    --join)
      first=$(first_process)
      exec nsenter --target "$first" --mount --pid --cgroup --wd="$PWD" "$@" ;;
    --stop)
      first=$(first_process)
      kill -KILL "$first"  # and with it all others
      flock "build/realnode/$name.lock" true ;;  # the enter.sh that runs it has cleaned up
    *) run "$@" ;;
  esac
}

# On one line: a shell that runs a node for hours reads nothing more of this file.
main "$@"; exit
