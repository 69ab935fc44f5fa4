"""All watches that run, and how a new one begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from . import refusals
from .object_store import Change, Store
from .refusals import Refused
from .selection import Selection
from .watch import End, Mark, Watch, WatchStep


class Watches:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._running: set[Watch] = set()
        #: How a watch from a forgotten resourceVersion is refused: in its stream, or with HTTP's status.
        self.expired_as: Literal["event", "status"] = "event"

    def __len__(self) -> int:
        return len(self._running)

    def tell(self, step: WatchStep) -> None:
        for watch in self._running:
            watch.tell(step)

    def open(self, wanted: Selection, query: Mapping[str, str]) -> Watch:
        """Start a watch: it gets the past changes that the query asks for, and every change from now on.

        Raises:
            Refused: 500, the resourceVersion is not a number; 410, where `expired_as` says so.
        """
        watch = Watch(wanted, query.get("allowWatchBookmarks") in ("true", "1"))
        version, initial = _version(query), query.get("sendInitialEvents")
        if initial == "true" or (version == 0 and initial is None):
            self._tell_all(watch)
        elif version:
            self._tell_since(watch, version)
        if initial == "true":
            watch.tell(Mark(self._store.version, initial_end=True))
        self._running.add(watch)
        return watch

    def close(self, watch: Watch) -> None:
        self._running.discard(watch)

    def time_out(self, watch: Watch) -> None:
        """End the watch in order; the last bookmark says from where the next may go on."""
        watch.tell(Mark(self._store.version))
        watch.tell(End())

    def _tell_all(self, watch: Watch) -> None:
        for (resource, *_), document in sorted(self._store.objects.items(), key=lambda pair: pair[0][1:]):
            watch.tell(Change(int(document["metadata"]["resourceVersion"]), resource, None, document))

    def _tell_since(self, watch: Watch, version: int) -> None:
        try:
            for change in self._store.since(version):
                watch.tell(change)
        except Refused as exc:
            if self.expired_as == "status":
                raise
            watch.tell(End(exc))


def _version(query: Mapping[str, str]) -> int:
    text = query.get("resourceVersion") or "0"
    if not text.isdecimal():
        raise refusals.no_number(text)
    return int(text)
