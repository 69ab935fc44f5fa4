"""Units of a card's memory: how many it has of each size, exactly. Pure."""

from __future__ import annotations

from typing import get_args

from agent.vendor_api.agent import Sharing, Unit

#: The sizes, coarsest first, and what each is in thousandths of a GiB.
THOUSANDTHS: dict[str, int] = {"1": 1000, "0.1": 100, "0.01": 10, "0.001": 1}
AUTO = "auto"
#: What another plugin's IDs count that are no shares as ours are: their card waits until they are free.
UNKNOWN = "unknown"

assert {*THOUSANDTHS, AUTO} == {*get_args(Unit)}


def units(memory: int, unit: str) -> int:
    """How many whole units of so many GiB this memory, in bytes, has; bytes beyond whole MiB do not count.

    Source: GCUShare counts floor(GB / unit) of a card, where its GB are 1024 MiB: 16384 MiB are 16, 160, 1600
    or 16000.
    """
    return (memory >> 20) * 1000 // (1024 * THOUSANDTHS[unit])


def coarser(unit: str) -> dict[str, int]:
    """The sizes above this one, finest first, each with how many of this one it is.

    A card has exactly its number of units divided by that, whole: floors of floors are floors.
    """
    mine = THOUSANDTHS[unit]
    return {it: size // mine for it, size in reversed(THOUSANDTHS.items()) if size > mine}


def counted_in(sharing: Sharing) -> str:
    """The size in which a rule counts memory; empty where it counts something else."""
    return sharing.unit or "" if sharing.kind == "memory" else ""


def on_one_card(sharing: Sharing) -> bool:
    """Whether all that a container gets of it lies on one card."""
    return sharing.kind == "memory" or (sharing.kind == "replicas" and not sharing.span_cards)
