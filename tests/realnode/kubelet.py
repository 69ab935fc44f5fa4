"""The kubelet of the node, and the address that its Node gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .containerd import SOCKET
from .place import Place
from .unit import Unit

NODE = "node-1"
#: Who it is to the API server.
USER = f"system:node:{NODE}"
GROUP = "system:nodes"


def kubelet(place: Place, binary: Path, port: int) -> Unit:
    """Write its configuration, and return it, not started."""
    config = place.work / "kubelet.json"
    config.write_text(json.dumps(_config(place, port)))
    command = [
        binary,
        "kubelet",
        "--config",
        config,
        "--kubeconfig",
        kubeconfig(place),
        "--hostname-override",
        NODE,
    ]
    command += ["--cert-dir", place.work / "kubelet-certs"]
    # A loopback address is refused, and without one there are no logs to be read. As a cloud's part it is ours
    # to say, see `address`.
    return Unit(place, "kubelet", [*command, "--cloud-provider", "external"])


def kubeconfig(place: Place) -> Path:
    """Of USER."""
    return place.work / "kubelet.kubeconfig"


def address() -> str:
    """The patch of the Node's status that a cloud's controller would make."""
    return json.dumps({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}})


def _config(place: Place, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "clusterDNS": ["10.0.0.10"],  # nobody is there; without it each pod has an event about that
        "podLogsDir": str(place.pod_logs),
        "volumePluginDir": str(place.work / "volume-plugins"),
        # What machines for tests have and have not.
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        # A test waits for each of these.
        "nodeStatusUpdateFrequency": "1s",
        "syncFrequency": "1s",
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
    }
