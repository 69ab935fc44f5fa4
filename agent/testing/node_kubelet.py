"""The interface of a kubelet for scenarios, real or simulated."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    #: Read from a file on the node: the kubelet knows it without the API server.
    static: bool = False


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

    @property
    def checkpoint(self) -> Path:
        """The file with the kubelet's device assignments."""

    @property
    def refused(self) -> Mapping[str, Admission]:
        """By UID, the pods that the last start, or the return of the API server, did not take back."""

    async def admit(self, pod: Pod) -> Admission:
        """Admit the pod as the kubelet does: init containers first, one resource at a time."""

    async def delete(self, uid: str) -> None:
        """Forget the pod; its devices become free when the kubelet next counts them.

        An admission of this pod that is under way ends first, as one loop of the kubelet does both. While the
        API server is away only the end of a static pod is noticed; other ends are noticed when it is back.
        """

    async def finish(self, uid: str) -> None:
        """End the pod's containers; the pod is inactive but known until it is deleted."""

    async def capacity(self) -> Mapping[str, Capacity]:
        """Count what each registered resource offers now."""

    async def devices(self, uid: str) -> Mapping[str, Mapping[str, frozenset[str]]]:
        """The IDs that each container of the pod holds, by resource."""

    async def run_options(self, uid: str, container: str) -> RunOptions:
        """What a start (or restart) of the container gets; calls PreStartContainer where asked for."""

    async def health(self, uid: str) -> Mapping[str, str]:
        """allocatedResourcesStatus of the pod: device ID to Healthy or Unhealthy."""

    async def kill(self) -> None:
        """Die without cleanup, sockets left in place; nothing is answered until `start`."""

    async def start(self, *, readmit: bool = False, api_away: bool = False) -> None:
        """Begin a new life: plugin sockets are wiped, pods and checkpoint stay.

        With `readmit` every pod is judged again before the sources are ready, as on a node; with
        `api_away` the kubelet knows its static pods alone, and is ready with no source, until `api_back`.
        """

    async def restart(self, *, down: float = 0.0, readmit: bool = False, api_away: bool = False) -> None:
        """Kill the kubelet if it lives, leave it down for a while, start it."""

    async def api_back(self, *, readmit: bool = False) -> None:
        """Let the kubelet hear of the pods that were not deleted meanwhile; its sources are ready then."""

    async def recreate_directory(self) -> None:
        """Restart on a plugin directory made again; the checkpoint is lost with the old one."""


class Arrivals:
    """The pods under admission. A kubelet processes a pod's end only after the pod's admission."""

    def __init__(self) -> None:
        self._judged: dict[str, asyncio.Event] = {}

    @contextmanager
    def of(self, uid: str) -> Iterator[None]:
        judged = self._judged[uid] = asyncio.Event()
        try:
            yield
        finally:
            self._judged.pop(uid, None)
            judged.set()

    async def judged(self, uid: str) -> None:
        """Wait for the pod's admission, if one is under way."""
        await asyncio.sleep(0)  # what the caller has just begun counts
        if uid in self._judged:
            await self._judged[uid].wait()
