#!/usr/bin/env bash
# Render the chart into plain manifests. To stdout with --print, which tests compare with what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
HELM=${HELM:-build/tools/helm}

render() {  # render FILE-OF-VALUES
  cat <<'END'
# Made by deploy/manifests.sh from deploy/chart/xpu-agent; change that, and run `make manifests`.
apiVersion: v1
kind: Namespace
metadata:
  name: xpu-agent
  labels:
    # The agent's volumes are directories of the host.
    pod-security.kubernetes.io/enforce: privileged
END
  # Kubernetes 1.30 is the oldest that has everything in them; helm's own marks mean nothing without helm.
  "$HELM" template xpu-agent deploy/chart/xpu-agent --namespace xpu-agent --kube-version 1.30.0 "$@" |
    grep -vE '^ *(helm\.sh/chart:|app\.kubernetes\.io/managed-by: Helm)'
}

uninstall() {  # uninstall OPTIONS-OF-HELM
  echo "# Made by deploy/manifests.sh: removes from the nodes what survives the agent's end. Apply it after the agent's own"
  echo "# manifests are deleted, wait for its rollout, then delete it."
  "$HELM" template xpu-agent deploy/chart/xpu-agent --namespace xpu-agent --kube-version 1.30.0 \
    --set uninstall.hook=true --show-only templates/uninstall-nodes.yaml "$@" |
    grep -vE '^ *(helm\.sh/|app\.kubernetes\.io/managed-by: Helm|annotations:$)'
}

uninstall_koordinator() {  # the same with koordlet's directory, and with the rights to take its cards out of the Device
  uninstall --set koordinator.enabled=true --show-only templates/uninstall-rights.yaml
}

if [ "${1:-}" = --print ]; then
  "$2"
else
  mkdir -p deploy/manifests
  render >deploy/manifests/xpu-agent.yaml
  uninstall >deploy/manifests/uninstall.yaml
  uninstall_koordinator >deploy/manifests/uninstall-koordinator.yaml
fi
