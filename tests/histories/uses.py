"""What containers have of the cards, as the hardware and whoever reads their answers sees it. Pure.

The book of the agent is not asked: this is what the book is held to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

#: Whole, one of equal shares, bytes of memory, or a slice that the hardware made.
Kind = Literal["whole", "share", "memory", "slice"]


@dataclass(frozen=True, slots=True)
class Use:
    """What one container of a pod has of one card.

    `ids`: its device IDs there, which init containers hand on. `of`: how many shares the card was cut into,
    or how many bytes an ID stands for; 0 where it is said otherwise. `by`: who gave it. `sized`: a share is
    so much of the card, and not just a turn beside others. `percent`: what a scheduler promised it there.
    """

    pod: str
    card: str
    kind: Kind
    ids: frozenset[str]
    of: int = 0
    by: str = "agent"
    sized: bool = False
    percent: int = 0


def beyond(uses: Iterable[Use], memory: Mapping[str, int], shares: int = 0) -> Iterator[str]:
    """A sentence for each card of which more is given out than there is.

    `memory`: card to bytes. `shares`: into how many the newest config cuts a card; 0 where into none.
    """
    on: dict[str, list[Use]] = defaultdict(list)
    for it in uses:
        on[it.card].append(it)
    for card, its in on.items():
        several = len({it.pod for it in its}) > 1
        kinds = {it.kind for it in its}
        if several and "whole" in kinds:
            yield f"{card} is one's whole, and others have it: {_said(its)}"
        elif several and len(kinds) > 1:
            yield f"{card} is given out in two ways, as {sorted(kinds)}: {_said(its)}"
        elif kinds == {"share"} and any(it.percent for it in its):
            percent = sum(it.percent or 100 * n / _cut(it, shares) for it, n in _ids(its).items())
            if percent > 100:
                yield f"{card} has {percent} percent given out: {_said(its)}"
        elif kinds == {"share"}:
            count, most = _count(its), shares or max(it.of for it in its)
            if count > most:
                yield f"{card} has {count} shares of {most}: {_said(its)}"
        elif kinds == {"memory"}:
            taken = sum(it.of * n for it, n in _ids(its).items())
            if taken > memory[card]:
                yield f"{card} has {taken} bytes given out of {memory[card]}: {_said(its)}"


def _cut(it: Use, shares: int) -> int:
    """Into how many shares its card is cut for it; where that is a turn beside others, as the config says."""
    return it.of if it.sized or not shares else shares


def _ids(its: Iterable[Use]) -> Mapping[Use, int]:
    """Each ID of a pod counts once, in the first use that has it."""
    seen: set[tuple[str, str]] = set()
    found: Counter[Use] = Counter()
    for it in its:
        fresh = {(it.pod, one) for one in it.ids} - seen
        seen |= fresh
        found[it] += len(fresh)
    return found


def _count(its: Iterable[Use]) -> int:
    return sum(_ids(its).values())


def _said(its: Iterable[Use]) -> str:
    return "; ".join(
        f"{it.pod} {it.kind} {sorted(it.ids)[:3]} of {it.of}, {it.percent} %, by {it.by}" for it in its
    )
