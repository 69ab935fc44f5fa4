"""The words scenarios use to speak with a kubelet, real or simulated."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod; `limits` counts device IDs per resource name."""

    limits: Mapping[str, int]
    name: str = "main"
    init: bool = False
    #: An init container with restartPolicy Always (a sidecar).
    restartable: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    containers: tuple[Container, ...]
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Admission:
    """What the kubelet said of a pod; `reason` and `message` are its own words."""

    admitted: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many device IDs of a resource the kubelet counts, and how many of them are healthy."""

    capacity: int
    allocatable: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the kubelet hands to the runtime for one container (the cached Allocate answers)."""

    env: Mapping[str, str]
    annotations: Mapping[str, str]
    #: (host path, container path, permissions)
    devices: tuple[tuple[str, str, str], ...] = ()
    #: (host path, container path, read only)
    mounts: tuple[tuple[str, str, bool], ...] = ()
    cdi_devices: tuple[str, ...] = ()


class NodeKubelet(Protocol):
    """A kubelet as tests see it: SimKubelet in memory, or the real device manager in a process."""

    @property
    def plugin_dir(self) -> Path:
        """Where device plugins put their sockets and find kubelet.sock."""

    @property
    def pod_resources_socket(self) -> Path: ...

    async def admit(self, pod: Pod) -> Admission:
        """Admit the pod as the kubelet does: init containers first, one resource at a time."""

    async def delete(self, uid: str) -> None:
        """Forget the pod; its devices are noticed as free when the kubelet next looks."""

    async def capacity(self) -> Mapping[str, Capacity]:
        """Count what each registered resource offers now."""

    async def devices(self, uid: str) -> Mapping[str, Mapping[str, frozenset[str]]]:
        """The IDs that each container of the pod holds, by resource."""

    async def run_options(self, uid: str, container: str) -> RunOptions:
        """What a start (or restart) of the container gets; calls PreStartContainer where asked for."""

    async def health(self, uid: str) -> Mapping[str, str]:
        """allocatedResourcesStatus of the pod: device ID to Healthy or Unhealthy."""

    async def restart(self) -> None:
        """Stop and start the kubelet: plugin sockets are wiped, pods and checkpoint stay."""
