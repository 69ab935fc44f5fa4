"""Sampling begins and ends with the config, without a restart of the agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from core.usage.cards_in_use import CARD, GIB, card, held, moment
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.config import Config, ConfigState, UsageSettings
from agent.core.cell import Cell
from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.usage_report import VendorSample
from agent.daemon.usage_switch import UsageSwitch
from agent.daemon.vendors_in_service import VendorsInService
from agent.state.usage_history_file import NAME, UsageHistoryFile


class Vendor:
    async def sample(self) -> VendorSample:
        return VendorSample((card(GIB),), ())


def state(*, enabled: bool) -> ConfigState:
    return ConfigState(Config(usage=UsageSettings(enabled=enabled, interval=0.01)), "")


@asynccontextmanager
async def running(config: Cell[ConfigState], path: Path, *pods: str) -> AsyncIterator[UsageSwitch]:
    now = moment(*map(held, pods or ("p",)))
    vendors = cast("VendorsInService", SimpleNamespace(processes={"acme": Vendor()}))
    switch = UsageSwitch(config, vendors, lambda: now, lambda: 1e9, path)
    task = asyncio.create_task(switch.run())
    try:
        yield switch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def shown(switch: UsageSwitch) -> list[str]:
    return [it.pod for it in switch.report.containers] if switch.report is not None else []


async def test_sampling_is_switched_on_and_off_by_a_new_config(tmp_path: Path) -> None:
    config = Cell(state(enabled=False))
    async with running(config, tmp_path) as switch:
        assert (switch.report, switch.alarms, switch.history) == (None, (), None)
        config.set(state(enabled=True))
        await eventually(lambda: shown(switch) == ["p"])
        config.set(state(enabled=False))
        await eventually(lambda: switch.report is None)
        assert (tmp_path / NAME).exists()
        config.set(state(enabled=True))
        await eventually(lambda: shown(switch) == ["p"])


async def test_a_config_that_is_awaited_switches_nothing_on(tmp_path: Path) -> None:
    config = Cell(replace(state(enabled=True), waiting=True))
    async with running(config, tmp_path) as switch:
        config.set(replace(config.value, error="still no config"))
        await asyncio.sleep(0)
        assert (switch.report, switch.prepare()) == (None, None)
        config.set(state(enabled=True))
        await eventually(lambda: switch.report is not None)
        preparation = switch.prepare()
        assert preparation is not None
        await preparation


async def test_the_next_agent_has_the_history_of_the_last_one(tmp_path: Path) -> None:
    config = Cell(state(enabled=True))
    async with running(config, tmp_path, "first") as switch:
        await eventually(lambda: bool(switch.history and switch.history.keys()))
    async with running(config, tmp_path, "second") as switch:
        await eventually(lambda: shown(switch) == ["second"])
        assert switch.history is not None
        await eventually(lambda: len(switch.history.keys()) == 2)  # type: ignore[union-attr]
        assert switch.history.of("ns", "first", "main", CARD)


@pytest.mark.parametrize("error", [ImportError("no such library"), PermissionError("not to be read")])
async def test_what_cannot_be_loaded_leaves_use_unsampled_until_the_config_changes(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Cell(state(enabled=True))
    read = UsageHistoryFile.read

    def refused(file: UsageHistoryFile) -> UsageHistory:
        raise error

    monkeypatch.setattr(UsageHistoryFile, "read", refused)
    with capture_logs() as logs:
        async with running(config, tmp_path) as switch:
            await eventually(lambda: [it["event"] for it in logs] == ["use of cards cannot be sampled"])
            assert (logs[0]["log_level"], logs[0]["error"], switch.report) == ("error", str(error), None)

            monkeypatch.setattr(UsageHistoryFile, "read", read)
            config.set(replace(config.value, error="a later config is refused"))
            await eventually(lambda: shown(switch) == ["p"])


def test_an_agent_that_samples_nothing_imports_nothing_of_it() -> None:
    script = (
        "import sys; import agent.daemon.composition, agent.daemon.running_status;"
        "print([it for it in sys.modules if '.usage' in it or 'node_processes' in it])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['agent.daemon.usage_switch']\n"
