"""The state directory is the agent's alone, as far as that breaks nothing of others."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from agent.state import state_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    state_directory.make(directory)
    return directory


def mode(directory: Path) -> int:
    return stat.S_IMODE(directory.stat().st_mode)


def test_a_directory_that_is_made_is_closed_to_others(directory: Path) -> None:
    state_directory.make(directory)  # twice does no harm

    assert mode(directory) == 0o700
    assert state_directory.close_to_others(directory) == ""


@pytest.mark.parametrize("opened", [0o755, 0o777, 0o711, 0o770])
def test_a_directory_of_the_agents_own_is_closed(directory: Path, opened: int) -> None:
    """The kubelet makes one of 0755 for a volume that is not there yet."""
    for name in (
        "checkpoint.json",
        "checkpoint.json.corrupt-1",
        "checkpoint.new",
        "agent.lock",
        "agent.sock",
    ):
        (directory / name).touch()
    (directory / "vendors").mkdir()
    directory.chmod(opened)

    assert state_directory.close_to_others(directory) == ""

    assert mode(directory) == 0o700


@pytest.mark.parametrize(("opened", "said"), [(0o755, False), (0o777, True), (0o1777, True)])
def test_a_directory_that_holds_files_of_others_stays_as_it_is(
    directory: Path, opened: int, said: bool
) -> None:
    (directory / "hosts").touch()
    directory.chmod(opened)

    complaint = state_directory.close_to_others(directory)

    assert mode(directory) == opened
    assert ("others can write there" in complaint) == said


def test_a_directory_that_can_not_be_closed_is_said(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.chmod(0o777)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "chmod", fail)

    assert state_directory.close_to_others(directory) == (
        f"{directory}: others can write there and it cannot be closed to them (Read-only file system)"
    )


def test_no_directory_is_no_complaint(tmp_path: Path) -> None:
    assert state_directory.close_to_others(tmp_path / "none") == ""
