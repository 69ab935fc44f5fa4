"""Joins notices into few Events, by the rules of client-go's correlator (tools/record/events_cache.go).

A notice that comes again within ten minutes counts in its Event's series. For one object and reason, the
tenth and later texts within ten minutes share one Event. Each object has 25 writes at once, then one every
five minutes. Time is an argument; all tables are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agent.core.event_notices import Notice, PodRef

#: Seconds after which an equal notice becomes a new Event.
WINDOW = 600.0
#: From this many texts within the window on, the texts of one object and reason share an Event.
SIMILAR = 10
BURST = 25
#: Seconds until an object may have another write.
REFILL = 300.0
#: Entries in each table; the entry that was unused for longest is removed first.
REMEMBERED = 1024
COMBINED = "(combined from similar events): "

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Series:
    """One Event: how often it was observed, and how much of that the API server knows."""

    notice: Notice
    first: float
    last: float
    count: int = 0
    #: The Event's name; empty until the first write.
    name: str = ""
    #: The count that the API server has; 0 where it has no Event of this series.
    known: int = 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    since: float


@dataclass(slots=True)
class _Texts:
    """The texts of one reason for one object, with the time when each was last seen."""

    seen: OrderedDict[str, float] = field(default_factory=OrderedDict)


class Correlator:
    """Decides to which Event a notice belongs, and whether the Event may be written now."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._series: _Recent[Series] = _Recent(remembered)
        self._texts: _Recent[_Texts] = _Recent(remembered)
        self._buckets: _Recent[_Bucket] = _Recent(remembered)

    def observe(self, notice: Notice, now: float) -> tuple[Series, bool]:
        """Count the notice. Returns its series, and whether its object has a write left."""
        notice, key = self._combined(notice, now)
        series = self._series.get(key)
        if series is None or now - series.last > WINDOW:
            series = Series(notice, first=now, last=now)
        series.count += 1
        series.last = now
        self._series.put(key, series)
        return series, self._may_write(notice.pod, now)

    def _combined(self, notice: Notice, now: float) -> tuple[Notice, Hashable]:
        """The notice to send, and the key of its series."""
        group = (notice.pod, notice.reason, notice.kind)
        texts = self._texts.get_or(group, _Texts)
        while texts.seen and now - next(iter(texts.seen.values())) > WINDOW:
            texts.seen.popitem(last=False)
        texts.seen[notice.message] = now
        texts.seen.move_to_end(notice.message)
        if len(texts.seen) < SIMILAR:
            return notice, (*group, notice.message)
        texts.seen.popitem(last=False)
        combined = Notice(notice.reason, COMBINED + notice.message, notice.kind, notice.pod)
        return combined, group

    def _may_write(self, pod: PodRef | None, now: float) -> bool:
        bucket = self._buckets.get_or(pod, lambda: _Bucket(BURST, now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.since) / REFILL)
        bucket.since = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


class _Recent(Generic[T]):
    """A bounded table that removes the entry that was unused for longest."""

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
