"""What is wrong with a card is said with its reason, and what only might be is said to be unknown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from efml_stub import HANDLES, NEWER, EfmlStub
from enflame_host import Host, by_uuid, uuid

from agent.vendor_api.agent import Fault, HealthEvent, Proof, State
from agent.vendors.enflame.child import disturbances, faults_over_time
from agent.vendors.enflame.child.abi import Code, EventType, HandleCode, PowerMode
from agent.vendors.enflame.child.backend import EnflameBackend
from agent.vendors.enflame.child.faults_over_time import FaultsOverTime
from agent.vendors.enflame.shared import sysfs
from agent.vendors.enflame.shared.sysfs import Beat

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]


def _fault(backend: EnflameBackend, slot: int = 0) -> Fault | None:
    return by_uuid(backend.discover())[uuid(slot)].fault


def _reason(backend: EnflameBackend, slot: int = 0) -> str:
    fault = _fault(backend, slot)
    return fault.reason if fault else ""


def _news(backend: EnflameBackend) -> list[tuple[str | None, str, Proof | None]]:
    """Uuid, reason and proof of what is told now."""
    return [(it.uuid, it.fault.reason if it.fault else "", it.proof) for it in backend.health_events(0)]


# What reading a card says

BROKEN: dict[str, tuple[Callable[[Host], None], Callable[[Host], None], str, State]] = {
    "the library's own word": (
        lambda it: it.stub.health(0, healthy=False),
        lambda it: it.stub.health(0, healthy=True),
        "unhealthy",
        State.UNHEALTHY,
    ),
    "rma": (
        lambda it: it.stub.rma(0, flagged=True),
        lambda it: it.stub.rma(0, flagged=False),
        "rma",
        State.UNHEALTHY,
    ),
    "lost": (lambda it: it.stub.lose(0), lambda it: it.stub.restore(0), "lost", State.UNHEALTHY),
    "removed": (lambda it: it.stub.remove(0), lambda it: it.stub.restore(0), "lost", State.UNHEALTHY),
    "a reset is needed": (
        lambda it: it.stub.require_reset(0),
        lambda it: it.stub.restore(0),
        "reset-required",
        State.UNHEALTHY,
    ),
    "a narrow link": (
        lambda it: it.stub.link(0, 8),
        lambda it: it.stub.link(0, 16),
        "link",
        State.UNHEALTHY,
    ),
    "a failure": (
        lambda it: it.stub.fail("EfmlGetDevIsHealth", Code.FAIL, slot=0),
        lambda it: it.stub.clear(),
        "unreadable",
        State.UNHEALTHY,
    ),
    "a timeout": (
        lambda it: it.stub.fail("EfmlGetDevIsHealth", Code.TIMEOUT, slot=0),
        lambda it: it.stub.clear(),
        "unreadable",
        State.UNKNOWN,
    ),
}


@pytest.mark.parametrize(("breaks", "repairs", "reason", "state"), BROKEN.values(), ids=BROKEN.keys())
def test_a_fault_has_its_reason_and_ends_with_its_cause(
    host: Host,
    backend: EnflameBackend,
    breaks: Callable[[Host], None],
    repairs: Callable[[Host], None],
    reason: str,
    state: State,
) -> None:
    breaks(host)

    fault = _fault(backend)
    assert fault is not None
    assert (fault.reason, fault.state) == (reason, state)
    assert [_reason(backend, slot) for slot in (1, 7)] == ["", ""]

    repairs(host)
    assert _fault(backend) is None


def test_a_card_that_left_the_bus_is_lost_whatever_the_library_says(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    host.tree.remove(2)
    backend.discover()

    assert _reason(backend, 2) == "lost"
    assert len(backend.discover()) == 8
    host.tree.add_back(2)
    assert _reason(backend, 2) == ""


def test_a_lost_card_keeps_what_it_told_before(backend: EnflameBackend, stub: EfmlStub) -> None:
    before = backend.discover()[2]
    stub.lose(2)

    it = by_uuid(backend.discover())[uuid(2)]

    assert (it.pci, it.minor, it.memory, it.numa) == (before.pci, 2, before.memory, 0)


@pytest.mark.parametrize("code", [Code.DEPRECATION, Code.NOT_SUPPORTED])
@pytest.mark.parametrize(
    "symbol", ["EfmlGetDevEccStatus", "EfmlGetDevRma*", "EfmlGetPcieLinkInfo", "EfmlGetDevIsHealth"]
)
def test_what_a_card_can_not_tell_says_nothing_of_it(
    backend: EnflameBackend, stub: EfmlStub, symbol: str, code: Code
) -> None:
    for name in ("EfmlGetDevRmaDetails", "EfmlGetDevRmaStatus") if "Rma" in symbol else (symbol,):
        stub.fail(name, code)

    assert _fault(backend) is None


def test_a_card_of_whose_health_nothing_is_told_is_unknown(host: Host) -> None:
    stub = EfmlStub(host.stub.control.parent, without=[HANDLES])
    backend = host.opened(**stub.settings)
    stub.unsupported("EfmlGetDevIsHealth")
    stub.unsupported("EfmlGetDevHealth")

    fault = _fault(backend)

    assert fault is not None
    assert (fault.reason, fault.state) == ("unmonitored", State.UNKNOWN)


@pytest.mark.parametrize("code", [HandleCode.NO_PERMISSION, HandleCode.UNKNOWN, HandleCode.TIMEOUT])
def test_the_second_family_takes_no_card_that_the_first_one_reads(
    backend: EnflameBackend, stub: EfmlStub, code: int
) -> None:
    stub.fail("efml*", code, slot=0)

    assert _fault(backend) is None


@pytest.mark.parametrize("mode", list(PowerMode))
def test_a_card_that_sleeps_is_well(
    host: Host, backend: EnflameBackend, stub: EfmlStub, mode: PowerMode
) -> None:
    stub.power_mode(0, mode)
    host.tree.write(0, "ssm/status", "1")

    assert _fault(backend) is None
    assert _news(backend) == []


def test_that_a_reset_is_due_is_told_until_it_was_done(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.require_reset(0)
    due = by_uuid(backend.discover())[uuid(0)].recovery_due
    stub.restore(0)
    done = by_uuid(backend.discover())[uuid(0)].recovery_due

    assert (due, done) == (True, False)


def test_b15_a_hung_broken_or_resetting_card_is_not_healthy_because_its_directory_is_there(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.fail("EfmlGetDevInfo", Code.FAIL, slot=0)
    stub.rma(1, flagged=True)
    stub.event(2, EventType.RESET_START)
    stub.require_reset(3)
    backend.health_events(0)
    stub.ecc(4, double=1)

    reasons = [_reason(backend, slot) for slot in range(8)]
    told = [it for it in _news(backend) if it[0] == uuid(4)]

    assert all(host.tree.path(slot).exists() for slot in range(8))
    assert reasons == ["unreadable", "rma", "resetting", "reset-required", "", "", "", ""]
    assert told == [(uuid(4), "ecc", None)]


# Counters


@pytest.mark.parametrize("remembered", [False, True])
def test_a_double_bit_error_is_told_once_and_ends_with_a_fresh_start_alone(
    backend: EnflameBackend, stub: EfmlStub, remembered: bool
) -> None:
    """Of cards that do not count with ECC, what they remember for their vendor counts."""
    if remembered:
        stub.unsupported("EfmlGetDevEccStatus")
        stub.rma(0, flagged=False)
        backend.discover()
        stub.rma(0, flagged=False, double=2)
    else:
        stub.ecc(0, double=2)
    backend.discover()

    [event] = backend.health_events(0)

    assert event.uuid == uuid(0)
    assert event.fault is not None
    assert event.fault.reason == "ecc"
    assert "2, were 0" in event.fault.message
    assert set(event.fault.cleared_by) == {Proof.RESET, Proof.DRIVER_RELOAD, Proof.REBOOT}
    backend.discover()
    assert _news(backend) == []


def test_corrected_errors_are_no_fault(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.ecc(0, single=99)

    assert _fault(backend) is None
    assert _news(backend) == []


def test_what_a_card_counted_before_it_was_first_seen_is_no_news(host: Host, stub: EfmlStub) -> None:
    stub.ecc(0, double=5)

    assert _news(host.opened()) == []


def test_an_error_counts_that_came_while_no_process_looked(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.ecc(0, double=1)

    assert _news(host.opened()) == [(uuid(0), "ecc", None)]


def test_counters_begin_anew_with_the_driver(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.ecc(0, double=5)
    backend.discover()
    backend.health_events(0)
    stub.driver_reload()

    assert by_uuid(backend.discover())[uuid(0)].counters == {"dbe": 0}
    assert _news(backend) == []


# Events


def test_a_reset_is_a_fault_from_its_start_to_its_end_and_its_end_is_a_proof(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.event(3, EventType.RESET_START)
    assert _news(backend) == [(uuid(3), "resetting", None)]
    assert _reason(backend, 3) == "resetting"

    stub.event(3, EventType.RESET_FINISH)
    assert _news(backend) == [(uuid(3), "", Proof.RESET)]
    assert _reason(backend, 3) == ""


def test_a_card_that_can_not_be_read_while_it_resets_is_resetting(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.event(3, EventType.RESET_START)
    backend.health_events(0)
    stub.fail("Efml*", Code.FAIL, slot=3)
    assert _reason(backend, 3) == "resetting"

    stub.lose(3)
    assert _reason(backend, 3) == "lost"


def test_the_proof_of_a_reset_waits_until_the_card_reads_well(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.rma(3, flagged=True)
    stub.event(3, EventType.RESET_FINISH)
    assert _news(backend) == []
    assert _news(backend) == []

    stub.rma(3, flagged=False)

    assert _news(backend) == [(uuid(3), "", Proof.RESET)]
    assert _news(backend) == []


def test_a_suspended_card_is_bad_until_its_reset_is_over(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.event(3, EventType.SUSPEND)
    assert _news(backend) == [(uuid(3), "suspended", None)]
    assert _reason(backend, 3) == "suspended"

    stub.event(3, EventType.RESET_FINISH)
    backend.health_events(0)

    assert _reason(backend, 3) == ""


def test_a_reset_whose_end_nobody_told_ends_by_itself(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.event(3, EventType.RESET_START)
    backend.health_events(0)
    host.clock.now += disturbances.PATIENCE - 1
    assert _reason(backend, 3) == "resetting"

    host.clock.now += 1

    assert _reason(backend, 3) == ""


@pytest.mark.parametrize("kind", [EventType.EID, EventType.UNKNOWN, 77])
def test_another_event_has_its_card_read_at_once(backend: EnflameBackend, stub: EfmlStub, kind: int) -> None:
    stub.event(2, kind, 5, "an error")
    assert _news(backend) == []

    stub.health(3, healthy=False)
    stub.event(3, kind, 5, "an error")

    assert _news(backend) == [(uuid(3), "unhealthy", None)]


def test_errors_that_an_event_shows_are_told_beside_what_else_is_wrong(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.health(3, healthy=False)
    stub.ecc(3, double=1)
    stub.event(3, EventType.EID, 5, "an error")

    assert sorted(_news(backend)) == [(uuid(3), "ecc", None), (uuid(3), "unhealthy", None)]


def test_an_event_is_its_cards_also_when_the_library_counts_anew(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.remove(0)
    host.tree.remove(0)
    backend.discover()
    stub.event(3, EventType.RESET_START)

    assert _news(backend) == [(uuid(3), "resetting", None)]


def test_a_card_whose_events_can_not_be_asked_for_is_unknown_until_they_can(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.fail("EfmlGetEventV2", Code.FAIL, slot=3)

    [bad] = backend.health_events(0)
    assert bad.fault is not None
    assert (bad.uuid, bad.fault.reason, bad.fault.state) == (uuid(3), "unwatched", State.UNKNOWN)
    assert _news(backend) == []

    stub.clear()
    assert _news(backend) == [(uuid(3), "", None)]


def test_a_card_that_is_lost_between_two_polls_is_told_by_the_watch(
    backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.lose(3)

    assert _news(backend) == [(uuid(3), "lost", None)]
    assert _news(backend) == []


def test_a_card_without_events_is_left_to_the_polls(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.unsupported("EfmlGetEventV2", slot=3)
    stub.trace()

    for _ in range(3):
        assert _news(backend) == []
    assert stub.calls("EfmlGetEventV2") == 3 * 8 - 2


def test_of_a_library_that_does_not_say_which_card_an_event_is_of_all_are_read(host: Host) -> None:
    stub = EfmlStub(host.stub.control.parent, without=[NEWER], trace=True)
    backend = host.opened(**stub.settings)
    stub.health(3, healthy=False)
    stub.event(3, EventType.EID, 5, "an error")

    assert _news(backend) == [(uuid(3), "unhealthy", None)]
    assert stub.calls("EfmlGetEvent") > 0


def test_that_events_of_any_card_can_not_be_asked_for_is_said_of_all(host: Host) -> None:
    stub = EfmlStub(host.stub.control.parent, without=[NEWER])
    backend = host.opened(**stub.settings)
    stub.fail("EfmlGetEvent", Code.FAIL)

    [bad] = backend.health_events(0)
    assert (bad.uuid, bad.fault and bad.fault.state) == (None, State.UNKNOWN)
    assert _news(backend) == []
    stub.clear()
    assert _news(backend) == [(None, "", None)]


def test_nothing_that_waits_for_ever_is_ever_called(backend: EnflameBackend, stub: EfmlStub) -> None:
    stub.hang("EfmlGetEvent")

    assert _news(backend) == []


# The wait


@pytest.fixture
def real(host: Host) -> EnflameBackend:
    """By the machine's own clock."""
    backend = host.backend()
    backend.clock = time.monotonic
    backend.open()
    backend.discover()
    return backend


def _in_a_thread(backend: EnflameBackend, stub: EfmlStub) -> tuple[threading.Thread, list[HealthEvent]]:
    """Somebody who waits for news, and what is heard; the watch has made its first round."""
    told: list[HealthEvent] = []
    stub.trace()
    thread = threading.Thread(target=lambda: told.extend(backend.health_events(600)))
    thread.start()
    stub.await_calls("EfmlGetEventV2", 8)
    return thread, told


def test_news_ends_the_wait(real: EnflameBackend, stub: EfmlStub) -> None:
    thread, told = _in_a_thread(real, stub)

    stub.event(3, EventType.RESET_START)
    thread.join(60)

    assert not thread.is_alive()
    assert [it.uuid for it in told] == [uuid(3)]


def test_closing_ends_the_wait(real: EnflameBackend, stub: EfmlStub) -> None:
    thread, told = _in_a_thread(real, stub)

    real.close()
    thread.join(60)

    assert not thread.is_alive()
    assert told == []


def test_no_two_calls_of_the_library_are_made_at_once(real: EnflameBackend, stub: EfmlStub) -> None:
    thread, _ = _in_a_thread(real, stub)
    stub.latency("EfmlGetEventV2", 0.002)
    for _ in range(3):
        real.discover()
        real.usage()
    real.close()
    thread.join(60)

    assert stub.overlaps() == 0


# What only time shows


def _seconds(host: Host, backend: EnflameBackend, count: int, each: Callable[[], None]) -> list[str]:
    """Let seconds go by, asking each; the reasons that are told."""
    reasons: list[str] = []
    for _ in range(count):
        host.clock.now += 1
        each()
        reasons += [reason for _, reason, _ in _news(backend)]
    return reasons


def test_a_card_is_too_hot_after_ten_seconds_and_well_again_when_it_was_cool_for_long_enough(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    _news(backend)
    stub.temperature(0, 95.5)
    assert _seconds(host, backend, 9, lambda: None) == []
    assert _seconds(host, backend, 1, lambda: None) == ["hot"]
    assert _seconds(host, backend, 3, lambda: None) == []
    assert _reason(backend) == "hot"

    stub.temperature(0, 95)
    _seconds(host, backend, 6, lambda: None)
    assert _reason(backend) == ""


def test_a_card_that_is_hot_now_and_then_is_well() -> None:
    seen = FaultsOverTime()
    for second in range(60):
        seen.add("it", second, 99 if second % 2 else 40, None)

    assert seen.fault("it") is None


def test_a_single_hot_look_stands_for_a_few_seconds_at_most() -> None:
    seen = FaultsOverTime()
    seen.add("it", 0, 99, None)
    seen.add("it", 600, 99, None)

    assert seen.fault("it") is None


def test_firmware_that_stops_counting_while_it_is_awake_is_dead(host: Host, backend: EnflameBackend) -> None:
    def beat(slots: range) -> None:
        for slot in slots:
            host.tree.beat(slot)

    _seconds(host, backend, 3, lambda: beat(range(8)))
    told = _seconds(host, backend, int(faults_over_time.SILENCE), lambda: beat(range(1, 8)))

    assert told == ["heartbeat"]
    assert _reason(backend, 0) == "heartbeat"
    assert _reason(backend, 1) == ""
    _seconds(host, backend, 1, lambda: beat(range(1)))
    assert _reason(backend, 0) == ""


def test_firmware_that_sleeps_need_not_count() -> None:
    seen = FaultsOverTime()
    for second in range(60):
        seen.add("awake", second, None, Beat(second, asleep=False))
        seen.add("asleep", second, None, Beat(7, asleep=True))

    assert seen.fault("asleep") is None


def test_firmware_of_which_nobody_knows_whether_it_sleeps_need_not_count(host: Host) -> None:
    (host.tree.path(0) / "ssm/status").unlink()

    assert sysfs.beat(host.tree.sysfs, host.stub.bdf(0)) == Beat(1, asleep=True)
    assert sysfs.beat(host.tree.sysfs, host.stub.bdf(1)) == Beat(1, asleep=False)


def test_firmware_of_a_node_where_none_counts_is_not_taken_for_dead() -> None:
    seen = FaultsOverTime()
    for second in range(60):
        seen.add("one", second, None, Beat(1, asleep=False))
        seen.add("other", second, None, Beat(1, asleep=False))

    assert [seen.fault("one"), seen.fault("other")] == [None, None]


def test_firmware_that_never_counted_is_dead_where_others_count() -> None:
    seen = FaultsOverTime()
    for second in range(60):
        seen.add("one", second, None, Beat(1, asleep=False))
        seen.add("other", second, None, Beat(second, asleep=False))

    fault = seen.fault("one")
    assert fault is not None
    assert fault.reason == "heartbeat"


def test_a_driver_without_these_files_says_nothing_of_the_firmware(
    host: Host, backend: EnflameBackend
) -> None:
    for slot in range(8):
        (host.tree.path(slot) / "ssm/count").unlink()

    assert _seconds(host, backend, 40, lambda: None) == []


# What the library does to the process


def test_a_hang_of_one_call_is_for_the_agent_to_end(host: Host, stub: EfmlStub) -> None:
    """Nothing here waits for a lock with an end: the process is what is killed."""
    stub.hang("EfmlGetDevMem")
    backend = host.backend()
    backend.open()
    thread = threading.Thread(target=backend.discover, daemon=True)
    stub.trace()
    thread.start()
    stub.await_calls("EfmlGetDevMem", 1)
    assert thread.is_alive()
    stub.clear()
    thread.join(60)
    assert not thread.is_alive()


def test_a_crash_in_the_library_is_the_processs_alone(host: Host, stub: EfmlStub) -> None:
    stub.segv("EfmlGetDevRmaDetails")
    done = stub.run(
        "from agent.vendors.enflame.child.backend import EnflameBackend\n"
        f"it = EnflameBackend({host.settings()!r})\nit.open()\nit.discover()\n"
    )

    assert done.returncode < 0


def test_the_processs_signals_are_what_they_were(host: Host, stub: EfmlStub) -> None:
    stub.change_signal(15, "ignore")
    done = stub.run(
        "import signal\n"
        "from agent.vendors.enflame.child.backend import EnflameBackend\n"
        f"it = EnflameBackend({host.settings()!r})\nit.open()\nit.discover()\nit.close()\n"
        "import os\nos.kill(os.getpid(), signal.SIGTERM)\n"
    )

    assert done.returncode == -15
