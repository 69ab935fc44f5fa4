"""What is wrong with a card is said with its reason, and what only might be is said to be unknown."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from metax_host import OURS, Host, asked, by_uuid, claim
from mxsml_stub import EVENTS, MxsmlStub

from agent.vendor_api.agent import Device, Fault, HealthEvent, Proof, State
from agent.vendors.metax.child.abi import Code, PciEventType
from agent.vendors.metax.child.backend import MetaxBackend

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

WAIT = 0.05
TURNS = 400


def _fault(backend: MetaxBackend, slot: int = 0) -> Fault | None:
    return by_uuid(backend.discover())[MxsmlStub.uuid(slot)].fault


def _reason(backend: MetaxBackend, slot: int = 0) -> str:
    fault = _fault(backend, slot)
    return fault.reason if fault else ""


# What reading a card says


def _goes_astray(stub: MxsmlStub) -> None:
    stub.enable_sgpu(0)
    stub.astray(0, 256)


BROKEN: dict[str, tuple[Callable[[MxsmlStub], None], str, State]] = {
    "its state": (lambda it: it.state(0, available=False), "unavailable", State.UNHEALTHY),
    "a reason": (lambda it: it.unavailable(0, 7, "overheated"), "unavailable", State.UNHEALTHY),
    "its registers": (lambda it: it.mmio(0, 0), "mmio", State.UNHEALTHY),
    "its absence": (lambda it: it.lose(0), "gone", State.UNHEALTHY),
    "its removal": (lambda it: it.remove(0), "gone", State.UNHEALTHY),
    "memory astray": (_goes_astray, "slices-do-not-sum", State.UNHEALTHY),
    "a failure": (lambda it: it.fail("GetDeviceState", Code.FAILURE, slot=0), "unreadable", State.UNHEALTHY),
    "sysfs": (lambda it: it.fail("GetDeviceState", Code.SYSFS_ERROR, slot=0), "unreadable", State.UNKNOWN),
    "busy": (lambda it: it.fail("GetDeviceState", Code.BUSY_DEVICE, slot=0), "unreadable", State.UNKNOWN),
    "all of it busy": (lambda it: it.lose(0, Code.BUSY_DEVICE), "unreadable", State.UNKNOWN),
}


@pytest.mark.parametrize(("break_it", "reason", "state"), BROKEN.values(), ids=BROKEN.keys())
def test_a_fault_has_its_reason_and_ends_with_its_cause(
    native: MetaxBackend, stub: MxsmlStub, break_it: Callable[[MxsmlStub], None], reason: str, state: State
) -> None:
    break_it(stub)
    fault = _fault(native)
    assert fault is not None
    assert (fault.reason, fault.state) == (reason, state)
    assert [_reason(native, slot) for slot in range(1, 8)] == [""] * 7

    stub.clear()
    stub.restore(0)
    stub.state(0, available=True)
    stub.unavailable(0, 0)
    stub.mmio(0, 1)
    stub.astray(0, 0)

    assert _fault(native) is None


def test_the_drivers_own_words_are_handed_on(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.unavailable(0, 7, "overheated")

    fault = _fault(native)

    assert fault is not None
    assert "overheated (code 7)" in fault.message


def test_any_die_that_can_not_be_used_takes_the_card(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.dies(0)
    stub.unavailable(0, 7, "broken", die=1)

    fault = _fault(native)

    assert fault is not None
    assert "die 1 is not available: broken" in fault.message


@pytest.mark.parametrize("symbol", ["GetTotalEccErrors", "GetPciEventInfo", "GetPciMmioState"])
@pytest.mark.parametrize("code", [Code.OPERATION_NOT_SUPPORT, Code.FUNCTION_NOT_FOUND])
def test_what_a_card_can_not_tell_says_nothing_of_it(
    native: MetaxBackend, stub: MxsmlStub, symbol: str, code: Code
) -> None:
    stub.fail(symbol, code)

    assert _fault(native) is None


def test_a_card_that_tells_nothing_of_its_health_is_unknown(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.fail("GetDeviceState", Code.OPERATION_NOT_SUPPORT, slot=0)
    stub.fail("GetDeviceUnavailableReason", Code.OPERATION_NOT_SUPPORT, slot=0)

    fault = _fault(native)

    assert fault is not None
    assert (fault.reason, fault.state) == ("unmonitored", State.UNKNOWN)


def test_a_state_of_the_registers_that_never_changed_is_no_fault(host: Host, stub: MxsmlStub) -> None:
    for slot in range(8):
        stub.mmio(slot, 0)
    backend = host.backend()
    backend.open()

    for _ in range(2):
        assert [it.fault for it in backend.discover()] == [None] * 8


@pytest.mark.parametrize("mode", ["native", "shared"])
def test_slices_on_a_card_that_is_given_out_whole_are_a_fault(host: Host, stub: MxsmlStub, mode: str) -> None:
    stub.make_slice(0, 1024, 10)
    backend = host.backend(mode=mode)
    backend.open()

    assert _reason(backend, 0) == "sliced"
    stub.vanish(0, 0)
    assert _reason(backend, 0) == ""


def test_slices_are_no_fault_in_mode_sgpu(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.make_slice(0, 1024, 10)

    assert _fault(sgpu) is None


def test_slices_that_can_not_be_read_leave_what_was_known(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.make_slice(0, 1024, 10)
    before = sgpu.discover()[0]
    stub.fail("GetSgpuToggle", Code.SYSFS_ERROR)

    after = sgpu.discover()[0]

    assert after.fault is not None
    assert after.fault.state is State.UNKNOWN
    assert after.attributes == before.attributes


def test_what_lay_on_a_card_is_not_said_once_it_is_gone(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    stub.make_slice(0, 1024, 10)
    sgpu.discover()
    stub.vanish(0, 0)
    stub.state(0, available=False)

    attributes = sgpu.discover()[0].attributes

    assert not {"slices", "qos", "foreign-slices"} & attributes.keys()


# Counters

COUNTED: dict[str, tuple[Callable[[MxsmlStub, int], None], str, str]] = {
    "dram-ue": (lambda it, count: it.ecc(0, dram=count), "ecc", "DRAM"),
    "sram-ue": (lambda it, count: it.ecc(0, sram=count), "ecc", "SRAM"),
    "dbe": (lambda it, count: it.pci_event(0, PciEventType.DBE, count), "ecc", "double-bit"),
    "aer-ue": (lambda it, count: it.pci_event(0, PciEventType.AER_UE, count), "pcie", "PCIe"),
}


@pytest.mark.parametrize(("count", "reason", "says"), COUNTED.values(), ids=COUNTED.keys())
def test_a_counter_that_grows_is_told_once_and_ends_with_a_fresh_start_alone(
    native: MetaxBackend, stub: MxsmlStub, count: Callable[[MxsmlStub, int], None], reason: str, says: str
) -> None:
    count(stub, 2)
    native.discover()

    [event] = native.health_events(WAIT)

    assert event.uuid == stub.uuid(0)
    assert event.fault is not None
    assert event.fault.reason == reason
    assert says in event.fault.message
    assert set(event.fault.cleared_by) == {Proof.RESET, Proof.DRIVER_RELOAD, Proof.REBOOT}
    native.discover()
    assert native.health_events(WAIT) == []


def test_corrected_errors_are_no_fault(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.ecc(0, corrected=(9, 9), retired=1)
    stub.pci_event(0, PciEventType.AER_CE, 9)

    assert _fault(native) is None
    assert native.health_events(WAIT) == []


def test_what_a_card_counted_before_it_was_first_seen_is_no_news(host: Host, stub: MxsmlStub) -> None:
    stub.ecc(0, dram=5)
    backend = host.backend()
    backend.open()
    backend.discover()

    assert backend.health_events(WAIT) == []


def test_errors_of_all_dies_are_counted(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.dies(0)
    stub.ecc(0, dram=1)
    stub.ecc(0, die=1, dram=2)

    assert native.discover()[0].counters["dram-ue"] == 3


def test_an_error_counts_that_came_while_no_process_looked(
    host: Host, native: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.ecc(0, dram=1)

    events = host.reopened(native).health_events(WAIT)

    assert [it.uuid for it in events] == [stub.uuid(0)]


def test_counters_begin_anew_with_the_driver(native: MetaxBackend, stub: MxsmlStub) -> None:
    stub.ecc(0, dram=5)
    native.discover()
    native.health_events(WAIT)
    stub.driver_reload()
    native.discover()
    assert "ecc" not in _reasons(native)

    stub.ecc(0, dram=1)
    native.discover()

    assert "ecc" in _reasons(native)


def test_fewer_errors_than_before_are_those_since_the_driver_was_loaded_anew(
    native: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.ecc(0, dram=5)
    native.discover()
    native.health_events(WAIT)
    stub.ecc(0, dram=2)
    native.discover()

    [event] = native.health_events(WAIT)

    assert event.fault is not None
    assert "2, were 0" in event.fault.message


@pytest.mark.parametrize("text", ["", "[", "{}", '{"cards": 7}', '{"cards": {"a": 1}}'])
def test_counters_on_disk_that_make_no_sense_are_begun_anew(host: Host, text: str) -> None:
    (host.directory / "counters.json").write_text(text)
    backend = host.backend()
    backend.open()

    assert [it.fault for it in backend.discover()] == [None] * 8


def _reasons(backend: MetaxBackend) -> list[str]:
    return [it.fault.reason for it in backend.health_events(WAIT) if it.fault]


# Events


def _heard(
    backend: MetaxBackend, wanted: Callable[[HealthEvent], bool], before: Callable[[], None] = lambda: None
) -> HealthEvent:
    """Wait for news until one is this; `before` is done each time."""
    for _ in range(TURNS):
        before()
        for event in backend.health_events(WAIT):
            if wanted(event):
                return event
    raise AssertionError("it was not heard of")


def _bad(event: HealthEvent) -> bool:
    return event.fault is not None


@pytest.fixture
def watched(native: MetaxBackend, stub: MxsmlStub) -> MetaxBackend:
    """With its threads waiting: an event that comes before them is nobody's."""
    stub.trace()
    native.health_events(WAIT)
    stub.await_calls("EventSetWait", 8)
    return native


def test_an_event_has_its_card_read_at_once(watched: MetaxBackend, stub: MxsmlStub) -> None:
    stub.unavailable(3, 7, "fell off")
    stub.event(3)

    event = _heard(watched, _bad)

    assert event.uuid == stub.uuid(3)
    assert event.fault is not None
    assert event.fault.reason == "unavailable"


def test_what_broke_before_anybody_watched_is_found_when_the_watch_begins(
    native: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.unavailable(3, 7, "fell off")
    stub.event(3)

    assert _heard(native, _bad).uuid == stub.uuid(3)


def test_an_event_of_a_card_that_is_well_says_nothing(watched: MetaxBackend, stub: MxsmlStub) -> None:
    stub.event(3)

    for _ in range(TURNS):
        assert watched.health_events(WAIT) == []
        if stub.calls("EventSetWait") > 8:
            return
    raise AssertionError("nobody waits again")


def test_news_comes_again_and_again(watched: MetaxBackend, stub: MxsmlStub) -> None:
    for number, slot in enumerate((1, 2, 1)):
        stub.unavailable(slot, 7, f"fell off {number}")
        stub.event(slot)
        heard: dict[str | None, str] = {}
        # A wait that began a moment ago may tell of the one before it, once more, even in the same answer.
        for _ in range(TURNS):
            heard |= {it.uuid: it.fault.message for it in watched.health_events(WAIT) if it.fault}
            if f"fell off {number}" in heard.get(stub.uuid(slot), ""):
                break
        else:
            raise AssertionError(f"card {slot} was not heard of; heard: {heard}")


def test_a_watch_that_breaks_says_so_and_says_when_it_is_repaired(
    watched: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.fail("EventSetWait", Code.FAILURE, slot=0)

    bad = _heard(watched, _bad)
    assert bad.fault is not None
    assert (bad.fault.reason, bad.fault.state) == ("unwatched", State.UNKNOWN)

    stub.clear()
    assert _heard(watched, lambda it: it.fault is None).uuid == bad.uuid


def test_a_library_without_events_leaves_health_to_the_polls(host: Host) -> None:
    stub = MxsmlStub(host.stub.control.parent, without=[EVENTS])
    backend = host.backend(**stub.settings)
    backend.open()
    backend.discover()

    assert backend.health_events(WAIT) == []
    stub.unavailable(0, 7, "fell off")
    assert _reason(backend) == "unavailable"


@pytest.mark.parametrize("symbol", ["EventSetCreate", "DeviceRegisterEvents"])
def test_a_card_without_events_is_left_to_the_polls(
    native: MetaxBackend, stub: MxsmlStub, symbol: str
) -> None:
    stub.fail(symbol, Code.OPERATION_NOT_SUPPORT)
    stub.trace()
    for _ in range(TURNS):
        assert native.health_events(WAIT) == []
        if stub.calls(symbol) >= 8:
            break

    stub.unavailable(0, 7, "fell off")

    assert native.health_events(WAIT) == []
    assert _reason(native) == "unavailable"


def test_opening_again_and_again_leaves_one_waiting_thread_for_each_card(
    native: MetaxBackend, stub: MxsmlStub
) -> None:
    of_others = set(_waits())
    for _ in range(3):
        native.health_events(WAIT)
        native.close()
        native.open()
        native.discover()

    stub.unavailable(3, 7, "fell off")
    assert _heard(native, _bad, before=lambda: stub.event(3)).uuid == stub.uuid(3)
    assert len(set(_waits()) - of_others) == 8


def test_waits_that_end_with_their_session_are_no_broken_watch(native: MetaxBackend, stub: MxsmlStub) -> None:
    of_others = set(_waits())
    stub.trace()
    native.health_events(WAIT)
    stub.await_calls("EventSetWait", 8)
    native.close()
    stub.fail("EventSetWait", Code.FAILURE)
    for it in set(_waits()) - of_others:
        it.join(30)
    stub.clear()
    native.open()
    native.discover()

    for _ in range(TURNS):
        assert native.health_events(WAIT) == []
        if stub.calls("EventSetWait") >= 16:
            return
    raise AssertionError("nobody waits again")


def test_a_closed_backend_tells_no_news(watched: MetaxBackend, stub: MxsmlStub) -> None:
    stub.unavailable(3, 7, "fell off")
    watched.close()
    stub.event(3)
    stub.await_calls("EventSetWait", 8)

    assert watched.health_events(WAIT) == ()


def _waits() -> list[threading.Thread]:
    return [it for it in threading.enumerate() if it.name.startswith("metax-events-")]


def test_a_vanished_slice_leaves_its_card_well(sgpu: MetaxBackend, stub: MxsmlStub) -> None:
    sgpu.prepare(asked(claim()), [stub.uuid(0)])
    stub.vanish(0, 0)

    devices: list[Device] = list(sgpu.discover())

    assert devices[0].fault is None
    assert [it.allocation for it in sgpu.partitions()] == []
    assert OURS not in sgpu.cdi()["metax-tech.com-sgpu.json"]
