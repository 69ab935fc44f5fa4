"""What each container used of each card in each minute of the last 24 hours."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from agent.core.usage.usage_report import ContainerUse

#: How many minutes are kept.
MINUTES = 24 * 60
#: How many histories are kept, each of one container on one card: 2.3 MB where all are a day long.
MAX_HISTORIES = 256
#: Bytes of one step of the kept memory, and parts of the kept utilization in 1.
MEMORY_STEP = 1024
UTILIZATION_STEPS = 10_000
#: More samples than a minute can have.
MOST_SAMPLES = 1 << 20

#: Namespace, pod, container and the uuid of the card or slice. The container is empty where only the pod is
#: known.
Key = tuple[str, str, str, str]
#: Unix minute, and what was used in it: the most memory in bytes, and the mean utilization from 0 to 1. None:
#: not known.
Minute = tuple[int, int | None, float | None]

# The two highest values of each array are marks.
_MEMORY_UNKNOWN, _MEMORY_GAP = (1 << 32) - 2, (1 << 32) - 1
_UTILIZATION_UNKNOWN = (1 << 16) - 1


class SavedMinutes(Struct, frozen=True):
    """One history for a file; the two byte strings are little-endian arrays of 4 and 2 bytes a minute."""

    namespace: str
    pod: str
    container: str
    uuid: str
    first: int
    memory: bytes
    utilization: bytes
    #: How many samples the utilization of the last minute is the mean of: more may follow after a restart.
    #: A file of an earlier release does not say.
    last_count: int = 1


class UsageHistory:
    """The histories of containers, of those that ended within the last 24 hours, too."""

    def __init__(self, saved: Iterable[SavedMinutes] = ()) -> None:
        """`saved`: what `saved` returned before.

        Raises:
            ValueError: A saved history is not one.
        """
        self._minutes = {(it.namespace, it.pod, it.container, it.uuid): _Minutes.of(it) for it in saved}
        #: How many containers in use now have no history, because there are too many.
        self.left_out = 0
        self._minute = 0

    def add(self, at: float, containers: Iterable[ContainerUse]) -> None:
        """Add the use at one moment, in Unix seconds. Histories that ended 24 hours ago are dropped."""
        minute = int(at // 60)
        if minute != self._minute:
            self._minute = minute
            first = minute - MINUTES + 1
            self._minutes = {key: it for key, it in self._minutes.items() if it.keep(first, minute)}
        used = {(it.namespace, it.pod, it.container, it.uuid): it for it in containers}
        new = [key for key in used if key not in self._minutes]
        self._make_room(len(new), used)
        room = max(0, MAX_HISTORIES - len(self._minutes))
        self._minutes.update((key, _Minutes(minute)) for key in new[:room])
        self.left_out = len(new[room:])
        for key, use in used.items():
            if (minutes := self._minutes.get(key)) is not None:
                minutes.add(minute, use.memory, use.utilization)

    def of(self, namespace: str, pod: str, container: str, uuid: str) -> Sequence[Minute]:
        """The known minutes of a container on a card, oldest first; a minute without a sample is left out."""
        minutes = self._minutes.get((namespace, pod, container, uuid))
        return [*minutes.points()] if minutes is not None else []

    def keys(self) -> Sequence[Key]:
        """The containers and cards that have a history."""
        return sorted(self._minutes)

    def saved(self) -> tuple[SavedMinutes, ...]:
        """All histories, for a file."""
        return tuple(it.saved(key) for key, it in self._minutes.items())

    def _make_room(self, count: int, used: Mapping[Key, ContainerUse]) -> None:
        """Make room for so many histories: of containers that ended, those that ended first lose theirs."""
        excess = len(self._minutes) + count - MAX_HISTORIES
        if excess > 0:
            ended = sorted((it.last, key) for key, it in self._minutes.items() if key not in used)
            for _, key in ended[:excess]:
                del self._minutes[key]


class _Minutes:
    """One history: two arrays with a value for each minute from `first` on."""

    __slots__ = ("count", "first", "memory", "total", "utilization")

    def __init__(self, first: int) -> None:
        self.first = first
        self.memory = array("I")
        self.utilization = array("H")
        #: The sum and number of the utilizations of the last minute, for the mean.
        self.total, self.count = 0.0, 0

    @classmethod
    def of(cls, saved: SavedMinutes) -> _Minutes:
        """The history that was saved.

        Raises:
            ValueError: The byte strings are not two arrays of the same number of minutes, or of too many.
        """
        minutes = cls(saved.first)
        minutes.memory.frombytes(saved.memory)
        minutes.utilization.frombytes(saved.utilization)
        if not 0 < len(minutes.memory) == len(minutes.utilization) <= MINUTES:
            raise ValueError(f"{len(minutes.memory)} and {len(minutes.utilization)} minutes")
        if not 0 <= saved.last_count <= MOST_SAMPLES:
            raise ValueError(f"{saved.last_count} samples in the last of its minutes")
        minutes._swap_bytes()
        if minutes.utilization[-1] != _UTILIZATION_UNKNOWN:
            minutes.count = saved.last_count
            minutes.total = min(minutes.utilization[-1] / UTILIZATION_STEPS, 1.0) * minutes.count
        return minutes

    def saved(self, key: Key) -> SavedMinutes:
        self._swap_bytes()
        try:
            arrays = self.memory.tobytes(), self.utilization.tobytes()
            return SavedMinutes(*key, self.first, *arrays, self.count)
        finally:
            self._swap_bytes()

    def _swap_bytes(self) -> None:
        if sys.byteorder == "big":
            self.memory.byteswap()
            self.utilization.byteswap()

    @property
    def last(self) -> int:
        """The last minute with a value."""
        return self.first + len(self.memory) - 1

    def add(self, minute: int, memory: int | None, utilization: float | None) -> None:
        """Add the use at one moment of this minute, which is the last one or a later one."""
        if not self.memory:
            self.first = minute
        if not self.memory or minute > self.last:
            gap = minute - self.first - len(self.memory)
            self.memory.extend((*(_MEMORY_GAP,) * gap, _MEMORY_UNKNOWN))
            self.utilization.extend((_UTILIZATION_UNKNOWN,) * (gap + 1))
            self.total, self.count = 0.0, 0
        if memory is not None:
            most = 0 if self.memory[-1] == _MEMORY_UNKNOWN else self.memory[-1]
            self.memory[-1] = max(most, min(max(0, memory) // MEMORY_STEP, _MEMORY_UNKNOWN - 1))
        if utilization is not None:
            self.total, self.count = self.total + min(max(0.0, utilization), 1.0), self.count + 1
            self.utilization[-1] = round(self.total / self.count * UTILIZATION_STEPS)

    def keep(self, first: int, last: int) -> bool:
        """Drop all minutes but these, and return whether any is left. A clock set back leaves later ones."""
        too_old = min(max(0, first - self.first), len(self.memory))
        kept = slice(too_old, max(too_old, last + 1 - self.first))
        if kept.stop < len(self.memory):
            self.total, self.count = 0.0, 0
        self.memory, self.utilization = self.memory[kept], self.utilization[kept]
        self.first += too_old
        return bool(self.memory)

    def points(self) -> Iterator[Minute]:
        for n, memory in enumerate(self.memory):
            if memory != _MEMORY_GAP:
                share = self.utilization[n]
                yield (
                    self.first + n,
                    None if memory == _MEMORY_UNKNOWN else memory * MEMORY_STEP,
                    None if share == _UTILIZATION_UNKNOWN else min(share / UTILIZATION_STEPS, 1.0),
                )
