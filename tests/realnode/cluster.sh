#!/usr/bin/env bash
# Starts the cluster that `make cluster` leaves running, or stops it.
# Usage: cluster.sh start|bare|stop [NAME]   (bare: without agent and pods, to write scenarios on)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name=${2:-cluster}
work=build/realnode/$name
log=build/logs/realnode-$name.log

runs() { [ -e "$work/pid" ] && kill -0 "$(cat "$work/pid")" 2>/dev/null; }

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
  trap 'echo "interrupted"; stop; exit 130' INT TERM
  until [ -e "$work/ready" ] && grep -q '^Logs: ' "$log"; do
    kill -0 "$node" 2>/dev/null || { sleep 1; echo "make cluster: it did not come up; see $log and build/logs/realnode/$name" >&2; exit 1; }
    sleep 0.2
  done
}

stop() {
  runs || { echo "there is no cluster to stop"; return; }
  tests/realnode/enter.sh --stop "$name"
  echo "the cluster is stopped, and nothing of it is left but the logs in build/logs/realnode/$name"
}

case ${1:-} in
  start | bare)
    if runs; then
      echo "the cluster runs already"
      sed -n '/^The cluster stays up/,$p' "$log"
      exit
    fi ;;
esac
case ${1:-} in
  start | stop) "$1" ;;
  bare) start bare ;;
  *) echo "usage: cluster.sh start|bare|stop [NAME]" >&2; exit 2 ;;
esac
