"""CDI specs are asked for when the devices change, and cost no list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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


async def test_cdi_specs_are_asked_for_again_when_a_device_breaks_and_when_it_is_whole(
    sink: Recorder, tmp_path: Path, flag: Flag
) -> None:
    settings: dict[str, Any] = {"count": str(tmp_path / "count"), "flag": str(flag), "breaks": True}
    async with serving(sink, "Specified", **settings):
        await sink.until(lambda: len(sink.lists) >= 2)
        assert len(sink.specs) == 1

        flag.lower()

        await sink.until(lambda: len(sink.specs) == 2)
