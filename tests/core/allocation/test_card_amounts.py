"""How much of a card its allocations take: as schedulers promised it, else as the kubelet counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from agent.core.allocation.card_amounts import CardAmounts, fit, measures
from agent.core.allocation.known_pods import KnownPods
from agent.core.model import Allocation, AllocationSource, Owner
from agent.scheduler_api import Candidate, Claim, Dialect, Part, PodContainer
from agent.schedulers.common.grants import measured
from agent.schedulers.hami.pod_annotations import HAMI
from agent.schedulers.koordinator.dialect import KOORDINATOR
from core.values import GPU, allocation, shared, whole

GIB = 1 << 30
HALF, THIRD = {"core": "50", "ratio": "50"}, {"core": "30", "memory": str(16 * GIB)}
TENTH = {"core": "10", "ratio": "10"}
AMOUNTS = CardAmounts({GPU: shared({"a": 4, "b": 4})}, measures((KOORDINATOR, HAMI)), {"a": 64 * GIB})


def takes(
    name: str,
    *ids: str,
    container: str = "main",
    dialect: str = "koordinator",
    cards: Sequence[str] = ("a",),
    handed: Mapping[str, str] | None = None,
    on: Sequence[str] = (),
    said: Mapping[str, str] | None = None,
) -> Allocation:
    """An allocation of a pod that was promised so much of these cards, or (None) nothing."""
    claim = Claim(name, "default", name, container, tuple(cards), said or {}, dialect=dialect)
    it = allocation(f"{name}-{container}", ids, owner=Owner(name, container, "default", name))
    return replace(it, claim=claim if said is not None else None, diverged=tuple(on), handed=handed)


WORD = replace(takes("own", said=HALF), resource="koordinator.sh/gpu", source=AllocationSource.ANNOTATION)


@pytest.mark.parametrize(
    ("in_use", "expected"),
    [
        pytest.param([], Part(), id="nothing"),
        pytest.param([takes("web", "a::0", said=HALF)], Part(0.5, 0.5), id="percent"),
        pytest.param([takes("web", "a::0", said=THIRD)], Part(0.3, 0.25), id="bytes"),
        pytest.param([takes("web", "a::0", said={})], Part(1, 1), id="a card that is promised whole"),
        pytest.param([takes("web", "a::0", said={}, dialect="hami")], Part(0.25, 0.25), id="no amount"),
        pytest.param([takes("web", "a::0", "a::1")], Part(0.5, 0.5), id="no promise: two IDs of four"),
        pytest.param([takes("web", "a::0", said=HALF, on=("b",))], Part(), id="on another card"),
        pytest.param([takes("web", "a::0", said=HALF, cards=())], Part(0.5, 0.5), id="of whichever card"),
        pytest.param([takes("web", "b::0", said=HALF, on=("a",))], Part(0.5, 0.5), id="by another's ID"),
        pytest.param([takes("web", "a::0", said=THIRD, handed=HALF)], Part(0.5, 0.5), id="given more"),
        pytest.param([takes("web", "a::0", said=HALF, handed={})], Part(1, 1), id="given no limits"),
        pytest.param([takes("web", "a::0", said=HALF, handed=THIRD)], Part(0.5, 0.5), id="promised more"),
        pytest.param([takes("web", "a::0", handed=HALF)], Part(0.5, 0.5), id="promised nothing, given some"),
        pytest.param([takes("web", "a::0", handed=TENTH)], Part(0.25, 0.25), id="given less than its share"),
        pytest.param(
            [replace(takes("web", "a::0", handed=TENTH), partitions=("web",))],
            Part(0.1, 0.1),
            id="made small",
        ),
        pytest.param(
            [takes("web", "a::0", said=HALF, cards=("a", "b"))], Part(1, 1), id="of two cards, on one"
        ),
        pytest.param(
            [takes("web", "a::0", "b::0", said=HALF, cards=("a", "b"))], Part(0.5, 0.5), id="on both"
        ),
        pytest.param([replace(WORD, devices=("a",))], Part(0.5, 0.5), id="by a scheduler's word alone"),
        pytest.param(
            [takes("web", "a::0", said=HALF), takes("job", "a::1")], Part(0.75, 0.75), id="both kinds"
        ),
        pytest.param(
            [takes("web", "a::0", container="init"), takes("web", "a::0", "a::1")],
            Part(0.5, 0.5),
            id="an ID that an init container hands on",
        ),
        pytest.param(
            [replace(takes("web", "a::0", container=name), partitions=(name,)) for name in ("init", "main")],
            Part(0.5, 0.5),
            id="hardware that was made for each of two containers",
        ),
    ],
)
def test_a_card_gives_what_was_promised_of_it_or_else_what_its_ids_are(
    in_use: Sequence[Allocation], expected: Part
) -> None:
    found = AMOUNTS.amount_on_card("a", in_use)

    assert (found.core, found.memory) == pytest.approx((expected.core, expected.memory))


def test_containers_that_do_not_run_at_one_time_take_as_much_as_the_larger_time() -> None:
    containers = (
        PodContainer("init", init=True),
        PodContainer("side", init=True, restartable=True),
        PodContainer("main"),
    )
    amounts = structs.replace(AMOUNTS, pods=KnownPods.of([Candidate("web", "default", "web", containers)]))
    its = [
        takes("web", f"a::{n}", container=name, said={"core": core})
        for n, (name, core) in enumerate({"init": "60", "side": "10", "main": "40"}.items())
    ]

    assert amounts.amount_on_card("a", its).core == pytest.approx(0.7)
    assert amounts.amount_on_card("a", its[1:]).core == pytest.approx(0.5)


def test_a_card_of_no_such_resource_is_used_whole() -> None:
    assert AMOUNTS.amount_on_card("c", [takes("web", "c")]) == Part(1, 1)
    assert CardAmounts({GPU: whole("a")}).amount_on_card("a", [takes("web", "a")]) == Part(1, 1)


def test_parts_fit_on_a_card_where_neither_cores_nor_memory_are_more_than_all() -> None:
    assert fit(Part(0.9, 0.1), Part(0.1, 0.9))
    assert fit(*[Part(0.1, 0.1)] * 10), "as floats they are a hair more than all"
    assert not fit(Part(0.9, 0.1), Part(0.2, 0.1))
    assert not fit(Part(0.1, 0.9), Part(0.1, 0.2))


def test_a_measure_that_raises_measures_nothing() -> None:
    def broken(parameters: Mapping[str, str], memory: int) -> Part:
        raise ZeroDivisionError

    amounts = structs.replace(AMOUNTS, measures=measures([replace(KOORDINATOR, measure=broken)]))

    assert amounts.amount_on_card("a", [takes("web", "a::0", said=HALF, handed=HALF)]) == Part(0.25, 0.25)


@pytest.mark.parametrize(
    ("parameters", "memory", "expected"),
    [
        ({"core": "30", "ratio": "50"}, 0, Part(0.3, 0.5)),
        ({"memory": str(GIB), "ratio": "50"}, 4 * GIB, Part(0, 0.25)),
        ({"memory": str(3 * GIB), "ratio": "50"}, 4 * GIB, Part(0, 0.5)),
        ({"memory": str(GIB)}, 0, Part()),
        ({"core": "ten"}, 0, None),
        ({"priority": "9"}, 0, None),
        ({}, 0, None),
    ],
)
def test_of_percent_and_bytes_of_memory_the_smaller_counts(
    parameters: Mapping[str, str], memory: int, expected: Part | None
) -> None:
    assert measured(parameters, memory) == expected


def test_a_claim_is_measured_by_its_dialect_alone() -> None:
    strange = Dialect("strange", KOORDINATOR.claims)

    assert measures([strange]) == {}
    assert AMOUNTS.amount_on_card("a", [takes("web", "a::0", said=HALF, dialect="strange")]) == Part(
        0.25, 0.25
    )
