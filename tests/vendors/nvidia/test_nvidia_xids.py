"""The XID policy as a table, and which of it the operator switches on and off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from nvml_stub import DOUBLE_BIT_ECC, NvmlStub

from agent.vendor_api.agent import HealthEvent, Proof, State
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.shared import xid
from agent.vendors.nvidia.shared.error_checks import ALL, Checks

pytest_plugins = ["nvml_fixtures"]

LONG, SHORT = 20.0, 0.02

IGNORED = "ignored"
ANY_FRESH_START = frozenset(Proof)
BY_HAND = frozenset({Proof.REBOOT, Proof.OPERATOR})

APPLICATION = "restart the application, and reset the card when convenient"
NOTHING = "nothing has to be done; where disableHealthChecks names it, such a card stays in service"
RESET = "reset the card"

Row = tuple[Iterable[int], str, frozenset[Proof]]
#: NVIDIA's XID catalog by its immediate action (docs.nvidia.com/deploy/xid-errors, 2026), with the six codes
#: that its device plugin v0.20 ignores: XIDs, what is said to do, what ends the fault.
POLICY: tuple[Row, ...] = (
    ({13, 31, 43, 45, 68, 109}, IGNORED, frozenset()),
    ({8, 11, 25, 32, 39, 40, 41, 60, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83}, APPLICATION, ANY_FRESH_START),
    ({84, 85, 86, 88, 89, 94, *range(96, 106), *range(126, 136), 139}, APPLICATION, ANY_FRESH_START),
    ({14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137}, NOTHING, ANY_FRESH_START),
    ({141, 152, 153, 157, 160, 161}, NOTHING, ANY_FRESH_START),
    ({46, 48, 62, 64, 95, 110, 119, 120, 136, 140, 143, 156, 158}, RESET, ANY_FRESH_START),
    ({74, *range(144, 151), 155}, RESET, ANY_FRESH_START),  # NVLink
    ({79}, "reboot the node", ANY_FRESH_START),
    ({54}, "check the card's seating and power connection", BY_HAND),
    ({151}, "restart the virtual machine", BY_HAND),
    ({78}, "update driver and firmware", ANY_FRESH_START),
    ({142}, "ask NVIDIA support", ANY_FRESH_START),
    ({154}, RESET, ANY_FRESH_START),  # of a driver that does not say which action it wants
    ({*range(1, 8), 9, 10, 12, *range(15, 25), 159, *range(162, 173), 555}, RESET, ANY_FRESH_START),
)


@pytest.mark.parametrize(
    ("code", "action", "proofs"),
    [(code, action, proofs) for codes, action, proofs in POLICY for code in sorted(codes)],
)
def test_every_xid_is_ignored_or_a_fault_with_its_action_and_its_proofs(
    code: int, action: str, proofs: frozenset[Proof]
) -> None:
    ignored = Checks.read({}).ignores(code)

    assert ignored == (action == IGNORED)
    if not ignored:
        fault = xid.fault(code)
        assert (fault.reason, fault.state) == (f"xid-{code}", State.UNHEALTHY)
        assert fault.message.startswith(f"XID {code}: ")
        assert fault.message.endswith(f"; {action}")
        assert frozenset(fault.cleared_by) == proofs


def test_the_table_has_every_xid_that_we_have_words_for() -> None:
    assert set(xid.CATALOG) <= {code for codes, _, _ in POLICY for code in codes}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (74, "NVLink error"),
        (144, "NVLink SAW error"),
        (145, "NVLink RLW error"),
        (146, "NVLink TLW error"),
        (147, "NVLink TREX error"),
        (148, "NVLink NVLPW_CTRL error"),
        (149, "NVLink NETIR error"),
        (150, "NVLink MSE error"),
        (155, "NVLink error defined by software"),
    ],
)
def test_an_nvlink_error_is_called_by_its_name(code: int, name: str) -> None:
    assert xid.fault(code).message == f"XID {code}: {name}; reset the card"


SIX = dict.fromkeys((13, 31, 43, 45, 68, 109), True)
#: (disable, enable, contents): what NVIDIA's own tests expect of its map (internal/rm/health_test.go, v0.20).
CONTENTS: tuple[tuple[str, str, Mapping[int, bool]], ...] = (
    ("", "", SIX),
    (",", ",", SIX),
    ("not-an-int", "", SIX),
    ("-11", "", SIX),
    ("1_1", "", SIX),
    ("18446744073709551616", "", SIX),
    ("11", "", {**SIX, 11: True}),
    ("11  ", "", {**SIX, 11: True}),
    ("11,", "", {**SIX, 11: True}),
    (",11", "", {**SIX, 11: True}),
    ("11,67", "", {**SIX, 11: True, 67: True}),
    ("11,not-an-int,67", "", {**SIX, 11: True, 67: True}),
    ("all", "", {**SIX, ALL: True}),
    ("ALL", "", {**SIX, ALL: True}),
    ("xids", "", {**SIX, ALL: True}),
    ("11, Xids ,67", "", {**SIX, ALL: True}),
    ("", "all", {**SIX, ALL: False}),
    ("", "31", {**SIX, 31: False}),
    ("11", "11", {**SIX, 11: False}),
    ("all", "79", {**SIX, ALL: True, 79: False}),
)


@pytest.mark.parametrize(("disable", "enable", "contents"), CONTENTS)
def test_the_lists_mean_what_they_mean_to_nvidias_plugin(
    disable: str, enable: str, contents: Mapping[int, bool]
) -> None:
    checks = Checks.read({"disableHealthChecks": disable, "enableHealthChecks": enable})

    assert checks.disabled == contents


@pytest.mark.parametrize(
    ("disable", "enable", "ignored", "counted"),
    [
        ("", "", {13, 109}, {11, 79, 555}),
        ("all", "", {13, 79, 555}, set()),
        ("xids", "", {13, 79, 555}, set()),
        ("0", "", {13, 79, 555}, set()),
        ("", "all", set(), {13, 109, 79, 555}),
        ("all", "all", set(), {13, 109, 79, 555}),
        ("11", "11", {13}, {11, 555}),
        ("", "31", {13, 43}, {31, 555}),
        ("79,94", "", {13, 79, 94}, {95}),
        ("all", "79", {13, 48, 555}, {79}),
    ],
)
def test_enabled_beats_disabled_and_the_six(
    disable: str, enable: str, ignored: set[int], counted: set[int]
) -> None:
    checks = Checks.read({"disableHealthChecks": disable, "enableHealthChecks": enable})

    assert {code for code in ignored | counted if checks.ignores(code)} == ignored


@pytest.mark.parametrize(
    ("disable", "enable", "nothing"),
    [
        ("all", "", True),
        ("xids", "junk", True),
        ("all", "79", False),
        ("all", "all", False),
        ("79", "", False),
    ],
)
def test_only_what_disables_all_and_enables_none_watches_nothing(
    disable: str, enable: str, nothing: bool
) -> None:
    checks = Checks.read({"disableHealthChecks": disable, "enableHealthChecks": enable})

    assert checks.nothing == nothing


def test_own_ignored_xids_take_the_place_of_the_six_and_never_mean_all() -> None:
    checks = Checks.read({"ignoreXids": [0, 94], "enableHealthChecks": "94"})

    assert not any(checks.ignores(code) for code in (13, 79, 94))


def started(settings: Mapping[str, Any]) -> NvmlBackend:
    backend = NvmlBackend(settings)
    backend.open()
    backend.discover()
    return backend


def test_disable_all_with_enable_79_watches_79_and_nothing_else(
    stub: NvmlStub, settings: Mapping[str, Any]
) -> None:
    stub.recovery(1, 1, announce=False)
    backend = started({**settings, "disableHealthChecks": "all", "enableHealthChecks": "79"})
    assert backend.health_events(SHORT) == []
    stub.event(0, DOUBLE_BIT_ECC)
    stub.recovery(1, 2)
    stub.xid(2, 48)
    stub.xid(3, 79)

    heard = [event for _ in range(4) for event in backend.health_events(SHORT)]

    assert [(event.uuid, event.fault and event.fault.reason) for event in heard] == [(stub.uuid(3), "xid-79")]
    assert backend.discover()[1].fault is None
    backend.close()


def test_a_reset_ends_what_alone_is_watched(stub: NvmlStub, settings: Mapping[str, Any]) -> None:
    backend = started({**settings, "disableHealthChecks": "all", "enableHealthChecks": "79"})
    backend.health_events(SHORT)
    stub.recovery(3, 1, announce=False)
    stub.xid(3, 79)
    assert backend.health_events(LONG)

    stub.recovery(3, 0)

    assert backend.health_events(SHORT) == [HealthEvent(stub.uuid(3), None, Proof.RESET)]
    backend.close()


def test_without_any_check_devices_are_unknown_and_it_is_said_once(
    stub: NvmlStub, settings: Mapping[str, Any]
) -> None:
    stub.cards(2)
    uuids = stub.mig(1)
    backend = started({**settings, "disableHealthChecks": "all"})

    said = backend.health_events(LONG)

    assert [event.uuid for event in said] == [stub.uuid(0), stub.uuid(1), *uuids]
    assert {(event.fault.reason, event.fault.state) for event in said if event.fault} == {
        ("checks-disabled", State.UNKNOWN)
    }
    stub.xid(0, 79)
    stub.recovery(0, 1)
    backend.discover()
    assert backend.health_events(SHORT) == []
    backend.close()


def test_without_any_check_no_event_is_asked_for(stub: NvmlStub, settings: Mapping[str, Any]) -> None:
    stub.trace()
    backend = started({**settings, "disableHealthChecks": "all"})
    backend.health_events(SHORT)
    backend.health_events(SHORT)

    assert stub.calls("nvmlEventSetCreate") == stub.calls("nvmlDeviceRegisterEvents") == 0
    backend.close()


def test_without_any_check_a_new_card_is_unknown_too(stub: NvmlStub, settings: Mapping[str, Any]) -> None:
    stub.cards(1)
    backend = started({**settings, "disableHealthChecks": "all"})
    backend.health_events(SHORT)
    stub.cards(2)
    backend.discover()

    assert [event.uuid for event in backend.health_events(LONG)] == [stub.uuid(1)]
    backend.close()


def test_without_any_check_a_lost_card_that_answers_again_was_still_reset(
    stub: NvmlStub, settings: Mapping[str, Any]
) -> None:
    backend = started({**settings, "disableHealthChecks": "all"})
    backend.health_events(SHORT)
    stub.lose(3)
    assert backend.discover()[3].fault is not None
    backend.health_events(SHORT)
    stub.restore(3)
    backend.discover()

    assert backend.health_events(SHORT) == [HealthEvent(stub.uuid(3), None, Proof.RESET)]
    backend.close()
