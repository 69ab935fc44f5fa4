"""The last configuration that was in force is on disk, whatever the file and the disk come to."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio.lowlevel
import pytest
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.config import Config, ConfigState, LastConfig
from agent.core.cell import Cell
from agent.state.file_formats import LAST_CONFIG
from agent.state.last_config_file import MAX_BYTES, LastConfigKeeper, last_config, remembered_from
from agent.state.sealed_file import SealedFile

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NAME = "agent.last-config.json"
STATE = ConfigState(
    Config(), "/etc/any", name="any", labels={"pool": "a", "zone": None}, content=b"version: v1 # \xc3\xa4"
)
KEPT = LastConfig("/etc/any", "version: v1 # ä", NOON, "any", {"pool": "a", "zone": None})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


class Disk(SealedFile[LastConfig]):
    """The file, on a disk that a test lets refuse what STATE says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(last_config(directory).path, LastConfig, LAST_CONFIG, MAX_BYTES)
        self.refuses = ""
        self.tries = 0

    def write(self, value: LastConfig) -> None:
        self.tries += 1
        if self.refuses and value.source == STATE.source:
            raise OSError(self.refuses)
        super().write(value)


@asynccontextmanager
async def keeping(
    file: SealedFile[LastConfig], config: Cell[ConfigState], clock: Callable[[], datetime] = lambda: NOON
) -> AsyncIterator[None]:
    task = asyncio.create_task(LastConfigKeeper(file, config, (0.001, 0.001), clock).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def holds(file: SealedFile[LastConfig], expected: LastConfig) -> None:
    await eventually(lambda: file.read() == expected, 30)


async def test_what_is_in_force_is_known_at_the_next_start(directory: Path) -> None:
    async with keeping(last_config(directory), Cell(STATE)):
        await holds(last_config(directory), KEPT)

    assert remembered_from(directory).last == KEPT


async def test_all_defaults_are_kept_as_nothing_to_read(directory: Path) -> None:
    async with keeping(last_config(directory), Cell(ConfigState(Config(), "defaults"))):
        await holds(last_config(directory), LastConfig("defaults", "", NOON))


async def test_a_change_is_kept_with_its_time_which_has_whole_seconds(directory: Path) -> None:
    config = Cell(STATE)
    times = iter((NOON, NOON + timedelta(hours=1, microseconds=7)))
    async with keeping(last_config(directory), config, lambda: next(times)):
        await holds(last_config(directory), KEPT)

        config.set(replace(STATE, source="/etc/other", name="other"))

        later = NOON + timedelta(hours=1)
        await holds(last_config(directory), replace(KEPT, source="/etc/other", name="other", since=later))


#: Each is published over STATE, which is kept.
NO_NEWS = {
    "refused": replace(STATE, error="a typo; the last good configuration stays in force"),
    "awaited": ConfigState(Config(), "/etc/any", "not there", waiting=True),
    "of the last start": replace(STATE, error="a typo", since=NOON),
}


@pytest.mark.parametrize("news", NO_NEWS.values(), ids=NO_NEWS)
async def test_what_puts_nothing_else_into_force_is_not_written(directory: Path, news: ConfigState) -> None:
    disk, config = Disk(directory), Cell(STATE)
    later = replace(STATE, source="/etc/other")
    async with keeping(disk, config, lambda: NOON):
        await holds(disk, KEPT)
        config.set(news)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        config.set(later)  # what comes after it shows that it was passed over
        await holds(disk, replace(KEPT, source="/etc/other"))

    assert disk.tries == 2


async def test_a_start_with_what_is_kept_already_leaves_its_time_alone(directory: Path) -> None:
    disk, config, looks = Disk(directory), Cell(STATE), 0
    disk.write(KEPT)

    def clock() -> datetime:
        nonlocal looks
        looks += 1
        return NOON + timedelta(days=1)

    async with keeping(disk, config, clock):
        await eventually(lambda: looks, 30)
        config.set(replace(STATE, source="/etc/other"))
        await holds(disk, replace(KEPT, source="/etc/other", since=NOON + timedelta(days=1)))

    assert disk.tries == 2


async def test_a_disk_that_refuses_is_told_once_and_tried_again(directory: Path) -> None:
    disk = Disk(directory)
    disk.refuses = "full"
    with capture_logs() as told:
        async with keeping(disk, Cell(STATE)):
            await eventually(lambda: disk.tries > 3, 30)
            disk.refuses = ""
            await holds(disk, KEPT)
            await eventually(lambda: len(told) == 2, 30)

    assert [(it["event"], it.get("error")) for it in told] == [
        ("last config not written", "full"),
        ("last config written again", None),
    ]


async def test_what_a_disk_refuses_keeps_nothing_from_it_that_is_newer(directory: Path) -> None:
    disk, config = Disk(directory), Cell(STATE)
    disk.refuses = "full"
    async with keeping(disk, config):
        await eventually(lambda: disk.tries > 1, 30)

        config.set(replace(STATE, source="/etc/other"))

        await holds(disk, replace(KEPT, source="/etc/other"))


async def test_a_file_that_can_not_be_used_is_told_and_replaced(directory: Path) -> None:
    file = last_config(directory)
    spoil(file.path)
    with capture_logs() as told:
        async with keeping(file, Cell(STATE)):
            await eventually(lambda: told and file.path.read_text() != "a stranger's", 30)

    assert file.read() == KEPT
    assert [it["event"] for it in told] == ["last config ignored"]
    assert str(told[0]["error"]).startswith(f"{directory / NAME}: not a last configuration of this agent")


def spoil(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("a stranger's")


async def test_a_name_of_any_bytes_is_kept(directory: Path) -> None:
    odd = b"/etc/\xff".decode(errors="surrogateescape")
    async with keeping(last_config(directory), Cell(replace(STATE, source=odd, name=odd))):
        await holds(last_config(directory), replace(KEPT, source="/etc/\\udcff", name="/etc/\\udcff"))


# What a start reads


def test_a_start_without_such_a_file_has_nothing_to_say_of_it(directory: Path) -> None:
    found = remembered_from(directory)

    assert (found.last, found.trouble) == (None, "")


def test_a_start_is_told_why_the_file_can_not_be_used(directory: Path) -> None:
    directory.mkdir()
    (directory / NAME).write_bytes(b"\0" * 100)

    found = remembered_from(directory)

    assert found.last is None
    assert found.trouble == f"the last good one cannot be used: {directory / NAME}: it is empty"


def test_a_checkpoint_in_its_place_is_not_taken_for_it(directory: Path) -> None:
    directory.mkdir()
    shutil.copy(Path(__file__).parents[1] / "state/data/format-1.json", directory / NAME)

    assert "its checksum does not match" in remembered_from(directory).trouble


async def test_what_was_removed_with_its_directory_is_written_again_with_its_time(directory: Path) -> None:
    config = Cell(STATE)
    keeping = LastConfigKeeper(last_config(directory), config, clock=lambda: NOON)
    task = asyncio.create_task(keeping.run())
    await holds(last_config(directory), KEPT)
    shutil.move(directory, directory.with_name("old"))

    await keeping.write_again()

    assert last_config(directory).read() == KEPT
    task.cancel()
    await asyncio.wait([task])


class HeldDisk(SealedFile[LastConfig]):
    """Writes the file, and answers once it is let go of."""

    def __init__(self, directory: Path) -> None:
        super().__init__(last_config(directory).path, LastConfig, LAST_CONFIG, MAX_BYTES)
        self.written, self.answers = threading.Event(), threading.Event()

    def write(self, value: LastConfig) -> None:
        super().write(value)
        self.written.set()
        assert self.answers.wait(30)


async def test_a_directory_that_goes_just_after_the_write_is_written_again_too(directory: Path) -> None:
    disk = HeldDisk(directory)
    keeping = LastConfigKeeper(disk, Cell(STATE), clock=lambda: NOON)
    task = asyncio.create_task(keeping.run())
    await eventually(disk.written.is_set, 30)
    shutil.move(directory, directory.with_name("old"))

    again = asyncio.create_task(keeping.write_again())
    await anyio.lowlevel.checkpoint()  # the call is made before the write is known to be done
    disk.answers.set()
    await again

    assert disk.read() == KEPT
    task.cancel()
    await asyncio.wait([task])
