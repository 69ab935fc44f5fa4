"""Rules of health: what an event means, and what alone proves that a fault is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from nvml_stub import DOUBLE_BIT_ECC, GPU_IS_LOST, RECOVERY_ACTION, UNAVAILABLE, XID, Mig, NvmlStub

from agent.vendor_api.agent import BackendUnavailable, HealthEvent, Proof, State
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.child.driver_events import WatchFailed
from agent.vendors.nvidia.shared.xid import IGNORED

pytest_plugins = ["nvml_fixtures"]

LONG = 20.0
SHORT = 0.02
NOT_SUPPORTED, UNKNOWN_ERROR = 3, 999


@pytest.fixture
def settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**settings, "migStrategy": "mixed"}


@pytest.fixture
def watching(backend: NvmlBackend) -> NvmlBackend:
    """A backend that has registered its cards and heard nothing bad."""
    backend.discover()
    assert backend.health_events(SHORT) == []
    return backend


def reasons(events: list[HealthEvent]) -> list[tuple[str | None, str | None]]:
    return [(event.uuid, event.fault.reason if event.fault else None) for event in events]


def hear(backend: NvmlBackend, timeout: float = LONG) -> list[tuple[str | None, str | None]]:
    return reasons(list(backend.health_events(timeout)))


def test_an_idle_wait_takes_its_time_and_says_nothing(watching: NvmlBackend) -> None:
    began = time.monotonic()

    assert watching.health_events(0.1) == []
    assert time.monotonic() - began >= 0.09


def test_xid_79_is_a_sticky_fault_that_says_what_happened(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(3, 79)

    [event] = watching.health_events(LONG)

    assert event.uuid == stub.uuid(3)
    assert event.fault is not None
    assert (event.fault.reason, event.fault.state) == ("xid-79", State.UNHEALTHY)
    assert event.fault.message == "XID 79: GPU has fallen off the bus; reboot the node"
    assert set(event.fault.cleared_by) == set(Proof)


@pytest.mark.parametrize("code", sorted(IGNORED))
def test_an_error_of_the_application_says_nothing(watching: NvmlBackend, stub: NvmlStub, code: int) -> None:
    stub.xid(0, code)
    stub.xid(0, 79)

    assert hear(watching) == []
    assert hear(watching) == [(stub.uuid(0), "xid-79")]


def test_the_ignored_xids_are_those_of_nvidias_plugin() -> None:
    assert sorted(IGNORED) == [13, 31, 43, 45, 68, 109]


def test_an_xid_that_nobody_knows_is_a_fault(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(1, 555)

    assert hear(watching) == [(stub.uuid(1), "xid-555")]


def test_a_loose_power_plug_is_not_mended_by_a_reset(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(1, 54)

    [event] = watching.health_events(LONG)

    assert event.fault is not None
    assert event.fault.cleared_by == (Proof.REBOOT, Proof.OPERATOR)


def test_the_ignored_xids_can_be_set(stub: NvmlStub) -> None:
    backend = NvmlBackend({**stub.settings, "ignoreXids": [94]})
    backend.open()
    backend.discover()
    backend.health_events(SHORT)
    stub.xid(0, 94)
    stub.xid(0, 13)

    assert hear(backend) == []
    assert hear(backend) == [(stub.uuid(0), "xid-13")]
    backend.close()


@pytest.mark.parametrize(
    ("kind", "reason"), [(DOUBLE_BIT_ECC, "ecc-double-bit"), (UNAVAILABLE, "unavailable")]
)
def test_events_that_are_no_xid_are_sticky_faults(
    watching: NvmlBackend, stub: NvmlStub, kind: int, reason: str
) -> None:
    stub.event(6, kind)

    [event] = watching.health_events(LONG)

    assert event.fault is not None
    assert (event.uuid, event.fault.reason) == (stub.uuid(6), reason)
    assert Proof.RESET in event.fault.cleared_by


def test_an_event_of_an_unknown_card_marks_nobody(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(63, 79)

    assert watching.health_events(LONG) == []


def test_the_recovery_action_is_a_fault_and_its_end_proves_the_reset(
    watching: NvmlBackend, stub: NvmlStub
) -> None:
    stub.recovery(2, 1)
    assert hear(watching) == [(stub.uuid(2), "recovery-action-reset")]

    stub.recovery(2, 0)

    assert watching.health_events(LONG) == [HealthEvent(stub.uuid(2), None, Proof.RESET)]


def test_xid_154_asks_for_the_recovery_action(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.recovery(2, 2, announce=False)
    stub.xid(2, 154)

    assert hear(watching) == [(stub.uuid(2), "recovery-action-reboot")]


def test_xid_154_on_a_well_card_says_nothing(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(2, 154)

    assert watching.health_events(LONG) == []


def test_a_reset_is_proven_by_polling_too(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(2, 95)
    assert hear(watching) == [(stub.uuid(2), "xid-95")]
    stub.recovery(2, 1, announce=False)
    assert hear(watching, SHORT) == [(stub.uuid(2), "recovery-action-reset")]
    assert hear(watching, SHORT) == []

    stub.recovery(2, 0, announce=False)

    assert watching.health_events(SHORT) == [HealthEvent(stub.uuid(2), None, Proof.RESET)]
    assert watching.health_events(SHORT) == []


def test_a_card_that_merely_looks_well_proves_nothing(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.xid(2, 95)
    watching.health_events(LONG)

    assert [watching.health_events(SHORT) for _ in range(3)] == [[], [], []]


def test_a_change_to_no_action_proves_the_reset_that_went_unseen(
    watching: NvmlBackend, stub: NvmlStub
) -> None:
    stub.xid(2, 95)
    watching.health_events(LONG)

    stub.event(2, RECOVERY_ACTION)

    assert watching.health_events(LONG) == [HealthEvent(stub.uuid(2), None, Proof.RESET)]


def test_an_old_driver_gives_no_proof(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.old_driver()
    backend.discover()
    assert backend.health_events(SHORT) == []
    stub.xid(2, 95)
    assert hear(backend) == [(stub.uuid(2), "xid-95")]

    stub.xid(2, 154)

    assert hear(backend) == [(stub.uuid(2), "xid-154")]
    assert backend.health_events(SHORT) == []


def test_a_fault_from_before_our_start_is_found(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.recovery(7, 4, announce=False)
    backend.discover()

    assert hear(backend, SHORT) == [(stub.uuid(7), "recovery-action-drain-and-reset")]


def test_a_lost_card_is_told_and_the_others_are_watched_on(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.lose(3)
    assert hear(watching) == [(stub.uuid(3), "lost")]
    assert watching.health_events(SHORT) == []

    stub.xid(4, 79)

    assert hear(watching) == [(stub.uuid(4), "xid-79")]


def test_a_lost_card_that_answers_again_was_reset(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.lose(3)
    watching.discover()
    assert hear(watching) == [(stub.uuid(3), "lost")]

    stub.restore(3)
    watching.discover()

    assert watching.health_events(SHORT) == [HealthEvent(stub.uuid(3), None, Proof.RESET)]
    stub.xid(3, 79)
    assert hear(watching) == [(stub.uuid(3), "xid-79")]


def test_waits_that_a_lost_card_fails_for_good_raise(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.lose(3)
    stub.wait_error()  # even of an event set without the card
    assert hear(watching) == [(stub.uuid(3), "lost")]

    with pytest.raises(WatchFailed, match="GPU is lost"):
        watching.health_events(LONG)


def test_an_event_of_a_card_that_fell_off_the_bus_finds_it(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetUUID", UNKNOWN_ERROR, index=3)
    stub.xid(3, 79)

    assert hear(watching) == [(stub.uuid(3), "xid-79")]


def test_a_wait_that_fails_raises_and_recovers(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.wait_error(UNKNOWN_ERROR)
    for _ in range(3):
        with pytest.raises(WatchFailed, match="nvmlEventSetWait: Unknown Error"):
            watching.health_events(LONG)
    stub.clear()
    assert watching.health_events(SHORT) == []

    stub.xid(0, 79)

    assert hear(watching) == [(stub.uuid(0), "xid-79")]


def test_no_event_set_raises_and_recovers(backend: NvmlBackend, stub: NvmlStub) -> None:
    backend.discover()
    stub.fail("nvmlEventSetCreate", UNKNOWN_ERROR)
    with pytest.raises(WatchFailed, match="nvmlEventSetCreate"):
        backend.health_events(LONG)
    stub.clear()

    assert backend.health_events(SHORT) == []


def test_many_failures_leave_no_event_set_behind(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.wait_error()
    for _ in range(40):  # the stub has 16
        with pytest.raises(WatchFailed, match="nvmlEventSetWait"):
            watching.health_events(SHORT)


def test_a_card_that_can_not_be_watched_is_unknown_and_told_once(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, index=1)
    backend.discover()

    [event] = backend.health_events(SHORT)

    assert event.fault is not None
    assert (event.uuid, event.fault.reason, event.fault.state) == (
        stub.uuid(1),
        "unmonitored",
        State.UNKNOWN,
    )
    assert backend.health_events(SHORT) == []


def test_a_card_without_xid_events_is_unmonitored(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetSupportedEventTypes", NOT_SUPPORTED, index=1)
    backend.discover()

    assert hear(backend, SHORT) == [(stub.uuid(1), "unmonitored")]


def test_a_registration_that_fails_is_a_fault_until_it_works(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceRegisterEvents", UNKNOWN_ERROR, index=1)
    backend.discover()
    assert hear(backend, SHORT) == [(stub.uuid(1), "event-registration")]
    assert hear(backend, SHORT) == [(stub.uuid(1), "event-registration")]
    stub.clear()
    backend.health_events(SHORT)

    stub.xid(1, 79)

    assert hear(backend) == [(stub.uuid(1), "xid-79")]


def test_a_new_card_is_watched(backend: NvmlBackend, stub: NvmlStub) -> None:
    stub.cards(2)
    backend.discover()
    backend.health_events(SHORT)
    stub.cards(3)
    backend.discover()
    assert backend.health_events(SHORT) == []

    stub.xid(2, 79)

    assert hear(backend) == [(stub.uuid(2), "xid-79")]


def test_a_removed_card_ends_its_watch_and_no_other(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.remove(2)
    watching.discover()
    stub.xid(4, 79)

    heard = [said for _ in range(3) for said in hear(watching, SHORT)]

    assert heard == [(stub.uuid(4), "xid-79")]
    stub.xid(5, 48)
    assert hear(watching) == [(stub.uuid(5), "xid-48")]


def test_the_watch_waits_for_the_first_list(backend: NvmlBackend, stub: NvmlStub) -> None:
    assert backend.health_events(SHORT) == []

    threading.Timer(0.05, backend.discover).start()
    stub.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, index=1)

    assert hear(backend) == [(stub.uuid(1), "unmonitored")]


def test_discovery_goes_on_beside_a_wait(watching: NvmlBackend, stub: NvmlStub) -> None:
    heard: list[HealthEvent] = []
    waiter = threading.Thread(target=lambda: heard.extend(watching.health_events(LONG)))
    waiter.start()

    for _ in range(20):
        assert len(watching.discover()) == 8
    stub.event(0, XID, 79)
    waiter.join(LONG)

    assert reasons(heard) == [(stub.uuid(0), "xid-79")]


def test_closing_under_a_wait_does_not_wait_for_its_end(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.trace()
    waiter = threading.Thread(target=watching.health_events, args=(LONG,))
    waiter.start()
    stub.await_calls("nvmlEventSetWait_v2", 1)

    watching.close()

    assert waiter.is_alive()
    stub.xid(0, 79)  # ends the wait
    waiter.join(LONG)
    assert not waiter.is_alive()


def test_a_new_event_set_does_not_repeat_that_a_card_is_unmonitored(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, index=1)
    backend.discover()
    backend.health_events(SHORT)
    stub.wait_error(UNKNOWN_ERROR)

    for _ in range(2):  # news would make a failing wait look as if it worked
        with pytest.raises(WatchFailed):
            backend.health_events(SHORT)

    stub.clear("nvmlDeviceRegisterEvents")
    assert backend.health_events(SHORT) == [HealthEvent(stub.uuid(1), None)]


def test_a_loss_that_only_the_list_saw_is_proven_over_too(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.fail("nvmlDeviceGetMemoryInfo", GPU_IS_LOST, index=3)
    watching.discover()
    stub.clear()

    assert watching.health_events(SHORT) == [HealthEvent(stub.uuid(3), None, Proof.RESET)]


def test_a_lost_card_is_registered_anew_when_it_is_back(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.trace()
    stub.fail("nvmlDeviceGetFieldValues", GPU_IS_LOST, index=3)
    stub.xid(3, 79)
    assert hear(watching) == [(stub.uuid(3), "xid-79"), (stub.uuid(3), "lost")]
    stub.clear()

    assert watching.health_events(SHORT) == [HealthEvent(stub.uuid(3), None, Proof.RESET)]
    assert stub.calls("nvmlDeviceRegisterEvents") == 1


def test_an_event_set_with_a_removed_card_is_replaced(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.trace()
    stub.remove(2)
    watching.discover()

    watching.health_events(SHORT)
    watching.health_events(SHORT)

    assert stub.calls("nvmlEventSetFree") == 1
    assert stub.calls("nvmlDeviceRegisterEvents") == 7


def test_mig_devices_are_unwatched_with_their_card_and_with_it_watched_again(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.fail("nvmlDeviceRegisterEvents", NOT_SUPPORTED, index=1)
    first = stub.mig(1, [Mig()])
    backend.discover()
    assert hear(backend, SHORT) == [(uuid, "unmonitored") for uuid in (stub.uuid(1), *first)]

    [_, second] = stub.mig(1, [Mig(), Mig(gi=8)])
    backend.discover()

    assert hear(backend, SHORT) == [(second, "unmonitored")]
    stub.clear()
    backend.close()
    backend.open()
    backend.discover()
    assert hear(backend, SHORT) == []


def test_a_reset_of_a_card_speaks_for_its_mig_devices(watching: NvmlBackend, stub: NvmlStub) -> None:
    [uuid] = stub.mig(2, [Mig(gi=7)])
    watching.discover()
    stub.recovery(2, 1, announce=False)
    stub.xid(2, 95, 7, 0)
    assert hear(watching) == [(uuid, "xid-95"), (stub.uuid(2), "recovery-action-reset")]

    stub.recovery(2, 0)

    assert watching.health_events(LONG) == [HealthEvent(stub.uuid(2), None, Proof.RESET)]


def test_a_driver_that_was_loaded_anew_is_watched_again(watching: NvmlBackend, stub: NvmlStub) -> None:
    before = watching.discover()
    stub.driver_gone()
    with pytest.raises(BackendUnavailable, match="driver-not-loaded"):
        watching.discover()
    watching.close()
    with pytest.raises(BackendUnavailable, match="driver-not-loaded"):
        watching.open()
    stub.clear()

    watching.open()

    assert watching.discover() == before
    assert watching.health_events(SHORT) == []
    stub.xid(0, 79)
    assert hear(watching) == [(stub.uuid(0), "xid-79")]


def test_a_wait_that_fails_for_good_is_tried_once_a_call(watching: NvmlBackend, stub: NvmlStub) -> None:
    stub.wait_error(UNKNOWN_ERROR)
    stub.trace()

    for _ in range(5):  # who calls decides when to try again
        with pytest.raises(WatchFailed):
            watching.health_events(LONG)

    assert stub.calls("nvmlEventSetWait_v2") == 5


def test_a_card_that_is_lost_from_the_start_keeps_no_other_from_being_watched(
    backend: NvmlBackend, stub: NvmlStub
) -> None:
    stub.lose(5)
    assert sum(device.fault is None for device in backend.discover()) == 7
    assert backend.health_events(SHORT) == []

    stub.xid(4, 79)

    assert hear(backend) == [(stub.uuid(4), "xid-79")]
