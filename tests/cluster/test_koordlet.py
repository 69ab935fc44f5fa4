"""A koordlet is known by its pod's gates and by its hand in the Device, and by nobody's who only says so."""

from __future__ import annotations

from typing import Any

import pytest

from agent.cluster.koordlet import hand, reporting

from .koordlets import pod


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


def written(**entry: Any) -> dict[str, Any]:
    its = {
        "manager": "koordlet",
        "operation": "Update",
        "time": "2026-01-01T00:00:10Z",
        "fieldsV1": {"f:spec": {"f:devices": {}}},
    }
    return {"metadata": {"managedFields": [{**its, **entry}]}}


def test_its_hand_is_the_time_of_its_last_write_of_cards() -> None:
    assert hand(written()) == 1767225610.0
    older = written()["metadata"]["managedFields"]
    older += written(time="2026-01-01T00:00:05Z")["metadata"]["managedFields"]
    assert hand({"metadata": {"managedFields": older}}) == 1767225610.0


@pytest.mark.parametrize(
    "there",
    [
        None,
        {},
        {"metadata": {"managedFields": "x"}},
        {"metadata": {"managedFields": [None]}},
        written(manager="xpu-agent"),
        written(operation="Apply"),
        written(time="yesterday"),
        written(fieldsV1={"f:metadata": {}}),
    ],
)
def test_what_another_wrote_or_nobody_can_read_is_not_its_hand(there: dict[str, Any] | None) -> None:
    assert hand(there) is None
