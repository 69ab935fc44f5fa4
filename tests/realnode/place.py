"""Where a node of a test keeps what: one folder for its work, which goes with it, and one for its logs."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build/tools"
IMAGES = ROOT / "build/realnode-images"
#: enter.sh says by it that this process is in a node, and in which.
INSIDE = "XPU_REALNODE"
#: First and last of the ports that a socket gets that asks for no certain one.
PORTS_OF_ANY = Path("/proc/sys/net/ipv4/ip_local_port_range")


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
    def ready(self) -> Path:
        """There as soon as the cluster that is kept up in the node is complete."""
        return self.work / "ready"

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.work / "kubeconfig"


def this_node() -> Place | None:
    """The node that this process is in; none where enter.sh did not start it."""
    name = os.environ.get(INSIDE)
    return Place(name) if name else None


def free_ports(count: int) -> list[int]:
    """So many ports of loopback that nobody listens on, all different.

    Who listens on them comes later, so they are none of those that the kernel gives to who asks for any.
    """
    first, last = map(int, PORTS_OF_ANY.read_text().split())
    others = [port for port in range(10_000, 65_536) if not first <= port <= last]
    random.shuffle(others)  # nodes that come up at the same time do not meet
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in others:
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken
                probe.bind(("127.0.0.1", port))
                found.append(port)
    assert len(found) == count, f"{count} ports are needed, and outside of {PORTS_OF_ANY} are {found}"
    return found
