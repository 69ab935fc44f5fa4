"""The kubelet of the node, and the address that its Node gets."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from agent.kubelet.pod_resources import PodResources

from .containerd import SOCKET
from .place import Place
from .unit import Unit
from .until import until

NODE = "node-1"
DIRECTORY = Path("/var/lib/kubelet")
#: Who it is to the API server.
USER = f"system:node:{NODE}"
GROUP = "system:nodes"


def kubelet(place: Place, binary: Path, port: int) -> Unit:
    """Write its configuration, and return it, not started."""
    config = place.work / "kubelet.json"
    config.write_text(json.dumps(_config(place, port)))
    command: list[str | Path] = [
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
    # A loopback address is refused, and without one there are no logs to be read. Of a cloud's node it is
    # not the kubelet that says it, see `address`.
    return Unit(place, "kubelet", [*command, "--cloud-provider", "external"])


def kubeconfig(place: Place) -> Path:
    """Of USER."""
    return place.work / "kubelet.kubeconfig"


def api_server_flags(place: Place) -> list[str]:
    """What the API server needs to read logs from the kubelet, which the host's other users must not."""
    certificate, key = _caller(place)
    subject = ["-subj", "/O=system:masters/CN=kube-apiserver", "-days", "2"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command = ["openssl", "req", *kind, *subject, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    # Node: what a kubelet may, beside the RBAC that it has anyway.
    options = {"kubelet-client-certificate": certificate, "kubelet-client-key": key}
    return ["--authorization-mode=Node", *(f"--{name}={it}" for name, it in options.items())]


def address() -> str:
    """The patch of the Node's status that a cloud's controller would make."""
    return json.dumps({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}})


async def forget() -> None:
    """Have the kubelet forget all devices of pods; no pod that has some is left."""
    asked = PodResources(DIRECTORY / "pod-resources/kubelet.sock", min_interval=0.0)

    async def holders() -> list[tuple[str, str]]:
        # It looks who is gone when it is asked, and writes that down when it has another reason to.
        return [pod for pod, containers in (await asked.in_use()).items() if any(containers.values())]

    await until(holders, lambda it: not it, "the kubelet to see that no pod has devices")
    (DIRECTORY / "device-plugins/kubelet_internal_checkpoint").unlink(missing_ok=True)


def _caller(place: Place) -> tuple[Path, Path]:
    """Certificate and key of the API server; the certificate vouches for itself."""
    return place.work / "kubelet-caller.crt", place.work / "kubelet-caller.key"


def _config(place: Place, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(_caller(place)[0])}},
        "authorization": {"mode": "Webhook"},
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
