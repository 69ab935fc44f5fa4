"""Mirrors a list of the API server here: lists it, follows it, and begins anew when it lost the thread."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Generic, TypeVar

from agent.cluster.api import Api, Object, WatchMessage
from agent.cluster.api_errors import ApiAway, ApiError, Busy, Forbidden, Gone, TooLong
from agent.cluster.object_fields import text
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.scheduler_api.document_parts import part_of

T = TypeVar("T")
#: Makes of an object what is worth its memory; None drops it. It must not raise, whatever the object is.
Keep = Callable[[Object], T | None]

#: Seconds that a server may have us wait at most, whatever it says.
PATIENCE = 600.0
#: Pages that a list may have: a hundred thousand objects are not one node's.
PAGES = 400
#: Items of a page are never fewer: ten objects of more than 800 KiB are no cluster's.
LEAST_PAGE = 10
#: Digits of a resourceVersion: those of 64 bits.
MAX_VERSION = 20
#: After so many watches in a row that brought nothing, not even a bookmark, the list is read anew: where etcd
#: was set back to before our version, kube-apiserver 1.36 takes the watch and stays silent for ever.
MISSES = 3


@dataclass(frozen=True)  # with slots Python 3.11 cannot make a Mirror[T]
class MirroredObjects(Generic[T]):
    """What was kept, by `namespace/name`, or by `name` of what has no namespace.

    `version`: the resourceVersion of its last change, as a number; 0 of one that is none.
    `synced`: the whole list was here once. `error`: why it may be old by now, empty while it is followed;
    `refused`: it is for want of a right. Who must know that an object is gone needs: synced, and no error.
    """

    objects: Mapping[str, T] = field(default_factory=lambda: MappingProxyType({}))
    synced: bool = False
    error: str = ""
    refused: bool = False
    version: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class FollowTimings:
    """Seconds that a watch lives, items of a page of the list, and the pauses between tries.

    `refused` is the longest pause where a right is missing: who may give it does so once, and knows of it.
    """

    watch: float = 300.0
    page: int = 250
    shortest: float = 0.5
    longest: float = 30.0
    refused: float = 600.0


class Reflector(Generic[T]):
    """Holds the mirror in `cell`, and keeps it for as long as it runs.

    While the server is away the last objects stay, and it goes on from them. The first list is what the
    server has in memory, for all nodes may ask at once; one after a doubt is read as of now.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        keep: Keep[T],
        following: FollowTimings | None = None,
        *,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cell: Cell[MirroredObjects[T]] = Cell(MirroredObjects())
        self._api = api
        self._path = path
        self._query = query
        self._keep = keep
        self._following = following or FollowTimings()
        self._pauses = Pauses(self._following.shortest, self._following.longest, jitter)
        self._patience = Pauses(self._following.shortest, self._following.refused, jitter)
        self._jitter = jitter
        self._sleep = sleep
        #: Where to go on from; empty: from a new list.
        self._version = ""
        #: The highest version since the last list.
        self._highest = 0
        self._misses = 0
        self._page = self._following.page
        #: Whether what the server has in memory may be too old.
        self._doubted = False

    async def run(self) -> None:
        """List and watch for ever. Each try is followed by a pause: a server may end every watch at once."""
        while True:
            asked = await self._try()
            await self._sleep(max(self._pauses.next(), asked))

    async def _try(self) -> float:
        """List if need be, then watch until that ends; returns how long the server wants to be left alone."""
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
                # What the server has in memory comes in one answer, whatever the limit.
                self._doubted, self._page = True, max(LEAST_PAGE, self._page // 2)
            if isinstance(error, Busy):
                self._misses = 0  # it answers, and a list is the last that it needs
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
            # The token says which version the list began with; to say it too is refused.
            query = {**query, "continue": more}
            query.pop("resourceVersion", None)
        else:
            raise ApiAway(f"the API server's list has no end: {PAGES} pages of {self._path}")
        self._version = version_of(page)
        self._highest = number(self._version)
        self._misses, self._doubted = 0, False
        self.cell.set(MirroredObjects(MappingProxyType(objects), synced=True, version=number(self._version)))

    async def _watch(self) -> None:
        clock, brought = asyncio.get_running_loop().time, False
        began = clock()
        try:
            async with self._api.watch(self._path, self._watching()) as events:
                self._misses += 1
                self.cell.set(replace(self.cell.value, error="", refused=False))
                self._patience.reset()
                async for seen in events:
                    before = self._version
                    self._take(seen)
                    self._misses = 0
                    brought |= self._is_news(before)
                    if clock() - began >= self._following.watch + self._following.longest:
                        break  # it does not end it as it was asked to, and may repeat itself for ever
        except Gone:
            brought = False  # each is followed by a list of everything
            raise
        finally:
            if brought or clock() - began > self._following.longest:
                self._pauses.reset()

    def _is_news(self, before: str) -> bool:
        """Whether the last message is new. A server that repeats itself is asked ever more slowly.

        A version that is no number is new where it differs from the one before.
        """
        version = number(self._version)
        if not version:
            return self._version != before
        highest, self._highest = self._highest, max(version, self._highest)
        return version > highest

    def _watching(self) -> dict[str, str]:
        """The query of a watch; its end is spread, so that not all nodes come back at once."""
        seconds = self._following.watch * (1 - self._jitter() / 4)
        return {
            **self._query,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }

    def _take(self, seen: WatchMessage) -> None:
        self._version = version_of(seen.object)
        mirror = self.cell.value
        objects = after(mirror.objects, seen, self._keep)
        if objects is not mirror.objects:
            self.cell.set(replace(mirror, objects=objects, version=number(self._version)))


def after(objects: Mapping[str, T], seen: WatchMessage, keep: Keep[T]) -> Mapping[str, T]:
    """The objects after this message; the same ones if it says nothing of them."""
    if seen.kind not in {"ADDED", "MODIFIED", "DELETED"}:
        return objects
    key = key_of(seen.object)
    value = keep(seen.object) if seen.kind != "DELETED" else None
    if objects.get(key) == value:
        return objects
    others = {name: it for name, it in objects.items() if name != key}
    return MappingProxyType(others if value is None else {**others, key: value})


def kept(items: Iterable[Object], keep: Keep[T]) -> dict[str, T]:
    """What is kept of a list, by key."""
    values = ((key_of(item), keep(item)) for item in items)
    return {key: value for key, value in values if value is not None}


def key_of(item: Object) -> str:
    metadata = part_of(item, "metadata")
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    return f"{namespace}/{name}" if namespace else name


def version_of(item: Object) -> str:
    """The resourceVersion of an object or a list.

    Raises:
        ApiAway: It has none; what sent it is no API server.
    """
    version = text(part_of(item, "metadata"), "resourceVersion")
    if not version:
        raise ApiAway("the API server sent an object without resourceVersion")
    return version


def number(version: str) -> int:
    """A resourceVersion as a number; 0 of any other text."""
    return int(version) if version.isdecimal() and len(version) <= MAX_VERSION else 0


def _items(page: Object) -> list[Object]:
    """The objects of a list; an empty one may come as null."""
    items = page.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ApiAway("the API server sent a list whose items are no objects")
    return items
