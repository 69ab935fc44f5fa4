"""The conformance kit on `usage` and `processes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.testing import conformance
from agent.testing.bench import Bench
from agent.testing.conformance import Finding, judged, use_is_of_listed_devices, use_is_told_in_time
from agent.vendor_api.agent import ContainerEdits, Settings, Vendor

TESTS = str(Path(__file__).parents[1])


def bench(backend: str, **settings: Any) -> Bench:
    vendor = Vendor(
        "acme",
        f"support.faulty_backends:{backend}",
        "acme.com/xpu",
        lambda devices, request: ContainerEdits(),
        settings=Settings(settings),
    )
    return Bench(vendor, None, (TESTS,))


async def findings(bench: Bench) -> list[Finding]:
    return [await judged(check, bench) for check in (use_is_of_listed_devices, use_is_told_in_time)]


async def test_a_backend_that_tells_true_use_passes() -> None:
    assert [it.ok for it in await findings(bench("Used"))] == [True, True]


async def test_a_library_with_one_caller_passes(tmp_path: Path) -> None:
    assert [it.ok for it in await findings(bench("UsedByOne", count=str(tmp_path / "count")))] == [True, True]


async def test_a_backend_that_tells_no_use_is_not_checked() -> None:
    found = await findings(bench("Good"))

    assert [(it.ok, it.detail) for it in found] == [(None, "the backend has no usage")] * 2


@pytest.mark.parametrize(
    ("method", "fault", "detail"),
    [
        ("usage", "raise", "`usage`: RuntimeError: the card is on fire"),
        ("processes", "strange", "dev-z is not listed"),
        ("usage", "twice", "`usage` names a device twice"),
        ("processes", "absurd", "`processes`: 2 figures or entries cannot be used, the first: process 0: "),
        ("processes", "nonsense", "`processes`: answered wrongly: "),
    ],
)
async def test_use_that_cannot_be_true_is_found(method: str, fault: str, detail: str) -> None:
    finding = await judged(use_is_of_listed_devices, bench("Used", does={method: fault}))

    assert finding.ok is False
    assert finding.detail.startswith(detail)


async def test_use_that_comes_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "SAMPLE_SECONDS", 0.05)

    finding = await judged(use_is_told_in_time, bench("Used", does={"processes": "hang"}))

    assert (finding.ok, finding.detail) == (False, "a call did not return in time")
