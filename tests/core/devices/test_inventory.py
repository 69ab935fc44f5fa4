"""Full lists, events and losses of every vendor, folded into one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.core.devices.health_rules import LOST_CONTACT, HealthRecord
from agent.core.devices.inventory import REMEMBERED, ClearedFaults, Inventory, left_out
from agent.core.errors import NoSuchDevice
from agent.core.model import Cordon, DeviceStatus, VendorState, VendorStatus
from agent.vendor_api.agent import DRIVER_NOT_LOADED, Device, Fault, HealthEvent, Link, Proof, State

ACME, BOLT = VendorStatus("acme", VendorState.STARTING), VendorStatus("bolt", VendorState.STARTING)
A0, A1, B0 = Device("a-0", 0), Device("a-1", 1), Device("b-0", 0)
XID = Fault("xid-48", cleared_by=(Proof.RESET, Proof.REBOOT))
NEEDS_RELOAD = Fault("xid-46", cleared_by=(Proof.DRIVER_RELOAD,))


def inventory(*, remembered: Mapping[str, HealthRecord] | None = None) -> Inventory:
    """An inventory of two vendors, where nothing was seen yet."""
    it = Inventory(remembered)
    it.enable([ACME, BOLT])
    return it


def seen() -> Inventory:
    """An inventory that saw both vendors' devices at 0."""
    it = inventory()
    it.discovered("acme", [A1, A0], now=0)
    it.discovered("bolt", [B0], now=0)
    return it


def look(it: Inventory, uuid: str) -> DeviceStatus:
    status = it.snapshot().device(uuid)
    assert status is not None
    return status


def states(it: Inventory) -> dict[str, str]:
    return {status.uuid: str(status.health.state) for status in it.snapshot().devices}


def test_full_lists_fold_into_one_snapshot_in_order() -> None:
    it = seen()

    snapshot = it.snapshot()

    assert [status.uuid for status in snapshot.devices] == ["a-0", "a-1", "b-0"]
    assert [(vendor.name, vendor.state) for vendor in snapshot.vendors] == [
        ("acme", "open"),
        ("bolt", "open"),
    ]
    assert all(status.told_healthy for status in snapshot.devices)


def test_the_same_lists_again_change_nothing() -> None:
    it = seen()
    before = it.snapshot()

    it.discovered("acme", [A0, A1], now=10)

    assert it.snapshot() == before


def test_the_first_look_at_a_device_decides_at_once() -> None:
    it = inventory()

    it.discovered("acme", [Device("a-0", 0, fault=Fault("gone"))], now=0)

    assert not look(it, "a-0").told_healthy


def test_later_looks_need_three_in_a_row() -> None:
    it = seen()

    for now, state in ((10, "healthy"), (20, "healthy"), (30, "unhealthy")):
        it.discovered("acme", [Device("a-0", 0, fault=Fault("gone")), A1], now=now)

        assert states(it) == {"a-0": state, "a-1": "healthy", "b-0": "healthy"}


def test_a_lost_vendor_makes_its_own_devices_unknown_and_no_others() -> None:
    it = seen()

    it.lost("acme", VendorState.FAILED, "crashed: signal 11", now=5)

    assert states(it) == {"a-0": "unknown", "a-1": "unknown", "b-0": "healthy"}
    assert look(it, "a-0").health.message == "crashed: signal 11"
    assert it.snapshot().vendors[0] == VendorStatus("acme", VendorState.FAILED, "crashed: signal 11")


def test_a_lost_vendors_devices_are_told_healthy_until_the_deadline() -> None:
    it = seen()

    it.lost("acme", VendorState.FAILED, "hung", now=5)

    assert it.next_deadline() == 35
    it.tick(34, in_use=())
    assert look(it, "a-0").told_healthy
    it.tick(35, in_use=())
    assert not look(it, "a-0").told_healthy
    assert look(it, "b-0").told_healthy
    assert it.next_deadline() is None


def test_an_empty_list_where_devices_were_is_a_broken_library() -> None:
    it = seen()

    it.discovered("acme", [], now=10)

    assert states(it) == {"a-0": "unknown", "a-1": "unknown", "b-0": "healthy"}
    assert it.snapshot().vendors[0].state is VendorState.FAILED
    assert it.snapshot().vendors[0].reason.startswith("the library lists no devices, it had 2; ")
    it.tick(1e6, in_use=())
    assert len(it.snapshot().devices) == 3


def test_an_empty_list_from_the_start_is_an_empty_node() -> None:
    it = inventory()

    it.discovered("acme", [], now=0)

    assert it.snapshot().devices == ()
    assert it.snapshot().vendors[0].state is VendorState.OPEN


def test_a_vanished_card_is_unknown_and_dropped_after_ten_minutes_when_free() -> None:
    it = seen()

    it.discovered("acme", [A0], now=10)
    it.tick(609, in_use=())
    kept = states(it)
    it.tick(610, in_use=())

    assert kept == {"a-0": "healthy", "a-1": "unknown", "b-0": "healthy"}
    assert states(it) == {"a-0": "healthy", "b-0": "healthy"}


def test_a_vanished_card_stays_for_as_long_as_it_is_in_use() -> None:
    it = seen()

    it.discovered("acme", [A0], now=10)
    it.tick(1e6, in_use={"a-1"})
    kept = states(it)
    it.tick(1e6 + 1, in_use=())

    assert kept["a-1"] == "unknown"
    assert "a-1" not in states(it)


def test_cards_of_a_vendor_that_can_not_be_asked_are_never_dropped() -> None:
    it = seen()

    it.lost("acme", VendorState.UNAVAILABLE, "no driver", now=10)
    it.tick(1e6, in_use=())

    assert len(it.snapshot().devices) == 3


def test_a_vanished_card_that_comes_back_in_time_is_healthy_again() -> None:
    it = seen()
    before = it.snapshot()

    it.discovered("acme", [A0], now=10)
    it.discovered("acme", [A0, A1], now=20)

    assert it.snapshot() == before


def test_a_dropped_card_comes_back_with_its_sticky_fault() -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-1", XID)], now=5)
    it.discovered("acme", [A0], now=10)
    it.tick(1000, in_use=())

    it.discovered("acme", [A0, A1], now=1010)

    assert look(it, "a-1").health.reason == "xid-48"
    assert not look(it, "a-1").told_healthy


def test_an_event_marks_its_device_at_once() -> None:
    it = seen()

    it.observed("acme", [HealthEvent("a-1", XID)], now=5)

    assert states(it) == {"a-0": "healthy", "a-1": "unhealthy", "b-0": "healthy"}
    assert not look(it, "a-1").told_healthy


def test_an_event_for_an_unknown_uuid_marks_nobody() -> None:
    it = seen()
    before = it.snapshot()

    it.observed("acme", [HealthEvent("a-9", XID), HealthEvent("b-0", XID)], now=5)

    assert it.snapshot() == before


def test_an_event_without_uuid_marks_every_device_of_its_vendor_only() -> None:
    it = seen()

    it.observed("acme", [HealthEvent(None, XID)], now=5)

    assert states(it) == {"a-0": "unhealthy", "a-1": "unhealthy", "b-0": "healthy"}


def test_a_driver_that_was_gone_and_is_back_proves_a_reload() -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-0", NEEDS_RELOAD), HealthEvent("a-1", XID)], now=5)
    it.observed("bolt", [HealthEvent("b-0", NEEDS_RELOAD)], now=5)

    it.lost("acme", VendorState.UNAVAILABLE, f"{DRIVER_NOT_LOADED}: no /dev/acme", now=10)
    for now in (20, 30, 40):
        it.discovered("acme", [A0, A1], now=now)
        it.discovered("bolt", [B0], now=now)

    assert states(it) == {"a-0": "healthy", "a-1": "unhealthy", "b-0": "unhealthy"}


def test_a_reload_is_proven_also_of_a_card_that_is_listed_a_look_later() -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-0", NEEDS_RELOAD), HealthEvent("a-1", NEEDS_RELOAD)], now=5)

    it.lost("acme", VendorState.UNAVAILABLE, DRIVER_NOT_LOADED, now=10)
    it.discovered("acme", [A0], now=20)
    for now in (30, 40, 50):
        it.discovered("acme", [A0, A1], now=now)

    assert states(it) == {"a-0": "healthy", "a-1": "healthy", "b-0": "healthy"}


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param("crashed", id="another reason"),
        pytest.param(f"{DRIVER_NOT_LOADED}-completely", id="one that only begins like a missing driver"),
    ],
)
def test_contact_lost_for_another_reason_proves_no_reload(reason: str) -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-0", NEEDS_RELOAD)], now=5)

    it.lost("acme", VendorState.FAILED, reason, now=10)
    for now in (20, 30, 40):
        it.discovered("acme", [A0, A1], now=now)

    assert states(it)["a-0"] == "unhealthy"


def test_the_reload_is_proven_only_once_devices_are_back() -> None:
    it = inventory(remembered={"a-0": HealthRecord(NEEDS_RELOAD, told_healthy=False)})
    it.lost("acme", VendorState.UNAVAILABLE, DRIVER_NOT_LOADED, now=0)

    it.discovered("acme", [], now=10)
    for now in (20, 30, 40):
        it.discovered("acme", [A0], now=now)

    assert states(it) == {"a-0": "healthy"}


def test_remembered_faults_hold_before_and_after_the_card_is_seen_again() -> None:
    before = seen()
    before.observed("acme", [HealthEvent("a-0", XID)], now=5)

    it = inventory(remembered=before.records())
    kept = it.records()
    it.discovered("acme", [A0, A1], now=100)

    assert kept == before.records()
    assert states(it) == {"a-0": "unhealthy", "a-1": "healthy"}
    assert look(it, "a-0").health.since == 5


def test_a_reboot_proves_remembered_faults_that_name_it() -> None:
    only_reset = Fault("xid-62", cleared_by=(Proof.RESET,))
    it = inventory(remembered={"a-0": HealthRecord(XID, since=5), "a-1": HealthRecord(only_reset, since=5)})

    it.rebooted(now=100)
    for now in (101, 102, 110):
        it.discovered("acme", [A0, A1], now=now)

    assert states(it) == {"a-0": "healthy", "a-1": "unhealthy"}


def test_links_are_kept_when_a_later_list_has_none() -> None:
    links = (Link("a-1", lanes=4),)
    it = inventory()

    it.discovered("acme", [Device("a-0", 0, links=links)], now=0)
    it.discovered("acme", [Device("a-0", 0, numa=1)], now=10)

    assert look(it, "a-0").device == Device("a-0", 0, numa=1, links=links)


def test_newer_links_replace_older_ones() -> None:
    it = inventory()

    it.discovered("acme", [Device("a-0", 0, links=(Link("a-1", lanes=4),))], now=0)
    it.discovered("acme", [Device("a-0", 0, links=(Link("a-1", lanes=2),))], now=10)

    assert look(it, "a-0").device.links == (Link("a-1", lanes=2),)


def test_devices_of_a_vendor_that_no_longer_counts_are_dropped() -> None:
    it = seen()

    it.enable([BOLT])

    assert states(it) == {"b-0": "healthy"}
    assert [vendor.name for vendor in it.snapshot().vendors] == ["bolt"]


def test_enabling_again_forgets_nothing() -> None:
    it = seen()
    before = it.snapshot()

    it.enable([ACME, BOLT])

    assert it.snapshot() == before


def test_a_vendor_left_out_says_why() -> None:
    it = Inventory()

    it.enable([left_out("acme", "SyntaxError in plugin.py")])

    assert it.snapshot().vendors == (VendorStatus("acme", VendorState.LEFT_OUT, "SyntaxError in plugin.py"),)


def test_healthy_devices_need_no_record() -> None:
    it = seen()

    it.observed("acme", [HealthEvent("a-0", XID)], now=5)

    assert set(it.records()) == {"a-0"}


def test_lost_contact_is_no_fault_to_remember() -> None:
    it = seen()

    it.lost("acme", VendorState.FAILED, "hung", now=5)

    assert it.records() == {}
    assert look(it, "a-0").health.reason == LOST_CONTACT


@given(st.lists(st.tuples(strategies.uuids, strategies.faults), max_size=8))
def test_records_round_trip(marked: list[tuple[str, Fault]]) -> None:
    devices = [Device(f"GPU-{n:08x}", n) for n in range(6)]
    before = inventory()
    before.discovered("acme", devices, now=0)
    before.observed("acme", [HealthEvent(uuid, fault) for uuid, fault in marked], now=5)

    after = inventory(remembered=before.records())
    after.discovered("acme", devices, now=10)

    faults = {it.uuid: it.health for it in before.snapshot().devices if it.health.state is State.UNHEALTHY}
    assert {it.uuid: it.health for it in after.snapshot().devices if it.health.reason} == faults


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["list", "event", "lost", "tick"]),
            st.lists(strategies.uuids, unique=True),
            strategies.events,
            st.floats(-30, 700),
        ),
        max_size=25,
    )
)
def test_a_device_in_use_is_never_forgotten_nor_told_healthy_with_a_fault(
    history: list[tuple[str, list[str], HealthEvent, float]],
) -> None:
    used = "GPU-00000000"
    it, now = inventory(), 1e5
    it.discovered("acme", [Device(used, 0)], now)

    for what, uuids, event, later in history:
        now += later
        if what == "list":
            it.discovered("acme", [Device(uuid, int(uuid[-1])) for uuid in uuids], now)
        elif what == "event":
            it.observed("acme", [event], now)
        elif what == "lost":
            it.lost("acme", VendorState.FAILED, "hung", now)
        else:
            it.tick(now, in_use={used})
        it.next_deadline()

        assert look(it, used)
        for status in it.snapshot().devices:
            assert not (status.told_healthy and status.health.state is State.UNHEALTHY)


def test_a_vendor_left_out_at_a_reload_loses_its_devices() -> None:
    it = seen()

    it.enable([left_out("acme", "settings: bad"), BOLT])
    it.discovered("acme", [A0, A1], now=1)  # the last words of a process that is being stopped
    it.lost("acme", VendorState.FAILED, "stopped", now=1)

    assert it.snapshot().vendors[0] == VendorStatus("acme", VendorState.LEFT_OUT, "settings: bad")
    assert states(it) == {"a-0": "unknown", "a-1": "unknown", "b-0": "healthy"}
    it.tick(30, in_use=())
    assert not look(it, "a-0").told_healthy


def test_a_vendor_that_was_left_out_starts_once_it_is_mended() -> None:
    it = Inventory()
    it.enable([left_out("acme", "settings: bad")])

    it.enable([ACME])

    assert it.snapshot().vendors == (ACME,)


def test_a_second_plugin_of_the_same_name_does_not_stop_the_first() -> None:
    it = seen()

    it.enable([ACME, left_out("acme", "there is one of this name"), BOLT])

    assert it.snapshot().vendors[0].state is VendorState.OPEN
    assert states(it)["a-0"] == "healthy"


def test_that_nothing_watches_a_device_does_not_outlive_the_process() -> None:
    unwatched = HealthRecord(Fault("unmonitored", state=State.UNKNOWN))
    it = inventory(remembered={"a-1": unwatched})
    it.discovered("acme", [A0], now=0)
    it.observed("acme", [HealthEvent("a-0", unwatched.fault)], now=1)

    assert it.records() == {}
    it.discovered("acme", [A0, A1], now=2)
    assert states(it) == {"a-0": "unknown", "a-1": "healthy"}


def test_a_uuid_that_two_vendors_list_stays_with_the_first() -> None:
    it = seen()

    for now in (10, 20):
        it.discovered("bolt", [B0, Device("a-0", 7, fault=Fault("gone"))], now)
        it.discovered("acme", [A0, A1], now)

    assert look(it, "a-0").vendor == "acme"
    assert states(it) == {"a-0": "healthy", "a-1": "healthy", "b-0": "healthy"}
    assert it.snapshot().vendors == (
        VendorStatus("acme", VendorState.OPEN),
        VendorStatus("bolt", VendorState.OPEN, "a-0 is listed by acme already"),
    )


def test_minor_and_memory_that_were_not_read_this_time_are_still_known() -> None:
    it = inventory()

    it.discovered("acme", [Device("a-0", 0, minor=4, memory=16 << 30)], now=0)
    it.discovered("acme", [Device("a-0", 0, fault=Fault("unreadable"))], now=10)

    device = look(it, "a-0").device
    assert (device.minor, device.memory) == (4, 16 << 30)


def test_a_record_of_a_clock_that_was_ahead_counts_from_now() -> None:
    ahead = HealthRecord(XID, since=9000, good_since=9000, lost="hung", lost_since=9000)

    it = Inventory({"a-0": ahead}, now=100)

    assert it.records() == {"a-0": HealthRecord(XID, since=100, good_since=100, lost="hung", lost_since=100)}


S0, S1 = (Device(f"a-0/{n}", 0, parent="a-0", slice=n) for n in (0, 1))


def sliced() -> Inventory:
    """An inventory that saw a card with two slices, and one without, at 0."""
    it = inventory()
    it.discovered("acme", [S1, A1, S0, A0], now=0)
    return it


def told(it: Inventory) -> dict[str, bool]:
    return {status.uuid: status.told_healthy for status in it.snapshot().devices}


def test_a_card_stands_before_its_slices_and_these_before_the_next_card() -> None:
    assert [status.uuid for status in sliced().snapshot().devices] == ["a-0", "a-0/0", "a-0/1", "a-1"]


def test_what_is_wrong_with_a_card_is_wrong_with_each_of_its_slices() -> None:
    it = sliced()

    it.observed("acme", [HealthEvent("a-0", XID)], now=5)

    assert told(it) == {"a-0": False, "a-0/0": False, "a-0/1": False, "a-1": True}
    health = look(it, "a-0/1").health
    assert (health.state, health.reason, health.message) == (State.UNHEALTHY, "xid-48", "its card a-0")


def test_what_is_wrong_with_a_slice_is_wrong_with_no_sibling_and_not_with_its_card() -> None:
    it = sliced()

    it.observed("acme", [HealthEvent("a-0/0", XID)], now=5)

    assert told(it) == {"a-0": True, "a-0/0": False, "a-0/1": True, "a-1": True}


def test_a_slice_made_on_a_sick_card_is_sick() -> None:
    it = inventory()
    it.discovered("acme", [A0], now=0)
    it.observed("acme", [HealthEvent("a-0", XID)], now=5)

    it.discovered("acme", [A0, S0], now=10)

    assert told(it) == {"a-0": False, "a-0/0": False}


@pytest.mark.parametrize(
    "struck",
    [pytest.param("a-0", id="a fault of the card"), pytest.param("a-0/0", id="a fault of the slice")],
)
def test_a_proof_of_the_card_is_one_of_its_slices(struck: str) -> None:
    it = sliced()
    it.observed("acme", [HealthEvent(struck, XID)], now=5)

    it.observed("acme", [HealthEvent("a-0", None, Proof.RESET)], now=6)
    for now in (10, 20, 30):
        it.discovered("acme", [A0, A1, S0, S1], now=now)

    assert all(told(it).values())


def test_good_news_of_the_card_without_proof_acquit_no_slice() -> None:
    it = sliced()
    it.observed("acme", [HealthEvent("a-0/0", Fault("unmonitored", state=State.UNKNOWN))], now=5)

    it.observed("acme", [HealthEvent("a-0", None)], now=6)

    assert look(it, "a-0/0").health.state is State.UNKNOWN


def test_a_slice_that_was_unmade_is_forgotten_at_once_unless_in_use() -> None:
    it = sliced()

    it.discovered("acme", [A0, A1], now=10)
    assert told(it) == {"a-0": True, "a-0/0": False, "a-0/1": False, "a-1": True}
    assert [status.uuid for status in it.snapshot().devices if status.gone] == ["a-0/0", "a-0/1"]
    assert [device.uuid for device in it.snapshot().present("acme")] == ["a-0", "a-1"]
    it.tick(now=10, in_use={"a-0/1"})

    assert told(it) == {"a-0": True, "a-0/1": False, "a-1": True}


def test_a_slice_whose_card_can_not_be_read_may_come_back() -> None:
    it = sliced()

    it.discovered("acme", [Device("a-0", 0, fault=Fault("lost")), A1], now=10)
    it.tick(now=10, in_use=())

    assert set(told(it)) == {"a-0", "a-0/0", "a-0/1", "a-1"}


def test_a_slice_that_is_made_anew_under_its_name_is_no_longer_unmade() -> None:
    it = sliced()
    it.discovered("acme", [A0, A1, S1], now=10)
    it.discovered("acme", [A0, A1, S0, S1], now=20)

    it.lost("acme", VendorState.FAILED, "hung", now=21)
    it.discovered("acme", [Device("a-0", 0, fault=Fault("lost")), A1, S1], now=30)
    it.tick(now=30, in_use=())

    assert "a-0/0" in told(it)


LOST = Fault("lost", cleared_by=(Proof.RESET,))
NAMELESS = Device("acme-nameless-0", 0, fault=LOST, nameless=True)


def before(*devices: Device) -> Inventory:
    """An inventory that nobody has spoken to yet, of an agent that had these devices before it ended."""
    it = Inventory(devices={"acme": devices})
    it.enable([ACME, BOLT])
    return it


def test_a_card_that_can_not_tell_its_name_is_shown_and_is_no_other() -> None:
    it = inventory()

    it.discovered("acme", [NAMELESS, A1], now=0)

    assert told(it) == {"acme-nameless-0": False, "a-1": True}
    assert it.records() == {}
    assert it.remembered_devices() == {"acme": (A1,)}


def test_a_card_that_can_not_tell_its_name_is_the_one_that_was_there_before() -> None:
    card = Device("a-0", 0, pci="0000:10:00.0", memory=80, model="big")
    it = before(card, A1)

    it.discovered("acme", [NAMELESS, A1], now=0)

    assert told(it) == {"a-0": False, "a-1": True}
    assert (look(it, "a-0").device.model, look(it, "a-0").health.reason) == ("big", "lost")


def test_a_pci_address_says_more_than_an_index() -> None:
    moved = replace(NAMELESS, index=7, pci="0000:10:00.0")
    it = before(Device("a-0", 0, pci="0000:10:00.0"), Device("a-7", 7, pci="0000:17:00.0"))

    it.discovered("acme", [moved], now=0)

    assert told(it) == {"a-0": False}


def test_a_card_that_is_listed_lends_its_name_to_no_other() -> None:
    it = before(A0, A1)

    it.discovered("acme", [replace(A0, index=1), NAMELESS], now=0)

    assert told(it) == {"a-0": True, "acme-nameless-0": False}


def test_slices_of_a_card_that_can_not_tell_its_name_are_known_again_too() -> None:
    it = before(A0, S0, S1)

    it.discovered("acme", [NAMELESS], now=0)

    assert told(it) == {"a-0": False, "a-0/0": False, "a-0/1": False}


def test_a_card_that_was_known_a_moment_ago_keeps_its_name_in_a_new_process() -> None:
    it = seen()

    for now in (10, 20, 30):
        it.discovered("acme", [NAMELESS, A1], now=now)

    assert told(it) == {"a-0": False, "a-1": True, "b-0": True}


def test_a_card_that_tells_its_name_at_last_is_no_longer_two() -> None:
    it = inventory()
    it.discovered("acme", [NAMELESS, A1], now=0)

    it.discovered("acme", [A0, A1], now=10)

    assert told(it) == {"a-0": True, "a-1": True}


def test_a_card_that_is_away_for_a_while_is_still_known_by_its_place() -> None:
    it = before(A0, A1)

    it.discovered("acme", [A1], now=0)
    it.discovered("acme", [A1, NAMELESS], now=10)

    assert told(it) == {"a-0": False, "a-1": True}
    assert {device.uuid for device in it.remembered_devices()["acme"]} == {"a-0", "a-1"}


def test_names_of_no_more_devices_are_kept_than_a_vendor_may_have() -> None:
    it = inventory()
    for start in (0, 1000):
        it.discovered("acme", [Device(f"a-{start + n}", n) for n in range(1000)], now=start)

    kept = it.remembered_devices()["acme"]

    assert len(kept) == REMEMBERED
    assert {f"a-{1000 + n}" for n in range(1000)} < {device.uuid for device in kept}


def test_an_event_that_comes_a_moment_before_its_device_counts() -> None:
    it = seen()

    it.observed("acme", [HealthEvent("a-2", XID)], now=5)
    it.discovered("acme", [A0, A1, Device("a-2", 2)], now=6)

    assert told(it) == {"a-0": True, "a-1": True, "a-2": False, "b-0": True}


def test_an_event_for_a_device_that_the_next_list_lacks_is_forgotten() -> None:
    it = seen()

    it.observed("acme", [HealthEvent("a-2", XID)], now=5)
    it.discovered("acme", [A0, A1], now=6)
    it.discovered("acme", [A0, A1, Device("a-2", 2)], now=7)

    assert all(told(it).values())


# An operator's words

ALICE = Cordon("alice", "maintenance", 7.0)


def test_a_cordon_is_no_fault_and_stands_beside_one() -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-1", XID)], now=1)

    it.cordon("a-0", ALICE)
    it.cordon("a-1", ALICE)

    well, sick = look(it, "a-0"), look(it, "a-1")
    assert (well.health.state, well.told_healthy, well.cordon) == (State.HEALTHY, True, ALICE)
    assert (sick.health.reason, sick.told_healthy, sick.cordon) == ("xid-48", False, ALICE)


def test_slices_follow_the_cordon_of_their_card_and_may_have_their_own() -> None:
    it = sliced()
    own = Cordon("bob")

    it.cordon("a-0/1", own)
    it.cordon("a-0", ALICE)

    cordons = {status.uuid: status.cordon for status in it.snapshot().devices}
    assert cordons == {"a-0": ALICE, "a-0/0": ALICE, "a-0/1": own, "a-1": None}


def test_cordons_outlive_the_process_also_of_devices_that_are_not_listed() -> None:
    it = Inventory(cordons={"a-0": ALICE, "gone": ALICE})
    it.enable([ACME])

    it.discovered("acme", [A0], now=0)

    assert look(it, "a-0").cordon == ALICE
    assert [(absent.uuid, absent.cordon) for absent in it.snapshot().absent] == [("gone", ALICE)]
    assert it.cordons() == {"a-0": ALICE, "gone": ALICE}


def test_a_cordon_outlives_the_card_that_is_dropped_and_ends_by_its_name() -> None:
    it = seen()
    it.cordon("a-1", ALICE)
    it.discovered("acme", [A0], now=1)
    it.tick(700, in_use=())

    assert it.snapshot().device("a-1") is None
    assert it.uncordon(it.find("a-1"))
    assert not it.uncordon("a-1")
    assert it.snapshot().absent == ()


@pytest.mark.parametrize(
    ("named", "found"),
    [("a-0", "a-0"), ("b", "b-0"), ("a-0/", "a-0/0"), ("old", "old-1"), ("faulty", "faulty-1")],
)
def test_a_device_is_found_by_its_uuid_or_by_how_it_alone_begins(named: str, found: str) -> None:
    it = Inventory({"faulty-1": HealthRecord(XID)}, devices={"acme": [Device("old-1", 4)]})
    it.enable([ACME, BOLT])
    it.discovered("acme", [A0, S0], now=0)
    it.discovered("bolt", [B0], now=0)

    assert it.find(named) == found


@pytest.mark.parametrize("named", ["x", "", "nvidia-nameless-0"])
def test_a_device_that_is_not_known_is_refused_with_those_that_are(named: str) -> None:
    it = seen()
    it.discovered("acme", [A0, A1, Device("nvidia-nameless-0", 2, nameless=True)], now=1)

    with pytest.raises(NoSuchDevice, match=r"it has a-0, a-1, b-0$"):
        it.find(named)


def test_a_beginning_of_several_names_is_refused_with_them() -> None:
    with pytest.raises(
        NoSuchDevice, match="'a-' is the beginning of several devices: a-0, a-1; give more of it"
    ):
        seen().find("a-")


def test_an_operators_word_ends_any_sticky_fault_once_the_card_looks_well() -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-0", Fault("xid-79", cleared_by=(Proof.REBOOT,)))], now=1)
    assert look(it, "a-0").cleared_by == (Proof.REBOOT,)

    assert it.clear("a-0", 10, in_use=()) is ClearedFaults.CLEARED

    assert look(it, "a-0").cleared_by == ()
    for now in (11, 21):
        it.discovered("acme", [A0, A1], now=now)
    assert look(it, "a-0").told_healthy


def test_an_operators_word_on_a_card_is_one_on_its_slices() -> None:
    it = sliced()
    it.observed("acme", [HealthEvent("a-0/1", XID)], now=1)

    assert it.clear("a-0", 10, in_use=()) is ClearedFaults.CLEARED

    assert look(it, "a-0/1").cleared_by == ()


def test_there_is_nothing_to_clear_on_a_card_that_is_well() -> None:
    assert seen().clear("a-0", 10, in_use=()) is ClearedFaults.NOTHING


@pytest.mark.parametrize(("in_use", "left"), [((), []), (("a-1",), ["a-1"])])
def test_a_card_that_is_away_is_forgotten_on_an_operators_word_unless_it_is_in_use(
    in_use: tuple[str, ...], left: list[str]
) -> None:
    it = seen()
    it.observed("acme", [HealthEvent("a-1", XID)], now=1)
    it.discovered("acme", [A0], now=2)

    done = it.clear("a-1", 3, in_use)

    assert done is (ClearedFaults.CLEARED if in_use else ClearedFaults.FORGOTTEN)
    assert [status.uuid for status in it.snapshot().of("acme") if status.uuid != "a-0"] == left
    assert it.remembered_devices() == {"acme": (A0, A1)[: 1 + len(left)], "bolt": (B0,)}
    assert not any(record.sticky for record in it.records().values())


def test_a_fault_of_a_device_that_never_came_back_is_forgotten_on_an_operators_word() -> None:
    it = inventory(remembered={"a-9": HealthRecord(XID, told_healthy=False)})
    it.discovered("acme", [A0], now=0)
    assert [(absent.uuid, absent.cleared_by) for absent in it.snapshot().absent] == [
        ("a-9", (Proof.RESET, Proof.REBOOT))
    ]

    assert it.clear("a-9", 1, in_use=()) is ClearedFaults.FORGOTTEN

    assert it.records() == {}
    assert it.snapshot().absent == ()


def test_a_fault_of_a_device_that_never_came_back_and_is_in_use_waits_for_clean_polls_alone() -> None:
    it = inventory(remembered={"a-0": HealthRecord(XID, told_healthy=False)})

    assert it.clear("a-0", 0, in_use=("a-0",)) is ClearedFaults.CLEARED

    for now in (1, 11):
        it.discovered("acme", [A0], now=now)
    assert look(it, "a-0").told_healthy


# Counters


def counting(energy: int, fault: Fault | None = None) -> Device:
    return replace(A0, counters={"energy": energy}, fault=fault)


def test_a_counter_that_begins_anew_proves_a_reload_that_nobody_saw() -> None:
    it = inventory()
    it.discovered("acme", [counting(500)], now=0)
    it.observed("acme", [HealthEvent("a-0", NEEDS_RELOAD)], now=1)

    it.discovered("acme", [counting(700)], now=10)
    assert look(it, "a-0").cleared_by == (Proof.DRIVER_RELOAD,)
    it.discovered("acme", [counting(20)], now=20)

    assert look(it, "a-0").cleared_by == ()


def test_a_counter_that_begins_anew_proves_a_reload_over_a_restart_of_the_agent() -> None:
    before = inventory()
    before.discovered("acme", [counting(500)], now=0)
    before.observed("acme", [HealthEvent("a-0", NEEDS_RELOAD)], now=1)
    before.discovered("acme", [counting(900)], now=2)  # the last good look counts, not the one at the fault

    after = {
        energy: inventory(remembered=before.records())
        for energy in (899, 901)  # loaded anew, or not
    }
    for energy, it in after.items():
        it.discovered("acme", [counting(energy)], now=10)

    assert look(after[899], "a-0").cleared_by == ()
    assert look(after[901], "a-0").cleared_by == (Proof.DRIVER_RELOAD,)


def test_what_a_card_counts_that_can_not_be_read_proves_nothing() -> None:
    it = inventory()
    it.discovered("acme", [counting(500)], now=0)
    it.observed("acme", [HealthEvent("a-0", NEEDS_RELOAD)], now=1)

    it.discovered("acme", [counting(0, Fault("unreadable"))], now=10)
    it.discovered("acme", [counting(600)], now=20)

    assert look(it, "a-0").cleared_by == (Proof.DRIVER_RELOAD,)


def test_a_reload_that_a_cards_counters_prove_is_one_for_its_slices() -> None:
    it = inventory()
    it.discovered("acme", [counting(500), S0], now=0)
    it.observed("acme", [HealthEvent("a-0/0", NEEDS_RELOAD)], now=1)

    it.discovered("acme", [counting(1), S0], now=10)

    assert look(it, "a-0/0").cleared_by == ()


def test_counters_that_grow_are_no_news() -> None:
    it = inventory()
    it.discovered("acme", [counting(1)], now=0)
    it.observed("acme", [HealthEvent("a-0", XID)], now=1)
    before = it.snapshot(), it.records(), it.remembered_devices()

    it.discovered("acme", [counting(2)], now=2)

    assert (it.snapshot(), it.records(), it.remembered_devices()) == before
    assert it.remembered_devices()["acme"][0].counters == look(it, "a-0").device.counters == {}
    assert it.records()["a-0"].counters == {"energy": 2}


# What the driver wants done


def wanting(recovery: bool | None) -> Device:
    return replace(A0, recovery_due=recovery)


@pytest.mark.parametrize("told_by", ["the list", "an event"])
def test_a_reset_is_proven_that_happened_while_no_agent_ran(told_by: str) -> None:
    before = inventory()
    before.discovered("acme", [wanting(None)], now=0)
    before.observed("acme", [HealthEvent("a-0", XID, recovery_due=told_by == "an event")], now=1)
    if told_by == "the list":
        before.discovered("acme", [wanting(True)], now=2)

    after = {due: inventory(remembered=before.records()) for due in (True, None, False)}
    for due, it in after.items():
        it.discovered("acme", [wanting(due)], now=10)

    assert look(after[True], "a-0").cleared_by == look(after[None], "a-0").cleared_by == XID.cleared_by
    assert look(after[False], "a-0").cleared_by == ()


def test_a_card_that_never_asked_for_a_reset_proves_none_by_not_asking() -> None:
    it = inventory()
    it.discovered("acme", [wanting(False)], now=0)
    it.observed("acme", [HealthEvent("a-0", XID)], now=1)

    it.discovered("acme", [wanting(False)], now=10)

    assert look(it, "a-0").cleared_by == XID.cleared_by


def test_a_reset_that_the_list_proves_is_one_for_the_cards_slices() -> None:
    it = inventory()
    it.discovered("acme", [wanting(True), S0], now=0)
    it.observed("acme", [HealthEvent("a-0/0", XID)], now=1)

    it.discovered("acme", [wanting(False), S0], now=10)

    assert look(it, "a-0/0").cleared_by == ()


def test_a_lost_card_without_a_name_waits_for_its_recovery_under_the_one_it_had() -> None:
    before = inventory()
    before.discovered("acme", [A0], now=0)
    before.observed("acme", [HealthEvent("a-0", XID)], now=1)
    it = Inventory(before.records(), devices=before.remembered_devices())
    it.enable([ACME])

    sick = Device("?", A0.index, nameless=True, fault=Fault("lost"), recovery_due=True)
    it.discovered("acme", [sick], now=2)
    it.discovered("acme", [wanting(False)], now=10)

    assert look(it, "a-0").cleared_by == ()


# A library that lists nothing


def test_an_empty_list_is_a_broken_library_also_where_the_devices_were_seen_by_the_agent_before() -> None:
    it = before(A0, S0, A1)

    it.discovered("acme", [], now=0)

    vendor = it.snapshot().vendors[0]
    assert vendor.state is VendorState.FAILED
    assert vendor.reason.startswith("the library lists no devices, it had 2; ")
    assert [absent.uuid for absent in it.snapshot().absent] == ["a-0", "a-0/0", "a-1"]


def test_an_empty_list_after_a_reboot_is_an_empty_node() -> None:
    it = before(A0)
    it.rebooted(now=0)

    it.discovered("acme", [], now=0)

    assert it.snapshot().vendors[0].state is VendorState.OPEN
    assert it.remembered_devices() == {}  # or the next agent would miss them
    assert it.snapshot().absent == ()


def test_devices_that_are_cleared_one_by_one_are_missed_no_more() -> None:
    it = before(A0, S0, A1)
    it.discovered("acme", [], now=0)

    for uuid in ("a-0", "a-1"):
        assert it.clear(uuid, 1, in_use=()) is ClearedFaults.FORGOTTEN
    it.discovered("acme", [], now=2)

    assert it.snapshot().vendors[0].state is VendorState.OPEN
    assert it.snapshot().absent == ()


def test_a_library_that_lists_its_devices_again_is_whole_again() -> None:
    it = before(A0, A1)
    it.discovered("acme", [], now=0)

    it.discovered("acme", [A0, A1], now=1)

    assert it.snapshot().vendors[0].state is VendorState.OPEN
    assert told(it) == {"a-0": True, "a-1": True}
    it.discovered("acme", [A0], now=2)
    it.tick(700, in_use=())
    assert it.snapshot().absent == ()  # a card that goes later is not missed as one of those
