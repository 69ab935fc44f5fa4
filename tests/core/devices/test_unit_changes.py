"""In which units a resource counts memory: the config's, unless pods or the kubelet's list forbid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.plan import plan
from agent.core.devices.unit_changes import KeptUnit, TooLong, UnitPlan, plan_units
from agent.core.model import DeviceStatus, Owner, Resource
from agent.vendor_api.agent import ResourceRule, Sharing, Unit
from core.values import GPU, node, status

OTHER = "example.com/other"


def card(name: str, gib: int = 16) -> DeviceStatus:
    its = status(name)
    return replace(its, device=replace(its.device, memory=gib << 30))


CARDS = node(card("a"), card("b"))


def rule(unit: str, name: str = GPU) -> ResourceRule:
    return ResourceRule(name, sharing=Sharing("memory", unit=cast("Unit", unit)))


def at_most(most: int) -> TooLong:
    """Lists of so many IDs at most."""

    def too_long(it: Resource) -> str:
        return "" if it.capacity <= most else f"{it.capacity} are more than {most}"

    return too_long


def settled(
    wanted: ResourceRule,
    counted: Mapping[str, tuple[str, ...]] | None = None,
    served: str = "",
    most: int = 1 << 30,
    last: UnitPlan | None = None,
) -> tuple[Sharing, tuple[KeptUnit, ...], UnitPlan]:
    before = plan([Offer("acme", (rule(served),))], CARDS) if served else {}
    held = {GPU: counted or {}}
    made = plan_units(
        [Offer("acme", (wanted,))],
        CARDS,
        ResourceUsage(units=held),
        before,
        last or UnitPlan(),
        at_most(most),
    )
    return made.offers[0].rules[0].sharing, made.kept, made


def unit_of(*given: object, **more: object) -> str | None:
    return settled(*given, **more)[0].unit  # type: ignore[arg-type]


def test_resources_that_may_name_the_same_cards_still_may_once_their_units_are_settled() -> None:
    offers = [Offer("acme", (ResourceRule(OTHER), rule("auto")), dynamic=True)]

    made = plan_units(offers, CARDS, ResourceUsage(), {}, UnitPlan(), at_most(1000))

    its = plan(made.offers, CARDS)
    assert made.offers[0].dynamic
    assert {name: it.capacity for name, it in its.items()} == {OTHER: 2, GPU: 320}


def test_a_unit_that_nobody_holds_is_the_config_s() -> None:
    assert settled(rule("0.1"))[:2] == (Sharing("memory", unit="0.1"), ())
    assert settled(rule("0.1"), {}, served="1")[:2] == (Sharing("memory", unit="0.1"), ())


@pytest.mark.parametrize("served", ["", "1", "0.1"])
def test_a_unit_that_pods_hold_stays(served: str) -> None:
    sharing, kept, _ = settled(rule("0.1"), {"a": ("1",)}, served)

    assert sharing.unit == "1"
    assert kept == (KeptUnit(GPU, "1", "0.1"),)
    assert "until these pods have ended: a/b" in kept[0].sentence([Owner("u", "c", "a", "b")])


def test_the_unit_that_pods_hold_and_the_config_wants_keeps_nothing() -> None:
    assert settled(rule("0.1"), {"a": ("0.1",)}, "0.1")[1] == ()


@pytest.mark.parametrize(("served", "unit"), [("1", "1"), ("0.1", "0.1"), ("", "0.01"), ("0.001", "0.01")])
def test_of_several_units_that_pods_hold_the_one_that_is_served_stays(served: str, unit: str) -> None:
    held = {"a": ("1", "0.1"), "b": ("0.01",)}

    assert unit_of(rule("0.01"), held, served) == unit


def test_what_holds_cards_without_counting_memory_keeps_no_unit() -> None:
    assert settled(rule("0.1"), {"a": ("",)}, "1")[:2] == (Sharing("memory", unit="0.1"), ())


def test_a_unit_of_another_release_is_not_counted_in() -> None:
    assert settled(rule("0.1"), {"a": ("0.0001",)})[:2] == (Sharing("memory", unit="0.1"), ())


def test_a_unit_whose_list_is_too_long_does_not_take_the_place_of_one_that_is_served() -> None:
    sharing, kept, _ = settled(rule("0.001"), served="1", most=1000)

    assert sharing.unit == "1"
    assert kept == (KeptUnit(GPU, "1", "0.001", "32000 are more than 1000"),)
    assert "because 32000 are more than 1000" in kept[0].sentence([])
    assert unit_of(rule("0.001"), most=1000) == "0.001"  # the session says what is wrong


@pytest.mark.parametrize(("most", "unit"), [(32000, "0.001"), (31999, "0.01"), (320, "0.1"), (1, "1")])
def test_auto_is_the_smallest_unit_that_fits(most: int, unit: str) -> None:
    assert unit_of(rule("auto"), most=most) == unit


def test_auto_stays_what_it_was_while_that_fits() -> None:
    _, _, last = settled(rule("auto"), most=320)
    assert unit_of(rule("auto"), last=last) == "0.1"
    assert unit_of(rule("auto"), most=31, last=last) == "1"
    assert unit_of(rule("auto"), last=UnitPlan()) == "0.001"


def test_auto_is_what_pods_hold_where_that_fits() -> None:
    assert settled(rule("auto"), {"a": ("0.1",)})[:2] == (Sharing("memory", unit="0.1"), ())
    assert settled(rule("auto"), {"a": ("0.1",)}, most=31)[:2] == (
        Sharing("memory", unit="0.1"),
        (KeptUnit(GPU, "0.1", "1"),),
    )


def test_other_resources_are_left_as_they_are() -> None:
    rules = (replace(rule("0.1"), devices=(0,)), ResourceRule(OTHER, sharing=Sharing("replicas", 4)))

    made = plan_units(
        [Offer("acme", rules)],
        CARDS,
        ResourceUsage(units={OTHER: {"b": ("",)}}),
        {},
        UnitPlan(),
        lambda it: "too long",
    )

    assert made == UnitPlan((Offer("acme", rules),))
