"""Schedulers of Enflame's cards read of the Node what is to be had, counted as they count pods themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agent.scheduler_api import Candidate, PodContainer, SchedulerFacts
from agent.schedulers.gcushare.names import ResourceNames
from agent.schedulers.gcushare.node_capacities import facts
from agent.vendor_api.agent import Device, Fault, Grant, Offering, Request, ResourceRule, Sharing
from agent.vendors.enflame.agent.counted_cards import counted_cards
from agent.vendors.enflame.agent.options import Options
from agent.vendors.enflame.shared import constants

WHOLE, MEMORY = "enflame.com/gcu", "enflame.com/gcu-memory"
SHARED, DRS = "enflame.com/shared-gcu", "enflame.com/drs-gcu"
SHARED_KEY, DRS_KEY = "enflame.com/gcu-shared-capacity", "enflame.com/gcu-drs-capacity"
#: Of an S60, as a dump of a node shows them.
S60 = "1g.6gb:0,3g.20gb:1,6g.40gb:2"


def card(n: int, fault: Fault | None = None, **attributes: str) -> Device:
    """The n-th card, whose node has the number n + 10."""
    told = {constants.PROFILES: S60, **{key.replace("_", "-"): it for key, it in attributes.items()}}
    return Device(f"GCU-{n}", n, n + 10, attributes=told, fault=fault)


CARDS = (card(0), card(1))


def offers(*names: str, replicas: int = 6) -> Any:
    """All cards by each of these names, as the vendor's offering says it."""

    def offering(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Offering:
        uuids = tuple(it.uuid for it in devices)
        sharing = Sharing("replicas", replicas)
        return Offering(tuple(ResourceRule(name, uuids, sharing) for name in names))

    return offering


def grant(name: str, uuid: str, count: int = 1) -> Grant:
    return Grant(Request("a", name, tuple(f"{uuid}::{n}" for n in range(count))), (uuid,))


def pod(*containers: PodContainer, ended: bool = False) -> Candidate:
    return Candidate("u", "default", "pod", containers, ended=ended)


def asks(container: str, name: str, count: int, *, init: bool = False) -> PodContainer:
    return PodContainer(container, {name: count}, init)


def has(whose: Candidate, container: str, first: int = 0) -> Grant:
    """What a container has of the first card, whose IDs begin with this one."""
    [its] = (it.limits for it in whose.containers if it.name == container)
    [(name, count)] = its.items()
    ids = tuple(f"GCU-0::{n}" for n in range(first, first + count))
    made = (f"{container}:{first}",) if name == DRS else ()
    return Grant(Request(container, name, ids), ("GCU-0",), made, whose, container)


def told(
    *grants: Grant,
    cards: Sequence[Device] = CARDS,
    dialect: str = "gcushare-v4",
    names: Sequence[str] = (WHOLE, SHARED, DRS),
    replicas: int = 6,
    **settings: Any,
) -> Mapping[str, str | None]:
    options = Options.read({"dialect": dialect, **settings})
    return node_annotations(options, offers(*names, replicas=replicas), (), cards, grants)


def facts_of(options: Options) -> SchedulerFacts:
    return facts(ResourceNames.of(options.brand.terms), options.dialect)


def node_annotations(
    options: Options,
    offering: Any,
    rules: Sequence[ResourceRule],
    cards: Sequence[Device],
    grants: Sequence[Grant],
) -> Mapping[str, str | None]:
    make = facts_of(options).annotations
    return make(counted_cards(options.brand, offering, rules, cards), grants) if make is not None else {}


def extended_resources(
    options: Options, offering: Any, rules: Sequence[ResourceRule], cards: Sequence[Device]
) -> Mapping[str, int | None] | None:
    make = facts_of(options).extended_resources
    return make(counted_cards(options.brand, offering, rules, cards)) if make is not None else None


def shared(*grants: Grant, **more: Any) -> Mapping[str, int]:
    found: Mapping[str, int] = json.loads(told(*grants, **more)[SHARED_KEY] or "")
    return found


def sliced(*grants: Grant, **more: Any) -> list[int]:
    devices = json.loads(told(*grants, **more)[DRS_KEY] or "")["devices"]
    return [it["capacity"] for it in devices]


def test_the_texts_are_those_that_gcushare_writes_itself() -> None:
    assert told(cards=(card(0),)) == {
        SHARED_KEY: '{"10":6}',
        DRS_KEY: '{"devices":[{"index":"0","minor":"10","capacity":6}],'
        '"profiles":{"1g.6gb":"0","3g.20gb":"1","6g.40gb":"2"}}',
    }


@pytest.mark.parametrize("dialect", ["none", "gcushare-v1"])
def test_where_nobody_reads_them_there_are_none(dialect: str) -> None:
    assert told(dialect=dialect) == {}


def test_what_is_not_offered_is_not_told_nor_anything_without_cards() -> None:
    assert set(told(names=(WHOLE, SHARED))) == {SHARED_KEY}
    assert set(told(names=(WHOLE, DRS))) == {DRS_KEY}
    assert told(names=(WHOLE,)) == {}
    assert told(cards=()) == {}


def test_what_is_given_out_as_slices_stays_in_the_sum_for_the_scheduler_takes_it_off_itself() -> None:
    assert shared(grant(SHARED, "GCU-0", 4)) == {"10": 6, "11": 6}
    assert sliced(grant(DRS, "GCU-0", 3)) == [6, 6]


def test_a_pod_is_counted_as_gcushares_scheduler_counts_it_by_its_main_containers_together() -> None:
    """Its init containers' slices are theirs a second time, and are no slices of the card."""
    alike = pod(asks("init", SHARED, 4, init=True), asks("a", SHARED, 2), asks("b", SHARED, 2))

    assert shared(has(alike, "init"), has(alike, "a"), has(alike, "b", 2)) == {"10": 6, "11": 6}


def test_what_init_containers_have_beyond_the_main_ones_is_not_to_be_had_for_the_scheduler_overlooks_it() -> (
    None
):
    more = pod(asks("init", SHARED, 4, init=True), asks("a", SHARED, 1))
    beside = pod(PodContainer("side", {SHARED: 2}, init=True, restartable=True), asks("a", SHARED, 1))
    sliced_too = pod(asks("init", DRS, 1, init=True), asks("a", DRS, 3))

    assert shared(has(more, "init"), has(more, "a")) == {"10": 3, "11": 6}
    assert shared(has(beside, "side"), has(beside, "a", 2)) == {"10": 4, "11": 6}
    assert sliced(has(sliced_too, "init"), has(sliced_too, "a")) == [5, 6]


def test_a_pod_that_has_ended_or_that_nobody_shows_is_counted_by_no_scheduler() -> None:
    ended = pod(asks("init", SHARED, 6, init=True), asks("a", SHARED, 3), ended=True)

    assert shared(has(ended, "init"), has(ended, "a")) == {"10": 6, "11": 6}
    assert shared(grant(SHARED, "GCU-0", 6), grant(SHARED, "GCU-0", 6)) == {"10": 6, "11": 6}


def test_no_card_is_told_with_more_than_it_has_and_one_with_more_on_it_is_not_told_at_all() -> None:
    """The number of slices was changed. Less than none is left of it then, which ends all scheduling."""
    five = pod(asks("a", SHARED, 5))

    assert json.loads(told(has(five, "a"), replicas=4)[SHARED_KEY] or "") == {"11": 4}


def test_a_card_that_pods_have_of_which_the_scheduler_knows_nothing_has_no_slices() -> None:
    assert shared(grant(WHOLE, "GCU-0")) == {"11": 6}
    assert sliced(grant(WHOLE, "GCU-0")) == [6]
    assert shared(grant(MEMORY, "GCU-1", 12)) == {"10": 6}


def test_gcushare_leaves_out_cards_of_the_other_kind_itself_and_hami_is_told() -> None:
    assert shared(grant(DRS, "GCU-0", 3)) == {"10": 6, "11": 6}
    assert sliced(grant(SHARED, "GCU-0", 2)) == [6, 6]
    assert shared(grant(DRS, "GCU-0", 3), dialect="hami") == {"11": 6}
    assert sliced(grant(SHARED, "GCU-0", 2), dialect="hami") == [0, 6]


def test_a_card_that_nobody_new_gets_is_not_told_whatever_pods_have_of_it() -> None:
    """A number of which the scheduler takes pods that are not known here yet would come out below none."""
    broken = (card(0, Fault("ecc")), card(1))

    assert shared(cards=broken) == {"11": 6}
    assert shared(grant(SHARED, "GCU-0", 2), grant(SHARED, "GCU-0", 2), cards=broken) == {"11": 6}
    assert sliced(grant(DRS, "GCU-0", 3), cards=broken) == [6]
    assert shared(cards=broken[:1]) == {}


def test_slices_that_nobody_of_us_made_are_not_to_be_had() -> None:
    cards = (card(0, foreign_slices="1", foreign_sixths="3"), card(1))

    assert sliced(cards=cards) == [3, 6]
    assert shared(cards=cards) == {"11": 6}


def test_of_profiles_those_are_told_that_all_cards_have() -> None:
    cards = (card(0), card(1, profiles="6g.40gb:2,1g.6gb:7"), card(2, profiles="6g.40gb:2"))

    assert json.loads(told(cards=cards)[DRS_KEY] or "")["profiles"] == {"6g.40gb": "2"}


def test_another_brand_has_the_keys_that_gcushare_writes_and_those_that_its_scheduler_reads() -> None:
    """Which are not the same: plugin.go:148, pkg/resources/node.go:108."""
    options = Options.read({"dialect": "gcushare-v4", "registerResource": "tencent.com/zixiao"})
    offered = offers("tencent.com/shared-zixiao", "tencent.com/drs-zixiao")
    found = node_annotations(options, offered, (), CARDS, ())

    assert {*found} == {*facts_of(options).annotation_keys}
    assert found["tencent.com/zixiao-shared-capacity"] == found["tencent.com/gcu-shared-capacity"]
    assert found["tencent.com/zixiao-drs-capacity"] == found["enflame.com/gcu-drs-capacity"]
    assert facts_of(options).extended_resource_keys == ("tencent.com/zixiao-count",)
    assert facts_of(Options()).annotation_keys == (
        "enflame.com/gcu-shared-capacity",
        "enflame.com/gcu-drs-capacity",
    )


@pytest.mark.parametrize(
    ("names", "count"),
    [((WHOLE,), None), ((WHOLE, MEMORY), 2), ((WHOLE, SHARED, DRS), 2), ((DRS,), 2), ((), None)],
)
def test_the_cards_that_are_shared_are_counted_the_broken_ones_too(
    names: Sequence[str], count: int | None
) -> None:
    cards = (card(0, Fault("ecc")), card(1))

    options = Options.read({"dialect": "gcushare-v4"})

    assert extended_resources(options, offers(*names), (), cards) == {"enflame.com/gcu-count": count}
    assert extended_resources(Options(), offers(*names), (), cards) is None


def test_of_several_resources_the_one_is_counted_that_schedulers_divide() -> None:
    def offering(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> Offering:
        some = (
            ResourceRule(SHARED, ("GCU-0",), Sharing("replicas", 6)),
            ResourceRule(DRS, ("GCU-0", "GCU-1")),
        )
        return Offering(some)

    options = Options.read({"dialect": "hami"})
    assert extended_resources(options, offering, (), CARDS) == {"enflame.com/gcu-count": 1}
