"""A koordlet is known by its pod's gates and by its hand in the Device, and by nobody's who only says so."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.koordlets import pod

from agent.schedulers.koordinator.koordlet_signs import (
    last_writes,
    reporting,
    reporting_sign,
    wrote_devices,
)

from .managed_fields import LIST, device, entry


@pytest.mark.parametrize(
    ("gates", "gate"),
    [
        ("Accelerators=true", "Accelerators"),
        ("AllAlpha=true", "AllAlpha"),
        ("AllAlpha=false,Accelerators=True", "Accelerators"),
        ("AllAlpha=true,Accelerators=false", None),
        ("Accelerators=false", None),
        ("CgroupReconcile=true", None),
        ("Accelerators=false,Accelerators=true", "Accelerators"),
        ("Accelerators", None),
    ],
)
def test_its_gates_say_whether_it_reports(gates: str, gate: str | None) -> None:
    told = reporting(pod("n", gates))

    assert told == (f"koordlet koordinator-system/koordlet-x runs here with {gate}=true" if gate else None)


@pytest.mark.parametrize(
    "arguments",
    [["--feature-gates=Accelerators=true"], ["-feature-gates", "Accelerators=true"]],
)
def test_a_flag_is_read_however_it_is_written(arguments: list[str]) -> None:
    its = pod("n")
    its["spec"]["containers"][0]["args"] = arguments

    assert reporting(its)


@pytest.mark.parametrize(
    "changed",
    [
        {"spec": {"containers": None}},
        {"spec": {"containers": [None, {"name": 1, "args": 2}]}},
        {"spec": None},
        {"status": {"phase": "Failed"}},
        {
            "metadata": None,
            "spec": {"containers": [{"name": "other", "securityContext": {"privileged": True}}]},
        },
    ],
)
def test_a_pod_that_is_over_or_nonsense_is_none(changed: dict[str, Any]) -> None:
    assert reporting({**pod("n"), **changed}) is None


@pytest.mark.parametrize("security", [{"privileged": False}, {"privileged": "true"}])
def test_a_stranger_s_pod_that_calls_itself_koordlet_silences_nobody(security: dict[str, Any]) -> None:
    assert reporting(pod("n", **security)) is None


@pytest.mark.parametrize(
    ("its", "expected"),
    [
        (pod("n", "Accelerators=false"), ""),
        (pod("n", "Accelerators=false", privileged=False), None),
        ({**pod("n"), "status": {"phase": "Failed"}}, None),
    ],
)
def test_a_koordlet_that_does_not_report_is_told_from_no_koordlet(
    its: dict[str, Any], expected: str | None
) -> None:
    assert reporting_sign(its) == expected


LEFT: dict[str, Any] = {"f:metadata": {}, "f:spec": {}}
STATUS: dict[str, Any] = {"f:status": {}}
MADE: dict[str, Any] = {"f:metadata": {}, "f:spec": {}, "f:status": {}}


@pytest.mark.parametrize(
    ("there", "whose"),
    [
        # As the real koordlet's and our writes left it on kube-apiserver 1.36.
        (device(entry("xpu-agent", LIST), cards=4), False),
        (device(entry("xpu-agent", LEFT), entry("koordlet", STATUS)), True),
        (device(entry("koordlet", STATUS), entry("xpu-agent", LIST), cards=4), False),
        (device(entry("xpu-agent", LEFT), entry("koordlet", {**STATUS, **LIST}), cards=4), True),
        (device(entry("koordlet", MADE)), True),
        (device(entry("koordlet", MADE), entry("xpu-agent", {"f:spec": {"f:devices": {}}}), cards=4), False),
        # Emptied by somebody else, who has it then, and by an agent before koordlet ever wrote.
        (device(entry("koordlet", STATUS), entry("kubectl-edit", LIST)), False),
        (device(entry("xpu-agent", LEFT)), False),
        (device(entry("koordlet", STATUS, operation="Apply")), False),
        (device(entry("koordlet", LIST), entry("kubectl-edit", {"f:metadata": {}}), cards=1), True),
        ({"metadata": {"managedFields": "x"}}, False),
        ({"metadata": {"managedFields": [None, {"manager": "koordlet", "fieldsV1": 7}]}}, False),
        ({}, False),
        (None, False),
    ],
)
def test_whose_the_list_is_follows_from_who_wrote_it_or_took_all_away(
    there: dict[str, Any] | None, whose: bool
) -> None:
    assert wrote_devices(there) == whose


def test_each_of_its_writes_to_the_list_is_told_from_the_one_before() -> None:
    first = device(entry("koordlet", {**STATUS, **LIST}, "2026-01-01T00:00:05Z"), cards=1)
    later = device(entry("koordlet", {**STATUS, **LIST}), cards=1)
    emptied = device(entry("koordlet", STATUS))
    again = device(entry("koordlet", STATUS), entry("xpu-agent", {"f:metadata": {}}))

    assert last_writes(first) == last_writes(first)
    assert len({str(last_writes(it)) for it in (first, later, emptied)}) == 3
    # What others do beside it is none.
    assert last_writes(again) == last_writes(emptied)


@pytest.mark.parametrize(
    "there",
    [
        None,
        {},
        {"metadata": {"managedFields": "x"}},
        {"metadata": {"managedFields": [None]}},
        device(entry("xpu-agent", LIST)),
        device(entry("koordlet", LIST, operation="Apply")),
        device(entry("koordlet", STATUS), entry("xpu-agent", LIST), cards=1),
    ],
)
def test_a_list_that_is_not_its_own_is_no_write_of_it(there: dict[str, Any] | None) -> None:
    assert last_writes(there) is None
