"""Which pod holds which device IDs, as the kubelet's PodResources API v1 lists it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import anyio

from agent.core.allocation.reconcile_evidence import Pods

from .kubelet_errors import KubeletError, KubeletRefused
from .protobuf import BYTES, Malformed, decoded, delimited, fields, text
from .rpc import call

LIST = "/v1.PodResourcesLister/List"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"

#: Fields of the whole answer, four for an ID: its entry with its text, its resource and its NUMA node.
#: 250,000 IDs are twice those of the longest list that the kubelet takes.
MAX_FIELDS = 1_000_000
#: Each takes half a kilobyte. 500 pods of 10 containers that each have something of 10 resources are 55,500.
MAX_NAMES = 100_000

K = TypeVar("K")
V = TypeVar("V")

_Devices = dict[str, set[str]]
_Pods = dict[tuple[str, str], dict[str, _Devices]]


class PodResources:
    """Asks the kubelet, one call at a time and never faster than its limit for all callers allows."""

    def __init__(self, socket: Path, *, min_interval: float = 1.0, timeout: float = 10.0) -> None:
        self._socket = socket
        self._min_interval = min_interval
        self._timeout = timeout
        self._turn = anyio.Lock()
        self._next = 0.0

    async def in_use(self) -> Pods:
        """Every pod that the kubelet lists, those without devices too.

        Right after a kubelet restart the list may be incomplete. Plain init containers are never listed.

        Raises:
            KubeletError: The kubelet did not answer, refused, or answered something undecodable.
        """
        return await decoded("ListPodResourcesResponse", pods_in_use, await self._asked(LIST))

    async def allocatable(self, resources: Collection[str]) -> frozenset[str]:
        """Those of the resources of which the kubelet has a healthy device, free or not.

        Raises:
            KubeletError: The kubelet did not answer, or refused: it is older than 1.23.
        """
        answer = await self._asked(ALLOCATABLE)
        return frozenset(it for it in resources if lists_one_of(it, answer))

    async def _asked(self, method: str) -> bytes:
        async with self._turn:
            await anyio.sleep_until(self._next)
            try:
                return await self._answer(method)
            finally:
                self._next = anyio.current_time() + self._min_interval

    async def _answer(self, method: str) -> bytes:
        try:
            return await call(self._socket, method, b"", timeout=self._timeout)
        except KubeletRefused as exc:
            if exc.status != "RESOURCE_EXHAUSTED":
                raise
            raise KubeletError(f"PodResources is asked too often on this node: {exc.text}") from exc


def lists_one_of(resource: str, data: bytes) -> bool:
    """Whether an AllocatableResourcesResponse has a device of the resource.

    Looked for, not decoded: a list of 58,000 would take half a second. Go writes a ContainerDevices in the
    order of its fields, first the resource's name, then its IDs.
    """
    return delimited(1, resource.encode()) + bytes([2 << 3 | BYTES]) in data


def pods_in_use(data: bytes) -> Pods:
    """Decode a ListPodResourcesResponse; strict, and blind to what nobody here needs.

    The kubelet lists one entry per device and NUMA node, and up to 1.33 also pods that are over: a name can
    come twice, its devices are put together.
    """
    listing = _Listing()
    listing.read(data)
    return MappingProxyType({key: _frozen(containers) for key, containers in listing.pods.items()})


def _frozen(containers: Mapping[str, _Devices]) -> Mapping[str, Mapping[str, frozenset[str]]]:
    return MappingProxyType(
        {
            name: MappingProxyType({resource: frozenset(ids) for resource, ids in devices.items()})
            for name, devices in containers.items()
        }
    )


class _Listing:
    """What is listed, as far as memory for it goes: an answer of the same bytes can take fifty times them."""

    def __init__(self) -> None:
        self.pods: _Pods = {}
        self._fields_read = self._names = 0

    def read(self, data: bytes) -> None:
        for number, value in self._fields(data):
            if number == 1:
                self._add_pod(value)

    def _add_pod(self, data: bytes) -> None:
        name, namespace, found = "", "", []
        for number, value in self._fields(data):
            if number == 1:
                name = text(value)
            elif number == 2:
                namespace = text(value)
            elif number == 3:
                found.append(value)
        containers = self._at(self.pods, (namespace, name), dict)
        for container in found:
            self._add_container(containers, container)

    def _add_container(self, containers: dict[str, _Devices], data: bytes) -> None:
        name, found = "", []
        for number, value in self._fields(data):
            if number == 1:
                name = text(value)
            elif number == 2:
                found.append(value)
        devices = self._at(containers, name, dict)
        for one in found:
            self._add_devices(devices, one)

    def _add_devices(self, devices: _Devices, data: bytes) -> None:
        resource, ids = "", []
        for number, value in self._fields(data):
            if number == 1:
                resource = text(value)
            elif number == 2:
                ids.append(text(value))
        self._at(devices, resource, set).update(ids)

    def _fields(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Those that are no numbers."""
        for number, value in fields(data):
            self._fields_read += 1
            if self._fields_read > MAX_FIELDS:
                what = f"the kubelet's list has more than {MAX_FIELDS} fields, four for an ID of a container"
                raise Malformed(f"{what}; device plugins of this node with fewer IDs would help")
            if isinstance(value, bytes):
                yield number, value

    def _at(self, table: dict[K, V], key: K, make: Callable[[], V]) -> V:
        if key not in table:
            self._names += 1
            if self._names > MAX_NAMES:
                raise Malformed(f"more than {MAX_NAMES} pods, containers, and resources of theirs")
            table[key] = make()
        return table[key]
