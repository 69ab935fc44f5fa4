"""Events on their way from a vendor's process to the node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.core.devices.inventory import Inventory
from agent.core.model import DeviceStatus, VendorState, VendorStatus
from agent.isolation.vendor_event_queue import AT_ONCE, BURST, RATE, EventQueue
from agent.vendor_api.agent import Device, Fault, HealthEvent, Proof, State

DEVICES = (Device("a", 0), Device("b", 1), Device("a-1", 0, parent="a", slice=1))
FAULTS = st.builds(
    Fault,
    st.sampled_from(["hot", "lost"]),
    st.sampled_from(["", "said"]),
    st.sampled_from([State.UNHEALTHY, State.UNKNOWN]),
    st.sampled_from([(), (Proof.RESET,), (Proof.RESET, Proof.REBOOT)]),
)
EVENTS = st.builds(
    HealthEvent,
    st.sampled_from([None, "a", "b", "a-1"]),
    st.none() | FAULTS,
    st.none() | st.sampled_from([Proof.RESET, Proof.REBOOT]),
    st.booleans(),
)


def heard(turns: list[list[HealthEvent]]) -> tuple[DeviceStatus, ...]:
    """How the devices stand after these events."""
    inventory = Inventory()
    inventory.enable([VendorStatus("acme", VendorState.OPEN)])
    inventory.discovered("acme", DEVICES, 1.0)
    for events in turns:
        inventory.observed("acme", events, 2.0)
    return inventory.snapshot().devices


RESET = HealthEvent("a", None, Proof.RESET)
UNWATCHED = Fault("unwatched", state=State.UNKNOWN)


@given(turns=st.lists(st.lists(EVENTS, max_size=12), max_size=5))
@example([[RESET, HealthEvent("a-1", Fault("ecc", cleared_by=(Proof.RESET,))), RESET]])
@example([[HealthEvent(None, UNWATCHED), HealthEvent("a", None), HealthEvent(None, UNWATCHED)]])
@example([[HealthEvent(None, None), HealthEvent("a", UNWATCHED), HealthEvent(None, None)]])
def test_the_devices_stand_as_if_every_event_had_been_told(turns: list[list[HealthEvent]]) -> None:
    news, told = EventQueue(), []
    for events in turns:
        news.add(events)
        told.append(list(news.take(2)))

    assert heard(told) == heard(turns)


def test_what_is_said_again_and_again_of_all_devices_is_told_once_a_turn() -> None:
    news = EventQueue()
    unwatched = HealthEvent(None, UNWATCHED)

    for _ in range(1000):
        news.add([unwatched])

    assert news.take(2) == (unwatched,)


def test_what_is_said_again_and_again_of_a_device_is_told_once_a_turn() -> None:
    news = EventQueue()
    hot, cold = HealthEvent("a", Fault("hot")), HealthEvent("b", Fault("cold"))

    for _ in range(1000):
        news.add([hot, cold])

    assert news.take(2) == (hot, cold)
    assert not news


@pytest.mark.parametrize(
    "between", [HealthEvent(None, None), HealthEvent("a", None, Proof.RESET)], ids=["all", "its card"]
)
def test_what_is_said_again_after_news_of_others_too_is_told_again(between: HealthEvent) -> None:
    news = EventQueue()
    unwatched = HealthEvent("a-1", Fault("unmonitored", state=State.UNKNOWN))

    news.add([unwatched, between, unwatched])

    assert news.take(2) == (unwatched, between, unwatched)


def test_so_many_are_told_in_a_turn_that_others_have_theirs() -> None:
    news = EventQueue()
    events = [HealthEvent("a", Fault("hot", str(number))) for number in range(AT_ONCE + 1)]
    news.add(events)

    assert news.take(2) == tuple(events[:-1])
    assert news.take(2) == (events[-1],)


WIDE = [HealthEvent(None, Fault("hot")), HealthEvent("a", Fault("hot"), Proof.RESET)]


@pytest.mark.parametrize("event", WIDE, ids=["all", "a card and its slices"])
def test_an_event_of_several_devices_counts_once_for_each_in_a_turn_and_in_a_second(
    event: HealthEvent,
) -> None:
    news = EventQueue()
    events = [replace(event, fault=Fault("hot", str(number))) for number in range(20)]
    news.add([*events, HealthEvent("b", None)])

    assert news.take(128) == tuple(events[: AT_ONCE // 128])
    assert news.take(AT_ONCE + 1) == (events[AT_ONCE // 128],)
    assert news.take(0) == (*events[AT_ONCE // 128 + 1 :], HealthEvent("b", None))

    assert news.admit([event] * (BURST // 128), 128, 100.0)
    assert not news.admit([HealthEvent("b", None)], 128, 100.0)


def test_a_burst_is_heard_and_after_it_so_many_a_second() -> None:
    news = EventQueue()

    assert all(news.admit([HealthEvent("a", None)] * 1024, 2, 100.0) for _ in range(BURST // 1024))
    assert not news.admit([], 2, 100.0)
    assert news.admit([HealthEvent("a", None)] * 1000, 2, 100.0 + 1002 / RATE)
