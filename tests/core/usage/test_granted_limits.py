"""What allocations were granted of a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.core.allocation.card_amounts import CardAmounts
from agent.core.model import Allocation
from agent.core.usage.granted_limits import NO_LIMITS, Limits, granted, together
from agent.scheduler_api import Claim
from agent.scheduler_api.claims import Part
from agent.vendor_api.agent import Sharing

from .cards_in_use import CARD, GIB, OTHER_CARD, held, resource


def measure(parameters: Mapping[str, str], memory: int) -> Part | None:
    """Percents; None where none is named."""
    if not parameters:
        return None
    return Part(float(parameters.get("core", 0)) / 100, float(parameters.get("memory", 0)) / 100)


MEMORY = {CARD: 16 * GIB, OTHER_CARD: 32 * GIB}
AMOUNTS = CardAmounts(measures={"acme": measure}, memory=MEMORY)


def claim(*cards: str, dialect: str = "acme", **parameters: str) -> Claim:
    return Claim("uid-p", "ns", "p", "main", cards or (CARD,), parameters, dialect=dialect)


def limits(allocation: Allocation, replicas: int | None = None, made: int | None = None) -> Limits:
    planned = resource(CARD, OTHER_CARD, replicas=replicas)
    return granted(allocation, CARD, planned, AMOUNTS, made)


def test_a_whole_card_grants_its_memory() -> None:
    assert limits(held("p")) == Limits(16 * GIB, 1.0)
    assert limits(held("p", CARD, OTHER_CARD)) == Limits(16 * GIB, 1.0)


def test_a_replica_grants_no_limit() -> None:
    assert limits(held("p", f"{CARD}::0", f"{CARD}::1"), replicas=4) == NO_LIMITS


def test_a_share_of_an_earlier_config_is_no_whole_card() -> None:
    assert limits(held("p", f"{CARD}::0")) == NO_LIMITS


def test_a_resource_that_is_served_no_more_grants_no_limit() -> None:
    assert granted(held("p"), CARD, None, AMOUNTS) == NO_LIMITS


@pytest.mark.parametrize(("unit", "expected"), [("1", 3 * GIB), ("0.1", 3 * GIB // 10), ("unknown", None)])
def test_units_of_memory_grant_as_many_bytes(unit: str, expected: int | None) -> None:
    ids = [f"0::{n}" for n in range(3)]
    allocation = replace(held("p", *ids, devices=(CARD,)), unit=unit)
    planned = resource(CARD, replicas=16, sharing=Sharing("memory", unit="1"))
    assert granted(allocation, CARD, planned, AMOUNTS) == Limits(expected)


def test_a_claim_grants_what_its_dialect_measures() -> None:
    assert limits(held("p", claim=claim(core="25", memory="50"))) == Limits(8 * GIB, 0.25)
    assert limits(held("p", claim=claim(memory="50"))) == Limits(8 * GIB, None)
    assert limits(held("p", claim=claim(core="25"))) == Limits(None, 0.25)


def test_a_claim_whose_dialect_measures_nothing_grants_what_the_ids_say() -> None:
    assert limits(held("p", claim=claim(dialect="other", core="25"))) == Limits(16 * GIB, 1.0)
    assert limits(held("p", claim=claim())) == Limits(16 * GIB, 1.0)


def test_the_answer_counts_and_not_the_claim_where_they_differ() -> None:
    allocation = held("p", claim=claim(core="25", memory="50"))
    assert limits(replace(allocation, handed={"core": "10", "memory": "25"})) == Limits(4 * GIB, 0.1)
    assert limits(replace(allocation, handed={})) == NO_LIMITS


def test_a_slice_that_was_made_grants_its_size() -> None:
    allocation = held("p", partitions=("sgpu-1",), claim=claim(core="25", memory="50"))
    assert limits(allocation, made=5 * GIB) == Limits(5 * GIB, 0.25)
    assert limits(held("p", partitions=("sgpu-1",)), made=5 * GIB) == Limits(5 * GIB)
    assert limits(allocation) == Limits(8 * GIB, 0.25)


def test_a_container_has_the_limits_of_its_resources_together() -> None:
    assert together([]) == NO_LIMITS
    assert together([Limits(GIB, None), Limits(None, 0.5), Limits(GIB, 0.75)]) == Limits(2 * GIB, 1.0)
