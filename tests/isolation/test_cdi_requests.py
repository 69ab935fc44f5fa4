"""CDI specs are asked for when the devices change, and cost no list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.core.errors import NotServable, VendorError, VendorTimeout
from agent.isolation.cdi_requests import CdiRequests
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.vendor_api.agent import Device, Request

from .rig import QUICK, Flag, Recorder, serving

SPECS = {"acme.com-xpu.json": '{"cdiVersion": "0.5.0"}'}


async def test_cdi_specs_come_before_the_list_that_needs_them(sink: Recorder, tmp_path: Path) -> None:
    async with serving(sink, "Specified", count=str(tmp_path / "count")):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert sink.specs == [(SPECS, 0)]
        assert (tmp_path / "count").read_text().split() == ["asked"]


async def test_cdi_specs_are_asked_for_again_when_the_devices_change(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    count = tmp_path / "count"
    async with serving(sink, "Specified", count=str(count), flag=str(flag), grows=True):
        await sink.until(lambda: len(sink.lists) >= 2)
        flag.lower()
        await sink.until(lambda: len(sink.lists[-1]) == 2)

        assert len(sink.specs) == 2
        assert count.read_text().split() == ["asked", "asked"]


@pytest.mark.parametrize("fault", ["raise", "nonsense", "no_json", "escape"])
async def test_cdi_specs_that_can_not_be_had_cost_no_list(fault: str, sink: Recorder, tmp_path: Path) -> None:
    async with serving(sink, "Specified", count=str(tmp_path / "count"), does={"cdi": fault}):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert sink.specs == []
        assert sink.losses == []
        assert len(sink.unmade) >= 3  # asked again each time


async def test_cdi_specs_that_cost_the_process_cost_it_once_and_it_is_said(
    sink: Recorder, tmp_path: Path
) -> None:
    quick = replace(QUICK, discover=2.0)
    async with serving(
        sink, "Specified", deadlines=quick, count=str(tmp_path / "count"), does={"cdi": "hang"}
    ):
        await sink.until(lambda: len(sink.lists) >= 3)

        assert [reason for _, reason in sink.losses] == ["cdi did not return within 2 s"]
        assert sink.unmade == ["acme: cdi did not return within 2 s"]
        assert (tmp_path / "count").read_text().split() == ["asked"]


async def test_cdi_specs_that_cost_a_process_are_asked_of_a_later_one_so_that_a_slow_moment_passes(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    settings: dict[str, Any] = {"count": str(tmp_path / "count"), "flag": str(flag), "does": {"cdi": "hang"}}
    quick = replace(QUICK, discover=2.0)
    async with serving(sink, "Specified", deadlines=quick, specs_again=(0.001, 0.001), **settings):
        await sink.until(lambda: sink.losses)
        flag.lower()

        await sink.until(lambda: sink.specs)


def test_what_costs_each_process_is_asked_more_and_more_seldom_until_it_is_answered() -> None:
    now, devices = [0.0], (Device("a", 0),)
    asked = CdiRequests((4.0, 16.0), lambda: now[0])

    def until_asked() -> float:
        asked.put(devices)
        asked.cost()
        before = now[0]
        while asked.covers(devices):
            now[0] += 1
        return now[0] - before

    first, second, third = until_asked(), until_asked(), until_asked()
    asked.answered()

    assert 2 <= first <= 4 <= second <= 8 <= third <= 16
    assert asked.covers(devices)
    assert until_asked() <= 4


async def test_cdi_specs_are_asked_for_again_when_a_device_breaks_and_when_it_is_whole(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    settings: dict[str, Any] = {"count": str(tmp_path / "count"), "flag": str(flag), "breaks": True}
    async with serving(sink, "Specified", **settings):
        await sink.until(lambda: len(sink.lists) >= 2)
        assert len(sink.specs) == 1

        flag.lower()

        await sink.until(lambda: len(sink.specs) == 2)


def made(sink: Recorder) -> list[list[str]]:
    """What each of the specs that were told names."""
    return [json.loads(specs["acme.com-slice.json"])["made"] for specs, _ in sink.specs]


async def prepare(process: VendorSupervisor, allocation: str) -> None:
    await process.call("prepare", Request(allocation, "acme.com/xpu", ("i",)), ("dev-a",))


async def test_what_is_made_and_removed_is_in_the_specs_before_that_is_answered(
    sink: Recorder, in_process: bool
) -> None:
    async with serving(sink, "Slicing", in_process=in_process, every=100) as process:
        await sink.until(lambda: sink.lists)

        await prepare(process, "a1")
        assert made(sink)[-1] == ["a1"]
        await prepare(process, "a2")
        assert made(sink)[-1] == ["a1", "a2"]
        await process.call("release", "a1")
        assert made(sink)[-1] == ["a2"]


@pytest.mark.parametrize("fault", ["raise", "nonsense"])
async def test_hardware_whose_specs_can_not_be_had_is_no_answer(fault: str, sink: Recorder) -> None:
    async with serving(sink, "Slicing", every=100, does={"cdi": fault}) as process:
        await sink.until(lambda: sink.lists)
        before = process.pid

        with pytest.raises(VendorError, match="acme: cdi"):
            await prepare(process, "a1")

        assert len(sink.unmade) == 1
        assert process.pid == before


async def test_specs_that_hang_after_the_hardware_was_made_cost_the_process(sink: Recorder) -> None:
    quick = replace(QUICK, call=1.0, discover=1.5)
    async with serving(sink, "Slicing", deadlines=quick, every=100, does={"cdi": "hang"}) as process:
        await sink.until(lambda: sink.lists)

        with pytest.raises(VendorTimeout, match=r"cdi did not return within 1\.5 s"):
            await prepare(process, "a1")

        await sink.until(lambda: sink.losses)


async def test_what_is_removed_is_removed_though_its_specs_can_not_be_had(sink: Recorder, flag: Flag) -> None:
    flag.lower()
    settings: dict[str, Any] = {"does": {"cdi": "raise"}, "always": True, "flag": str(flag)}
    async with serving(sink, "Slicing", every=100, **settings) as process:
        await sink.until(lambda: sink.lists)
        await prepare(process, "a1")
        flag.raise_()

        await process.call("release", "a1")

        assert len(sink.unmade) == 1


async def test_a_request_that_is_refused_asks_for_no_specs(sink: Recorder) -> None:
    async with serving(sink, "Slicing", every=100, does={"prepare": "refuse"}) as process:
        await sink.until(lambda: sink.lists)
        before = len(sink.specs)

        with pytest.raises(NotServable):
            await prepare(process, "a1")

        assert len(sink.specs) == before
