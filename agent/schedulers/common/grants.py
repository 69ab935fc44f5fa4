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
    """A card, and how much of it: `core` and `ratio` (of its memory) in percent, `memory` in bytes.

    None: the scheduler did not say. The uuid is empty where it named the minor alone.
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
    """What all of these cards give, as parameters of a claim; none where they are whole."""
    each = least(grants)
    said = {"core": each.core, "memory": each.memory, "ratio": each.ratio}
    return {} if each.whole else {key: str(value) for key, value in said.items() if value is not None}


def measured(parameters: Mapping[str, str], memory: int) -> Part | None:
    """What `share` said, of a card of so many bytes; None where it said nothing.

    Of percent and bytes the smaller, for schedulers round one of them up.
    """
    said = {key: int(it) for key, it in parameters.items() if key in _SHARE and it.isascii() and it.isdigit()}
    if not said:
        return None
    in_bytes = said.get("memory", 0) / memory if memory else 0.0
    parts = [it for it in (in_bytes, said.get("ratio", 0) / 100) if it]
    return Part(said.get("core", 0) / 100, min(parts, default=0.0))


def least(grants: Sequence[CardGrant]) -> CardGrant:
    """What every one of these cards gives: of cards of two sizes half is not the same."""
    cores, memories, ratios = ([getattr(it, name) for it in grants] for name in ("core", "memory", "ratio"))
    core, memory, ratio = (None if None in its else min(its) for its in (cores, memories, ratios))
    return CardGrant(0, "", core, memory, ratio)


def in_words(it: CardGrant) -> str:
    """How much of a card it is: `10 % of the cores and 1Gi`."""
    said = [f"{it.core} % of the cores"] if it.core is not None else []
    if it.memory is not None:
        said.append(f"{it.memory / GIB:g}Gi")
    elif it.ratio is not None:
        said.append(f"{it.ratio} % of the memory")
    return " and ".join(said)
