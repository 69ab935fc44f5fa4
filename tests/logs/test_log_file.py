"""The log's file: it turns, it comes and goes, and nothing that happens to it is lost on people."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agent.logs.log_file import NAME, RETRY_SECONDS, LogFile


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept(LogFile):
    """Remembers what it told."""

    opened: ClassVar[list[LogFile]] = []

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.told: list[str] = []
        self.clock = Clock()
        super().__init__(str(directory), 200, keep, self.told.append, self.clock)
        self.opened.append(self)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while Kept.opened:
        Kept.opened.pop().close()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_the_directory_is_made_for_its_owner_alone_and_one_that_is_there_stays_as_it_is(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    there.chmod(0o755)

    Kept(tmp_path / "made").write("x")
    Kept(there).write("x")

    modes = {it: stat.S_IMODE((tmp_path / it).stat().st_mode) for it in ("made", "there")}
    assert modes == {"made": 0o700, "there": 0o755}
    assert stat.S_IMODE((there / NAME).stat().st_mode) == 0o600


def test_a_file_that_others_could_read_is_theirs_no_more(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("old\n")
    (tmp_path / NAME).chmod(0o644)

    Kept(tmp_path).write("new")

    assert lines(tmp_path / NAME) == ["old", "new"]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_a_file_that_turned_keeps_each_line_once(tmp_path: Path) -> None:
    file = Kept(tmp_path, keep=50)
    said = [f"{n:03} {'x' * 60}" for n in range(30)]
    for line in said:
        file.write(line)

    turned = sorted(tmp_path.iterdir())
    assert len(turned) > 5
    assert sorted(line for path in turned for line in lines(path)) == said
    assert all(path.stat().st_size <= 200 for path in turned)


def test_of_two_agents_that_write_one_file_neither_writes_to_what_the_other_has_turned(
    tmp_path: Path,
) -> None:
    old, new = Kept(tmp_path), Kept(tmp_path)
    old.write("first")
    for n in range(4):
        new.write(f"{n} {'x' * 90}")

    old.write("last")

    assert lines(tmp_path / NAME)[-1] == "last"
    assert not any("last" in it.read_text() for it in tmp_path.glob(f"{NAME}.*"))


def test_a_file_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    file = Kept(tmp_path / "logs")
    file.write("gone")
    (tmp_path / "logs" / NAME).unlink()

    file.write("here")

    assert lines(tmp_path / "logs" / NAME) == ["here"]
    assert file.told == []


def test_a_directory_that_is_in_the_way_is_told_once_and_its_end_too(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    directory.write_text("")
    file = Kept(directory)
    for n in range(3):
        file.clock.now += RETRY_SECONDS
        file.write(str(n))
    assert file.told == [f"agent.log.dir: {directory / NAME} cannot be written: {directory} is no directory"]
    assert file.error == file.told[0]

    directory.unlink()
    file.write("too early")
    file.clock.now += RETRY_SECONDS
    file.write("again")

    assert lines(directory / NAME) == ["again"]
    assert (file.told[1:], file.error) == ([""], "")


def test_a_disk_that_is_full_is_told_and_written_again_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Kept(tmp_path)
    file.write("room")
    with monkeypatch.context() as patch:
        patch.setattr("agent.logs.log_file._Private.flush", _full)
        file.write("lost")
    assert file.error.endswith("cannot be written: No space left on device")

    file.clock.now += RETRY_SECONDS
    file.write("room again")

    assert lines(tmp_path / NAME)[0] == "room"
    assert lines(tmp_path / NAME)[-1] == "room again"


def _full(_: object) -> None:
    raise OSError(28, os.strerror(28))


def test_a_line_is_what_it_was(tmp_path: Path) -> None:
    told = json.dumps({"event": "50 % of %s {} \u2028"})

    Kept(tmp_path).write(told)

    assert lines(tmp_path / NAME) == [told]
