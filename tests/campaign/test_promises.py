"""What would mislead somebody is noticed within some days; test_fuzz.py lives a few by the rules."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from agent.core.allocation import room_on_cards
from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.allocation.container_allocations import ContainersWithAllocation
from agent.core.attribution import answered_claims, pod_attribution
from agent.core.placement import allocate_placement
from agent.daemon.allocation import allocator

from .fuzz import clearly
from .promises import OF, SHARED, day, lived

DAYS = 300


@pytest.mark.parametrize(
    ("module", "rule", "broken", "seen"),
    [
        (room_on_cards, "has_room", lambda *_, **__: True, "more shares than there are"),
        (room_on_cards, "is_as_counted", lambda *_, **__: True, "more shares than there are"),
        (allocate_placement, "_find_other_cards", lambda *_: (), "more shares than there are"),
        (
            allocate_placement,
            "_promised_to_pods_on",
            lambda *_: [(card,) for card in OF[SHARED]],
            "on other cards than were given",
        ),
        (answered_claims, "swap_claims", lambda *_: {}, "the claim of another"),
        (
            pod_attribution,
            "containers_with_allocation",
            lambda _, resource, pods: ContainersWithAllocation(AllocationsInUse.of(()), resource),
            "was promised",
        ),
        (allocator, "annotations_of", lambda it: {ALLOCATION: ""}, "no allocation"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_rule_that_is_broken_misleads_somebody(
    monkeypatch: pytest.MonkeyPatch, module: Any, rule: str, broken: Callable[..., object], seen: str
) -> None:
    monkeypatch.setattr(module, rule, broken)

    with pytest.raises(AssertionError, match=seen):
        live()


def live() -> None:
    for number in range(DAYS):
        lived(day(Random(f"1/{number}")), clearly)
