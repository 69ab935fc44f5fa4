"""Few Events of many notices, by the rules of client-go's correlator (tools/record/events_cache.go).

A notice that comes again within ten minutes counts in its Event's series. Of an object and a reason, whatever
comes after the ninth text within ten minutes goes into one Event of similar ones. Of one object 25 writes go
out at once, and then one every five minutes. Time comes in as an argument; everything is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agent.core.notices import Notice, PodRef

#: Seconds after which the same notice is another event.
WINDOW = 600.0
#: Texts of one reason on one object within the window, from which on similar ones share an Event.
SIMILAR = 10
BURST = 25
#: Seconds until an object may have one write more.
REFILL = 300.0
#: Events, reasons and objects that are remembered; those unheard of for longest go first.
REMEMBERED = 1024
COMBINED = "(combined from similar events): "

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Series:
    """One Event, how often it was observed, and what of that the API server knows."""

    notice: Notice
    first: float
    last: float
    count: int = 0
    #: The Event's name; empty until it is first sent.
    name: str = ""
    #: The count that the API server has; 0 where it has no such Event.
    known: int = 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    since: float


@dataclass(slots=True)
class _Texts:
    """The texts of a reason on an object, each with when it was last seen."""

    seen: OrderedDict[str, float] = field(default_factory=OrderedDict)


class Correlator:
    """Says of each notice which Event it belongs to, and whether that may be written now."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._series: _Recent[Series] = _Recent(remembered)
        self._texts: _Recent[_Texts] = _Recent(remembered)
        self._buckets: _Recent[_Bucket] = _Recent(remembered)

    def observe(self, notice: Notice, now: float) -> tuple[Series, bool]:
        """Count the notice; its series, and whether there is a write left for its object."""
        notice, key = self._combined(notice, now)
        series = self._series.get(key)
        if series is None or now - series.last > WINDOW:
            series = Series(notice, first=now, last=now)
        series.count += 1
        series.last = now
        self._series.put(key, series)
        return series, self._may_write(notice.pod, now)

    def _combined(self, notice: Notice, now: float) -> tuple[Notice, Hashable]:
        """The notice as it is told, and what makes it one with others."""
        group = (notice.pod, notice.reason, notice.kind)
        texts = self._texts.get_or(group, _Texts)
        while texts.seen and now - next(iter(texts.seen.values())) > WINDOW:
            texts.seen.popitem(last=False)
        texts.seen[notice.message] = now
        texts.seen.move_to_end(notice.message)
        if len(texts.seen) < SIMILAR:
            return notice, (*group, notice.message)
        texts.seen.popitem(last=False)
        together = Notice(notice.reason, COMBINED + notice.message, notice.kind, notice.pod)
        return together, group

    def _may_write(self, pod: PodRef | None, now: float) -> bool:
        bucket = self._buckets.get_or(pod, lambda: _Bucket(BURST, now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.since) / REFILL)
        bucket.since = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


class _Recent(Generic[T]):
    """A table that forgets what nobody asked for longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._table: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        return self._table.get(key)

    def get_or(self, key: Hashable, make: Callable[[], T]) -> T:
        found = self._table.get(key)
        value = make() if found is None else found
        self.put(key, value)
        return value

    def put(self, key: Hashable, value: T) -> None:
        self._table[key] = value
        self._table.move_to_end(key)
        if len(self._table) > self._most:
            self._table.popitem(last=False)
