"""Parts of cards that a scheduler grants, as values, as parameters of a claim, and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.scheduler_api import Part

MAX_GRANTS = 64
MAX_MEMORY = 1 << 60
GIB = 1 << 30
#: The parameters of a share of cards.
_SHARE = ("core", "memory", "ratio")


@dataclass(frozen=True, slots=True)
class CardGrant:
    """A card and the granted amount: `core` and `ratio` (of its memory) in percent, `memory` in bytes.

    None: the scheduler does not say. The uuid is empty where the scheduler names the minor alone.
    """

    minor: int
    uuid: str = ""
    core: int | None = None
    memory: int | None = None
    ratio: int | None = None

    @property
    def whole(self) -> bool:
        return self.ratio == 100 and self.core in (None, 100)


def share(grants: Sequence[CardGrant]) -> dict[str, str]:
    """The amount that each of these cards gives, as parameters of a claim; empty for whole cards."""
    smallest = least(grants)
    amounts = {"core": smallest.core, "memory": smallest.memory, "ratio": smallest.ratio}
    return {} if smallest.whole else {key: str(it) for key, it in amounts.items() if it is not None}


def measured(parameters: Mapping[str, str], memory: int) -> Part | None:
    """The part of a card of so many bytes, from the parameters of `share`; None without such parameters.

    Schedulers round either percent or bytes up, so the smaller of both counts.
    """
    known = ((key, value) for key, value in parameters.items() if key in _SHARE)
    amounts = {key: int(value) for key, value in known if value.isascii() and value.isdigit()}
    if not amounts:
        return None
    in_bytes = amounts.get("memory", 0) / memory if memory else 0.0
    parts = [it for it in (in_bytes, amounts.get("ratio", 0) / 100) if it]
    return Part(amounts.get("core", 0) / 100, min(parts, default=0.0))


def least(grants: Sequence[CardGrant]) -> CardGrant:
    """The least amount of these cards. Half of a small card is less than half of a large one."""
    cores, memories, ratios = ([getattr(it, name) for it in grants] for name in ("core", "memory", "ratio"))
    core, memory, ratio = (None if None in its else min(its) for its in (cores, memories, ratios))
    return CardGrant(0, "", core, memory, ratio)


def in_words(grant: CardGrant) -> str:
    """The granted amount for people: `10 % of the cores and 1Gi`."""
    words = [f"{grant.core} % of the cores"] if grant.core is not None else []
    if grant.memory is not None:
        words.append(f"{grant.memory / GIB:g}Gi")
    elif grant.ratio is not None:
        words.append(f"{grant.ratio} % of the memory")
    return " and ".join(words)
