#!/usr/bin/env bash
# Starts the cluster that `make cluster` leaves running, or stops it.
# Usage: cluster.sh start|bare|stop [NAME]   (bare: without agent and pods, to write scenarios on)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name=${2:-cluster}
work=build/realnode/$name
log=build/logs/realnode-$name.log

start() {
  local node
  mkdir -p build/logs
  : >"$log"
  # Of a session of its own: Ctrl-C here does not reach it.
  PYTHONPATH=tests setsid nohup tests/realnode/enter.sh "$name" .venv/bin/python -m realnode "${1:-}" >"$log" 2>&1 </dev/null &
  node=$!
  tail -n +1 -f "$log" &
  shown=$!
  trap "kill $shown" EXIT
  until [ -e "$work/ready" ] && grep -q '^Logs: ' "$log"; do
    kill -0 "$node" 2>/dev/null || { sleep 1; echo "make cluster: it did not come up; see $log and build/logs/realnode/$name" >&2; exit 1; }
    sleep 0.2
  done
}

stop() {
  [ -e "$work/pid" ] || { echo "no cluster $name runs"; return; }
  tests/realnode/enter.sh --stop "$name"
  echo "the cluster $name is stopped, and nothing of it is left but the logs in build/logs/realnode/$name"
}

case ${1:-} in
  start | stop) "$1" ;;
  bare) start bare ;;
  *) echo "usage: cluster.sh start|bare|stop [NAME]" >&2; exit 2 ;;
esac
