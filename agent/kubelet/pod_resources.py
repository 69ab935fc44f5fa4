"""Which pods have which device IDs, from the kubelet's PodResources API v1."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import anyio
from msgspec import Struct, field

from agent.core.reconciling.reconcile_evidence import Pods

from .kept_channel import KeptChannel
from .kubelet_errors import KubeletError, KubeletRefused, Undecodable
from .protobuf import BYTES, Malformed, decoded, delimited, fields, text
from .rpc import call

LIST = "/v1.PodResourcesLister/List"
GET = "/v1.PodResourcesLister/Get"
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"

#: Fields of one answer. An ID takes four: its entry, its text, its resource and its NUMA node.
#: 250,000 IDs are twice those of the longest list that the kubelet takes.
MAX_FIELDS = 1_000_000
#: Each takes half a kilobyte. 500 pods of 10 containers with devices of 10 resources each make 55,500.
MAX_NAMES = 100_000
#: Of an answer that is longer, no entry is kept: its decoded entries take several times its bytes.
KEPT_BYTES = 512 * 1024
#: Seconds until a kubelet that does not serve Get is tried again: it may have been updated.
GET_AGAIN_AFTER = 3600.0
#: For so many IDs at most, each entry is searched for each of them.
MAX_NEEDLES = 8
ANY_POD = (b"",)

K = TypeVar("K")
V = TypeVar("V")

_Devices = dict[str, set[str]]
_Containers = Mapping[str, Mapping[str, frozenset[str]]]


class PodResources:
    """Asks the kubelet, one call at a time, and slower than the kubelet's rate limit for all clients."""

    def __init__(
        self,
        socket: Path,
        *,
        min_interval: float = 1.0,
        timeout: float = 10.0,
        keep_connection: bool = False,
    ) -> None:
        """`min_interval`, `timeout`: seconds. With `keep_connection`, `close` is to be called at the end."""
        self._kept = KeptChannel(socket) if keep_connection else None
        self._call = partial(call, socket) if self._kept is None else self._kept.call
        self._min_interval = min_interval
        self._timeout = timeout
        self._turn = anyio.Lock()
        self._next = 0.0
        self._get_again_at = 0.0
        #: The last whole answer. Calls at the same time may each decode a new entry; the last to end sets it.
        self._listed = ListedPods()

    async def in_use(self, ids: Collection[str] | None = None, pod: tuple[str, str] | None = None) -> Pods:
        """Return every pod that the kubelet lists, with or without devices.

        The list may be incomplete right after a kubelet restart. It never has plain init containers.

        With `ids`, pods without one of these IDs may be left out: then most of the answer is not decoded,
        and an error in that part is not seen. With `pod`, all pods but this (namespace, name) may be left
        out: then the kubelet is asked for one pod, whose answer does not grow with the node.

        Raises:
            KubeletError: The kubelet did not answer, refused, or its answer cannot be decoded.
        """
        if pod is not None and (found := await self._get(*pod)) is not None:
            return found
        answer = await self._call_in_turn(LIST)
        if ids is None:
            self._listed = await decoded("ListPodResourcesResponse", self._listed.next, answer)
            return self._listed.pods
        if not (needles := needles_in(answer, ids)):
            return MappingProxyType({})
        return await decoded("ListPodResourcesResponse", partial(pods_in_use, needles=needles), answer)

    async def _get(self, namespace: str, name: str) -> Pods | None:
        """One pod, or no pod where the kubelet has none of that name; None where Get is not served.

        Get is on by default since 1.34 (feature KubeletPodResourcesGet; texts of errors from
        pkg/kubelet/apis/podresources/server_v1.go). An answer about another pod, or about none, counts as
        not served: a program in the kubelet's place may know Get by name alone.
        """
        if anyio.current_time() < self._get_again_at:
            return None
        request = delimited(1, name.encode()) + delimited(2, namespace.encode())
        try:
            answer = await self._call_in_turn(GET, request)
            # The answer has its pod where a list has its entries.
            found = await decoded("GetPodResourcesResponse", pods_in_use, answer)
        except KubeletRefused as exc:
            if exc.text == f"pod {name} in namespace {namespace} not found":
                return MappingProxyType({})
            found = None
        except Undecodable:
            found = None
        if found is not None and (namespace, name) in found:
            return found
        self._get_again_at = anyio.current_time() + GET_AGAIN_AFTER
        return None

    async def allocatable(self, resources: Collection[str]) -> frozenset[str]:
        """Return the given resources that have at least one healthy device at the kubelet, free or not.

        Raises:
            KubeletError: The kubelet did not answer, or refused: a kubelet before 1.23 lacks the call.
        """
        answer = await self._call_in_turn(ALLOCATABLE)
        return frozenset(it for it in resources if lists_one_of(it, answer))

    async def until_free(self) -> None:
        """Return once a call would not have to wait for the calls before it."""
        async with self._turn:
            await anyio.sleep_until(self._next)

    def close(self) -> None:
        """End a connection that is kept."""
        if self._kept is not None:
            self._kept.close()

    async def _call_in_turn(self, method: str, request: bytes = b"") -> bytes:
        async with self._turn:
            await anyio.sleep_until(self._next)
            try:
                return await self._answer(method, request)
            finally:
                self._next = anyio.current_time() + self._min_interval

    async def _answer(self, method: str, request: bytes) -> bytes:
        try:
            return await self._call(method, request, timeout=self._timeout)
        except KubeletRefused as exc:
            if exc.status != "RESOURCE_EXHAUSTED":
                raise
            raise KubeletError(f"PodResources is called too often on this node: {exc.text}") from exc


def lists_one_of(resource: str, data: bytes) -> bool:
    """Whether an AllocatableResourcesResponse has a device of the resource.

    Searches the bytes, because decoding a list of 58,000 takes half a second. Go writes the fields of a
    ContainerDevices in order: first the resource's name, then its IDs.
    """
    return delimited(1, resource.encode()) + bytes([2 << 3 | BYTES]) in data


def needles_in(data: bytes, ids: Collection[str]) -> list[bytes]:
    """Bytes in `data` to search for: each entry with one of the IDs contains at least one of them.

    Protocol buffers keep a text in one piece, so that a search finds each ID, and others that begin alike.
    """
    if len(ids) > MAX_NEEDLES:  # memory units, nearly always of one card
        ids = [os.path.commonprefix(list(ids))]  # noqa: RUF071 IDs are no paths
    return [needle for needle in (it.encode() for it in ids) if needle in data]


def pods_in_use(data: bytes, needles: Collection[bytes] = ANY_POD) -> Pods:
    """Decode a ListPodResourcesResponse strictly, and skip the fields that the agent does not use.

    The kubelet lists one entry for each device and NUMA node, and up to 1.33 also pods that have ended. A
    name can come twice; its devices are then put together.

    Entries that contain none of the `needles` are skipped undecoded.
    """
    listing = _Listing({})
    listing.read(data, needles)
    return MappingProxyType(listing.pods)


class _PodEntry(Struct, frozen=True):
    """The entry of a pod in an answer."""

    pod: tuple[str, str]
    containers: _Containers
    #: What decoding it counted.
    fields: int
    names: int


class ListedPods(Struct, frozen=True):
    """A decoded answer with the bytes of its entries: of the next answer only new entries are decoded."""

    pods: Pods = field(default_factory=lambda: MappingProxyType({}))
    entries: Mapping[bytes, _PodEntry] = field(default_factory=dict)

    def next(self, data: bytes) -> ListedPods:
        """Decode the next answer as `pods_in_use` does. Entries that this answer lacks are dropped."""
        listing = _Listing(self.entries)
        listing.read(data, ANY_POD)
        entries = listing.entries if len(data) <= KEPT_BYTES else {}
        return ListedPods(MappingProxyType(listing.pods), entries)


def _frozen(containers: Mapping[str, _Devices]) -> _Containers:
    return MappingProxyType(
        {
            name: MappingProxyType({resource: frozenset(ids) for resource, ids in devices.items()})
            for name, devices in containers.items()
        }
    )


def _joined(one: _Containers, other: _Containers) -> _Containers:
    """The containers of both entries of one name."""
    joined: dict[str, _Devices] = {}
    for name, devices in chain(one.items(), other.items()):
        for resource, ids in devices.items():
            joined.setdefault(name, {}).setdefault(resource, set()).update(ids)
        joined.setdefault(name, {})
    return _frozen(joined)


class _Listing:
    """Decoder with a bound on memory: a decoded answer can take fifty times its bytes."""

    def __init__(self, known: Mapping[bytes, _PodEntry]) -> None:
        """`known`: the bytes of entries to these entries, which are not decoded again."""
        self.pods: dict[tuple[str, str], _Containers] = {}
        self.entries: dict[bytes, _PodEntry] = {}
        self._known = known
        self._fields_read = self._names = 0

    def read(self, data: bytes, needles: Collection[bytes]) -> None:
        wants_all = needles is ANY_POD
        for number, value in self._fields(data):
            if number == 1 and (wants_all or any(it in value for it in needles)):
                self._add_entry(value)

    def _add_entry(self, data: bytes) -> None:
        entry = self._known.get(data)
        if entry is None:
            fields_before, names_before = self._fields_read, self._names
            pod, containers = self._decode_pod(data)
            entry = _PodEntry(pod, containers, self._fields_read - fields_before, self._names - names_before)
        else:
            self._fields_read += entry.fields  # compared with its bound at the next field that is read
            self._count_names(entry.names)
        self.entries[data] = entry
        before = self.pods.get(entry.pod)
        self.pods[entry.pod] = entry.containers if before is None else _joined(before, entry.containers)

    def _decode_pod(self, data: bytes) -> tuple[tuple[str, str], _Containers]:
        name, namespace, found = "", "", []
        for number, value in self._fields(data):
            if number == 1:
                name = text(value)
            elif number == 2:
                namespace = text(value)
            elif number == 3:
                found.append(value)
        self._count_names(1)
        containers: dict[str, _Devices] = {}
        for container in found:
            self._add_container(containers, container)
        return (namespace, name), _frozen(containers)

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
        """The fields of type bytes."""
        for number, value in fields(data):
            self._fields_read += 1
            if self._fields_read > MAX_FIELDS:
                what = f"the kubelet's list has more than {MAX_FIELDS} fields, four for an ID of a container"
                raise Malformed(f"{what}; device plugins of this node with fewer IDs would help")
            if isinstance(value, bytes):
                yield number, value

    def _count_names(self, count: int) -> None:
        self._names += count
        if self._names > MAX_NAMES:
            raise Malformed(f"more than {MAX_NAMES} pods, containers and their resources")

    def _at(self, table: dict[K, V], key: K, make: Callable[[], V]) -> V:
        if key not in table:
            self._count_names(1)
            table[key] = make()
        return table[key]
