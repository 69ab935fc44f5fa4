"""The device IDs of one resource in use on one card, with what was asked of these IDs. Pure.

A card can have 16,000 IDs. So each answer is kept, and a change of a few IDs reads these few IDs alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from agent.core.model import IdRange, is_share_of


class IdChoice(Protocol):
    """Chooses some of the given IDs. Each ID is chosen for itself alone. Equal choices have equal hashes."""

    def __call__(self, ids: Iterable[str], /) -> Collection[str]: ...


NO_IDS: Mapping[str, bool] = MappingProxyType({})
NO_ANSWERS: Mapping[IdChoice, tuple[str, ...]] = MappingProxyType({})


class OutsideRanges(Struct, frozen=True):
    """The IDs of none of these ranges."""

    ranges: tuple[IdRange, ...]

    def __call__(self, ids: Iterable[str]) -> Collection[str]:
        left = [*ids]
        for one in self.ranges:
            left = one.without(left)
        return left


class NoShares(Struct, frozen=True):
    """The IDs outside the range that name no share of the card either, in a form of this or another plugin.

    `names`: the stems of the card.
    """

    ids: IdRange | None
    names: tuple[str, ...]

    def __call__(self, ids: Iterable[str]) -> Collection[str]:
        outside, count = (self.ids.without(ids), self.ids.count or 0) if self.ids else (ids, 0)
        return [it for it in outside if "::" not in it and not is_share_of(it, self.names, count)]


class HeldIds:
    """The IDs, which never change, and the answers to what was asked of them so far."""

    __slots__ = ("_answers", "_before", "_changed", "_in_range", "_numbers", "ids", "lies_here", "stems")

    def __init__(
        self,
        ids: Mapping[str, bool] = NO_IDS,
        stems: frozenset[str] | None = None,
        before: Mapping[IdChoice, tuple[str, ...]] = NO_ANSWERS,
        changed: Mapping[str, bool | None] = NO_IDS,
    ) -> None:
        """`ids`: ID to whether no allocation with the ID lies on the card that the ID names.

        `before`: the answers before the last change. `changed`: the IDs of that change; None for one that is
        gone.
        """
        self.ids = ids
        #: Whether an allocation lies on the card by one of the IDs.
        self.lies_here = not all(ids.values())
        #: The stems of all numbered IDs, and perhaps stems of IDs that were here before.
        self.stems = _stems(ids) if stems is None else stems
        self._before = before
        self._changed = changed
        self._answers: dict[IdChoice, tuple[str, ...]] = {}
        self._in_range: dict[IdRange, tuple[str, ...]] = {}
        self._numbers: dict[IdRange, tuple[int, ...]] = {}

    def changed(self, changed: Collection[str], new: Mapping[str, bool]) -> HeldIds:
        """The value after a change. `changed`: IDs that may have come or gone. `new`: those that are here."""
        gone = self.ids.keys() & changed
        if not gone and not new:
            return self
        ids = {**self.ids}
        for device_id in gone:
            del ids[device_id]
        ids.update(new)
        looked_at = {**dict.fromkeys(gone), **new}
        return HeldIds(ids, self.stems | _stems(new), self._answers, looked_at)

    def chosen(self, choice: IdChoice) -> tuple[str, ...]:
        """The IDs that are chosen, sorted."""
        if not self.ids:
            return ()  # one value stands for all cards without an ID in use: it keeps no answers
        known = self._answers.get(choice)
        if known is None:
            known = self._answers[choice] = self._choose(choice)
        return known

    def _choose(self, choice: IdChoice) -> tuple[str, ...]:
        before = self._before.get(choice)
        if before is None:
            return tuple(sorted(choice(self.ids)))
        left = [it for it in before if it not in self._changed] if self._changed.keys() & before else before
        come = choice([it for it, is_away in self._changed.items() if is_away is not None])
        return tuple(sorted((*left, *come))) if come else tuple(left)

    def in_range(self, ids: IdRange) -> tuple[str, ...]:
        """The IDs of this range, sorted."""
        if not self.ids:
            return ()
        if ids not in self._in_range:
            outside = frozenset(self.chosen(OutsideRanges((ids,))))
            inside = [it for it in self.ids if it not in outside] if outside else self.ids
            self._in_range[ids] = tuple(sorted(inside))
        return self._in_range[ids]

    def numbers(self, ids: IdRange) -> tuple[int, ...]:
        """The share numbers of the IDs in this range, highest first."""
        if not self.ids:
            return ()
        if ids not in self._numbers:
            end = len(ids.stem) + len("::")
            self._numbers[ids] = tuple(sorted((int(it[end:]) for it in self.in_range(ids)), reverse=True))
        return self._numbers[ids]


def _stems(ids: Iterable[str]) -> frozenset[str]:
    return frozenset({it.rpartition("::")[0] for it in ids})
