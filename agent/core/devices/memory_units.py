"""Memory units: exactly how many units of each size a card has. Pure."""

from __future__ import annotations

from typing import get_args

from agent.vendor_api.agent import Sharing, Unit

#: The sizes, coarsest first, and what each is in thousandths of a GiB.
THOUSANDTHS: dict[str, int] = {"1": 1000, "0.1": 100, "0.01": 10, "0.001": 1}
AUTO = "auto"
#: Stands for the unit of another plugin's IDs that this agent cannot count. Their card is not offered until
#: those IDs are free.
UNKNOWN = "unknown"

assert {*THOUSANDTHS, AUTO} == {*get_args(Unit)}


def units(memory: int, unit: str) -> int:
    """How many whole units of `unit` GiB are in `memory` bytes; bytes beyond whole MiB do not count.

    Source: GCUShare counts floor(GB / unit) of a card, where its GB are 1024 MiB: 16384 MiB are 16, 160, 1600
    or 16000.
    """
    return (memory >> 20) * 1000 // (1024 * THOUSANDTHS[unit])


def coarser(unit: str) -> dict[str, int]:
    """The sizes above this one, finest first, each with the number of these units in one of its own.

    Integer division by that number turns a card's count of these units into its exact count of larger ones,
    because nested floors are one floor.
    """
    size_of_unit = THOUSANDTHS[unit]
    return {it: size // size_of_unit for it, size in reversed(THOUSANDTHS.items()) if size > size_of_unit}


def counted_in(sharing: Sharing) -> str:
    """The memory unit of a rule; empty where the rule does not count memory."""
    return sharing.unit or "" if sharing.kind == "memory" else ""


def on_one_card(sharing: Sharing) -> bool:
    """Whether all IDs of one container must be on one card."""
    return sharing.kind == "memory" or (sharing.kind == "replicas" and not sharing.span_cards)
