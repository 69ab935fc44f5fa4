"""The checks of the campaign see what they are there to see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .bed import tracebacks
from .hardware import LAYOUTS, Card
from .invariants import Look, Told, swapped, violations

XPU = "example.com/xpu"
PLACE = ("uid-1", "main", XPU)
OTHER = ("uid-2", "main", XPU)
OWNER = {"namespace": "default", "pod": "p", "uid": "uid-1", "container": "main"}
ALLOCATION: dict[str, Any] = {
    "id": "a1",
    "resource": XPU,
    "ids": ["card-0"],
    "devices": ["card-0"],
    "owner": OWNER,
    "state": "done",
}
DEVICES = [
    {"uuid": "card-0", "health": {"state": "healthy"}, "cordon": None},
    {"uuid": "card-1", "health": {"state": "unhealthy"}, "cordon": None},
]
DOCUMENT: dict[str, Any] = {
    "ready": True,
    "troubles": [],
    "allocations": [ALLOCATION],
    "devices": DEVICES,
    "resources": [{"name": XPU, "capacity": 2, "allocatable": 1}],
}
WELL = Look(
    held={PLACE: frozenset({"card-0"})},
    counts={XPU: (2, 1)},
    document=DOCUMENT,
    admitted={PLACE: 1},
    expected={XPU: (2, 1)},
    broken=frozenset({"card-1"}),
    foreign=frozenset({"strange"}),
    slices=(
        {"id": "strange", "uuid": "card-0", "allocation": None},
        {"id": "a1/0", "uuid": "card-0", "allocation": "a1"},
    ),
    prepared=frozenset({XPU}),
)


def documented(**parts: Any) -> Look:
    return replace(WELL, document={**DOCUMENT, **parts})


def allocated(*more: dict[str, Any], **parts: Any) -> Look:
    return documented(allocations=[{**ALLOCATION, **parts}, *more])


TWICE = replace(
    WELL,
    held={**WELL.held, OTHER: frozenset({"card-0"})},
    admitted={PLACE: 1, OTHER: 1},
    document={
        **DOCUMENT,
        "allocations": [ALLOCATION, {**ALLOCATION, "id": "a2", "owner": {**OWNER, "uid": "uid-2"}}],
    },
)


def test_what_is_well_holds() -> None:
    assert violations(WELL) == []


@pytest.mark.parametrize(
    ("look", "kind", "words"),
    [
        pytest.param(replace(WELL, document={}), "away", "shows nothing", id="nobody answers"),
        pytest.param(
            TWICE, "doubled", "the kubelet: example.com/xpu card-0", id="an ID twice with the kubelet"
        ),
        pytest.param(TWICE, "doubled", "ours: example.com/xpu card-0", id="an ID twice with us"),
        pytest.param(
            allocated({**ALLOCATION, "id": "a2", "resource": "example.com/whole", "ids": ["whole-0"]}),
            "doubled",
            "card-0 is given out as",
            id="a card in two ways",
        ),
        pytest.param(documented(allocations=[]), "lost", "has 0 allocations", id="a pod without allocation"),
        pytest.param(replace(WELL, held={}), "lost", "has 0 of its 1", id="a pod without devices"),
        pytest.param(allocated(state="intent"), "lost", "is intent", id="an allocation half done"),
        pytest.param(
            allocated({**ALLOCATION, "id": "a2"}), "lost", "2 allocations", id="two for one container"
        ),
        pytest.param(allocated(ids=["card-1"]), "swapped", "card-1", id="another ID with us"),
        pytest.param(replace(WELL, admitted={}), "leaked", "a1", id="an allocation without pod"),
        pytest.param(allocated(owner=None), "leaked", "nobody", id="an allocation without owner"),
        pytest.param(allocated(id="a9"), "leaked", "a1/0", id="a slice without allocation"),
        pytest.param(
            replace(WELL, slices=WELL.slices[:1]), "lost", "slices", id="an allocation without slice"
        ),
        pytest.param(replace(WELL, slices=WELL.slices[1:]), "foreign", "strange", id="a foreign slice gone"),
        pytest.param(
            replace(WELL, slices=(*WELL.slices, {"id": "made", "uuid": "GPU-0", "allocation": None})),
            "leaked",
            "nobody's",
            id="a slice without a mark that nobody else made",
        ),
        pytest.param(
            replace(WELL, counts={XPU: (2, 2)}), "view", "the kubelet counts", id="another count there"
        ),
        pytest.param(replace(WELL, expected={XPU: (2, 2)}), "view", "we count", id="another count here"),
        pytest.param(documented(ready=False, troubles=["x"]), "view", "not ready", id="not ready"),
        pytest.param(
            replace(WELL, broken=frozenset({"card-0"})), "forgotten", "card-0", id="a fault forgotten"
        ),
        pytest.param(
            replace(WELL, cordoned=frozenset({"card-0"})), "forgotten", "cordon", id="a cordon forgotten"
        ),
    ],
)
def test_what_is_not_well_is_seen(look: Look, kind: str, words: str) -> None:
    assert [it for it in violations(look) if it.kind == kind and words in it.text]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Told(PLACE, "a1", frozenset({"card-0"})), ""),
        (Told(PLACE, "a1", frozenset({"card-1"})), "sees ['card-1']"),
        (Told(PLACE, "a7", frozenset({"card-0"})), "a7, which is not in use"),
        (Told(OTHER, "a1", frozenset({"card-0"})), "starts with a1 of"),
    ],
)
def test_a_container_that_starts_with_another_ones_allocation_is_seen(told: Told, words: str) -> None:
    found = [it.text for it in swapped(WELL, [told])]

    assert bool(found) == bool(words)
    assert words in "".join(found)


def test_an_exception_in_the_log_is_seen_and_a_vendors_own_is_not() -> None:
    mark = "Traceback (most recent call last)"
    log = f'{{"event": "vendor output", "line": "{mark}:"}}\n{{"event": "x", "exception": "{mark}: here"}}'

    assert [text.count("here") for text in tracebacks(log)] == [1]


def test_an_id_that_an_init_container_hands_on_is_expected_once_of_a_card_that_is_cordoned(
    tmp_path: Path,
) -> None:
    hardware = LAYOUTS["sliced"](tmp_path)
    offer, card = hardware.offers[0], Card("simulated", hardware.offers[0].cards[0])
    hardware.cordoned.add(card)
    held = {("uid", one, offer.name): frozenset({hardware.uuid(card)}) for one in ("before", "main")}

    capacity, allocatable = hardware.expected(held)[offer.name]

    assert allocatable == capacity - offer.replicas + 1
