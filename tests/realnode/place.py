"""Where a node of a test keeps what: one folder for its work, which goes with it, and one for its logs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build/tools"
IMAGES = ROOT / "build/realnode-images"
#: enter.sh says by it that this process is in a node, and in which.
INSIDE = "XPU_REALNODE"


@dataclass(frozen=True)
class Place:
    """The folders of the node of this name."""

    name: str

    @property
    def work(self) -> Path:
        return ROOT / "build/realnode" / self.name

    @property
    def logs(self) -> Path:
        return ROOT / "build/logs/realnode" / self.name

    @property
    def pod_logs(self) -> Path:
        """What containers printed: NAMESPACE_POD_UID/CONTAINER/N.log, as long as there is the pod."""
        return self.logs / "pods"

    @property
    def api(self) -> Path:
        """The API server's working directory."""
        return self.work / "api"

    @property
    def cards(self) -> Path:
        """What the stub of NVIDIA's library reads: instructions of stub/nvml_stub.c, one per line."""
        return self.work / "cards/nvml-stub"

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.work / "kubeconfig"


def this_node() -> Place | None:
    """The node that this process is in; none where enter.sh did not start it."""
    name = os.environ.get(INSIDE)
    return Place(name) if name else None


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
