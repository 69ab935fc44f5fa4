"""Mirrors a list of the API server: lists and watches, and lists again where the watch lost its place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Generic, TypeVar

from msgspec import Struct

from agent.cluster.api_errors import ApiAway, ApiError, Busy, Forbidden, Gone, TooLong
from agent.cluster.api_protocol import Api, Object, WatchMessage
from agent.cluster.object_fields import text
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.scheduler_api.document_parts import part_of

T = TypeVar("T")
#: Reduces an object to what is kept; None drops it. Must not raise for any object.
Keep = Callable[[Object], T | None]

#: The longest pause that the server's Retry-After is followed for, in seconds.
PATIENCE = 600.0
#: Pages of a list at most: one node has no hundred thousand objects.
PAGES = 400
#: Items of a page at least: no cluster has ten objects above 800 KiB each.
LEAST_PAGE = 10
#: Digits of a resourceVersion of 64 bits.
MAX_VERSION = 20
#: After so many watches in a row without any message, the list is read again: after a restore of etcd to a
#: state before our version, kube-apiserver 1.36 accepts the watch and stays silent for ever.
MISSES = 3


@dataclass(frozen=True)  # with slots, Python 3.11 cannot make a MirroredObjects[T]
class MirroredObjects(Generic[T]):
    """What was kept of the objects, by `namespace/name`, or by `name` without a namespace.

    `version` is the resourceVersion of the last change, as a number; 0 where it is none. `synced`: the whole
    list was read once. `error`: why the objects may be outdated, empty while they are followed. `refused`:
    the error is a missing right. An object is known to be gone only with `synced` and without `error`.
    """

    objects: Mapping[str, T] = field(default_factory=lambda: MappingProxyType({}))
    synced: bool = False
    error: str = ""
    refused: bool = False
    version: int = field(default=0, compare=False)


class FollowTiming(Struct, frozen=True):
    """Seconds that a watch lasts, items of a list's page, and the pauses between tries.

    `refused` is the longest pause while a right is missing, which rarely changes.
    """

    watch: float = 300.0
    page: int = 250
    shortest: float = 0.5
    longest: float = 30.0
    refused: float = 600.0


class Reflector(Generic[T]):
    """Keeps the mirror in `cell` for as long as it runs.

    While the server is away the last objects stay, and the watch goes on from them. The first list comes from
    the server's memory, because all nodes may ask at once. A list after a doubt is read from etcd.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        keep: Keep[T],
        following: FollowTiming | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cell: Cell[MirroredObjects[T]] = Cell(MirroredObjects())
        self._api = api
        self._path = path
        self._query = query
        self._keep = keep
        self._following = following or FollowTiming()
        self._pauses = Pauses(self._following.shortest, self._following.longest, jitter)
        self._patience = Pauses(self._following.shortest, self._following.refused, jitter)
        self._jitter = jitter
        self._sleep = sleep
        #: The resourceVersion to watch from; empty: list first.
        self._version = ""
        #: The highest resourceVersion since the last list.
        self._highest = 0
        #: Watches in a row that brought no message.
        self._misses = 0
        self._page = self._following.page
        #: Whether the server's memory may be outdated.
        self._doubted = False

    async def run(self) -> None:
        """List and watch, for ever. A pause follows each try: a server may end every watch at once."""
        while True:
            requested = await self._try()
            await self._sleep(max(self._pauses.next(), requested))

    async def _try(self) -> float:
        """List if needed, then watch until the watch ends; returns the pause that the server asks for."""
        try:
            self._doubted |= self._misses >= MISSES
            if not self._version or self._doubted:
                await self._list()
            await self._watch()
        except Gone:
            self._doubted = True
        except ApiError as error:
            refused = isinstance(error, Forbidden) and error.status == 403
            self.cell.set(replace(self.cell.value, error=str(error), refused=refused))
            if refused:
                return self._patience.next()
            if isinstance(error, TooLong):
                # A list from the server's memory comes in one answer, whatever the limit.
                self._doubted, self._page = True, max(LEAST_PAGE, self._page // 2)
            if isinstance(error, Busy):
                self._misses = 0  # the server answers, and a list would only add to its load
                return min(error.retry_after or 0.0, PATIENCE)
        return 0.0

    async def _list(self) -> None:
        objects: dict[str, T] = {}
        query = {**self._query, "limit": str(self._page)}
        if not self._doubted:
            query["resourceVersion"] = "0"
        for _ in range(PAGES):
            page = await self._api.get(self._path, query)
            objects.update(kept(_items(page), self._keep))
            more = text(part_of(page, "metadata"), "continue")
            if not more:
                break
            # The token has the list's resourceVersion; a request with both is refused.
            query = {**query, "continue": more}
            query.pop("resourceVersion", None)
        else:
            raise ApiAway(f"the API server's list has no end: {PAGES} pages of {self._path}")
        self._version = version_of(page)
        self._highest = number(self._version)
        self._misses, self._doubted = 0, False
        self.cell.set(MirroredObjects(MappingProxyType(objects), synced=True, version=number(self._version)))

    async def _watch(self) -> None:
        clock, progressed = asyncio.get_running_loop().time, False
        began = clock()
        try:
            async with self._api.watch(self._path, self._watching()) as events:
                self._misses += 1
                self.cell.set(replace(self.cell.value, error="", refused=False))
                self._patience.reset()
                async for message in events:
                    before = self._version
                    self._take(message)
                    self._misses = 0
                    progressed |= self._is_new(before)
                    if clock() - began >= self._following.watch + self._following.longest:
                        break  # the server did not end the watch in time, and may repeat itself for ever
        except Gone:
            progressed = False  # a list of everything follows
            raise
        finally:
            if progressed or clock() - began > self._following.longest:
                self._pauses.reset()

    def _is_new(self, before: str) -> bool:
        """Whether the last message is new; a server that repeats itself is asked more and more seldom.

        A version that is no number is new if it differs from the one before.
        """
        version = number(self._version)
        if not version:
            return self._version != before
        highest, self._highest = self._highest, max(version, self._highest)
        return version > highest

    def _watching(self) -> dict[str, str]:
        """The query of a watch; the timeout is spread, so that not all nodes come back at once."""
        seconds = self._following.watch * (1 - self._jitter() / 4)
        return {
            **self._query,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }

    def _take(self, message: WatchMessage) -> None:
        self._version = version_of(message.object)
        mirror = self.cell.value
        objects = after(mirror.objects, message, self._keep)
        if objects is not mirror.objects:
            self.cell.set(replace(mirror, objects=objects, version=number(self._version)))


def after(objects: Mapping[str, T], message: WatchMessage, keep: Keep[T]) -> Mapping[str, T]:
    """The objects after this message; the same mapping if nothing that is kept changes."""
    if message.kind not in {"ADDED", "MODIFIED", "DELETED"}:
        return objects
    key = key_of(message.object)
    value = keep(message.object) if message.kind != "DELETED" else None
    if objects.get(key) == value:
        return objects
    others = {name: it for name, it in objects.items() if name != key}
    return MappingProxyType(others if value is None else {**others, key: value})


def kept(items: Iterable[Object], keep: Keep[T]) -> dict[str, T]:
    """What is kept of a list's items, by key."""
    values = ((key_of(item), keep(item)) for item in items)
    return {key: value for key, value in values if value is not None}


def key_of(item: Object) -> str:
    metadata = part_of(item, "metadata")
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    return f"{namespace}/{name}" if namespace else name


def version_of(item: Object) -> str:
    """The resourceVersion of an object or a list.

    Raises:
        ApiAway: There is none, so the sender is no API server.
    """
    version = text(part_of(item, "metadata"), "resourceVersion")
    if not version:
        raise ApiAway("the API server sent an object without resourceVersion")
    return version


def number(version: str) -> int:
    """A resourceVersion as a number; 0 of other text."""
    return int(version) if version.isdecimal() and len(version) <= MAX_VERSION else 0


def _items(page: Object) -> list[Object]:
    """The items of a list; null counts as empty."""
    items = page.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ApiAway("the API server sent a list whose items are no objects")
    return items
