"""Early processes: which vendors have one, and what becomes of those that the agent does not take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.config import Config, ConfigState, VendorSettings
from agent.daemon import early_processes
from agent.daemon.early_processes import start_early
from agent.daemon.vendor_plugins import names
from agent.isolation import descendants
from agent.isolation.vendor_process import BackendFailure

WATCH = 1.0


class Deaf:
    """A listener that receives nothing before a call of `discover`."""

    def events(self, raw: bytes) -> None:
        raise AssertionError(raw)

    def blind(self, failure: BackendFailure) -> None:
        raise AssertionError(failure)


def only(vendor: str, **settings: Any) -> Config:
    """A config in which every other vendor is off."""
    off = VendorSettings(enabled=False)
    return Config(vendors={**dict.fromkeys(names(), off), vendor: VendorSettings(**settings)})


async def test_a_process_is_started_as_its_supervisor_would_and_opens_its_library_at_once(
    tmp_path: Path,
) -> None:
    state = ConfigState(only("simulated", settings={"devices": 2}, memory_limit=512 << 20), "file")

    early = start_early(state, tmp_path / "state", WATCH)

    assert early is not None
    assert early.config is state.config
    assert [it.name for it in early.plugins if it.vendor is not None] == ["simulated"]
    process = early.take("simulated")
    assert process is not None
    try:
        assert process.limit.size == 512 << 20
        assert (tmp_path / "state" / "vendors" / "simulated").is_dir()
        await process.connect()
        listening = asyncio.create_task(process.listen(Deaf()))
        assert await process.opened(60)
        listening.cancel()
        await asyncio.wait([listening])
    finally:
        await process.end()


async def test_a_process_that_is_not_taken_is_killed(tmp_path: Path) -> None:
    state = ConfigState(only("simulated", settings={"devices": 2}), "file")
    killed = start_early(state, tmp_path, WATCH)
    assert killed is not None
    process = next(iter(killed._left.values()))

    await killed.end()

    assert process.runner.ended() == "killed by SIGKILL"
    assert killed.take("simulated") is None


def test_a_vendor_without_a_sign_on_the_node_gets_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_processes, "absence", lambda vendor: "library-not-found: none is here")

    early = start_early(ConfigState(only("nvidia"), ""), tmp_path, WATCH)

    assert early is not None
    assert early.take("nvidia") is None


def test_what_libraries_left_behind_is_ended_before_a_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library and the remains of another one must not use the cards at once."""
    order: list[str] = []
    monkeypatch.setattr(descendants, "end_of_the_dead", lambda: order.append("ended"))
    monkeypatch.setattr(early_processes, "VendorProcess", lambda *_, **__: order.append("started"))

    start_early(ConfigState(only("simulated", settings={"devices": 2}), ""), tmp_path, WATCH)

    assert order == ["ended", "started"]


def test_a_config_that_is_not_in_force_yet_starts_nothing(tmp_path: Path) -> None:
    assert start_early(ConfigState(Config(), "awaited", waiting=True), tmp_path, WATCH) is None


def test_a_process_that_cannot_be_started_is_left_to_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_process(*_: Any, **__: Mapping[str, Any]) -> None:
        raise OSError(11, "no more processes")

    monkeypatch.setattr(early_processes, "VendorProcess", no_process)

    early = start_early(ConfigState(only("simulated", settings={"devices": 2}), ""), tmp_path, WATCH)

    assert early is not None
    assert early.take("simulated") is None
