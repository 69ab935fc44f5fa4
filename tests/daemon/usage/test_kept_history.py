"""The history of use outlives the agent, and a broken file costs nothing but the history."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from core.usage.cards_in_use import CARD
from support.waiting import eventually

from agent.core.usage.minute_history import UsageHistory
from agent.core.usage.usage_report import ContainerUse
from agent.daemon.usage.kept_history import KeptHistory
from agent.state.file_envelope import sealed
from agent.state.file_formats import USAGE_HISTORY
from agent.state.usage_history_file import NAME, UsageHistoryFile

NOON = 1_800_000_000.0


def history() -> UsageHistory:
    made = UsageHistory()
    made.add(NOON, [ContainerUse("ns", "p", "uid", "main", "acme", CARD, memory=1024, utilization=0.5)])
    return made


def points(of: UsageHistory) -> list[tuple[int, int | None, float | None]]:
    return [*of.of("ns", "p", "main", CARD)]


async def ended(kept: KeptHistory, when: Callable[[], bool]) -> None:
    """Run until a condition holds, then end as the agent ends."""
    task = asyncio.create_task(kept.run())
    await asyncio.sleep(0)  # a task that has not begun would not end, either
    try:
        await eventually(when)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_history_is_written_when_the_agent_ends(tmp_path: Path) -> None:
    file = UsageHistoryFile(tmp_path)
    await ended(KeptHistory(file, history()), lambda: True)
    path = tmp_path / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [NAME]
    assert points(file.read()) == points(history())


async def test_the_history_is_written_now_and_then(tmp_path: Path) -> None:
    await ended(KeptHistory(UsageHistoryFile(tmp_path), history(), 0.01), (tmp_path / NAME).exists)


async def test_a_disk_that_refuses_the_file_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def refused(file: UsageHistoryFile, saved: object) -> None:
        tried.append(saved)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(UsageHistoryFile, "write", refused)
    await ended(KeptHistory(UsageHistoryFile(tmp_path), history(), 0.01), lambda: len(tried) > 2)
    assert points(UsageHistoryFile(tmp_path).read()) == []


def test_a_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """Its last minute counts as one sample."""
    (now,) = msgspec.to_builtins(history().saved())
    earlier = {name: value for name, value in now.items() if name != "last_count"}
    (tmp_path / NAME).write_bytes(sealed((earlier,), USAGE_HISTORY))
    read = UsageHistoryFile(tmp_path).read()
    assert points(read) == points(history())
    read.add(NOON + 5, [ContainerUse("ns", "p", "uid", "main", "acme", CARD, memory=1024, utilization=0.0)])
    assert points(read)[0][2] == 0.25


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"GPU-a", b"GPU-b"))


def _foreign(path: Path) -> None:
    path.write_text("minutes: 3")


@pytest.mark.parametrize("harm", [_torn, _edited, _foreign])
def test_a_broken_file_is_set_aside_and_the_history_begins_anew(
    tmp_path: Path, harm: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    file = UsageHistoryFile(tmp_path)
    file.write(history().saved())
    harm(tmp_path / NAME)
    assert file.read().keys() == []
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith(f"{NAME}.corrupt-1-")
    assert file.read().keys() == []


def test_minutes_that_make_no_sense_are_set_aside(tmp_path: Path) -> None:
    file = UsageHistoryFile(tmp_path)
    (saved,) = history().saved()
    file.write((type(saved)("ns", "p", "main", CARD, 0, b"12345", b"12"),))
    assert file.read().keys() == []
    assert "corrupt" in next(tmp_path.iterdir()).name
