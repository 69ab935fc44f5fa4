"""The file from which koordlet knows the cards, in the directory that it shares with other writers.

koordlet takes every file there, hidden or half written, and none of them where it cannot read one; a card
in two files counts twice. Source: koordinator pkg/koordlet/metricsadvisor/collectors/noderesource
(collector_xpu.go).
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.errors import AgentError, ConfigError
from agent.host import files
from agent.schedulers.koordinator.device_infos_file import cards, device_infos, told, unlisted
from agent.schedulers.koordinator.report import Report
from agent.schedulers.koordinator.report_mode import Telling
from agent.vendor_api.text import shorten

log = structlog.get_logger()

T = TypeVar("T")

NAME = "xpu-agent.json"
OTHER_DIRECTORY = "name the directory that koordlet reads in report.deviceInfosDir"
#: Where a file is written before it is moved: koordlet passes over directories, and reads all else.
UNFINISHED = ".xpu-agent"
#: Of one file, bytes, and of others in the directory.
MAX_BYTES, MAX_FILES = 1 << 20, 64
#: Seconds for which what another file listed still counts once it is gone or broken: its writer restarts.
LINGER = 30.0


@dataclass(frozen=True, slots=True)
class ListedCards:
    """What came of a look: what is wrong, of each card that others list the sentence that says so, and the
    uuids of all for which others answer.
    """

    error: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()


class Neighbours:
    """What the other files of the directory list."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Of each file when it was read last, and its cards, uuid to minor.
        self._read: dict[Path, tuple[float, Mapping[str, int]]] = {}

    def look(self, directory: Path) -> tuple[Mapping[str, Mapping[str, int]], str]:
        """Of each file what it lists (`feed.cards`), and one that koordlet cannot read, and why.

        Raises:
            ConfigError: There are too many.
            OSError: The directory cannot be read.
        """
        now, broken = self._clock(), ""
        for path in _others(directory):
            try:
                found = listed(path)
            except (OSError, ValueError) as exc:
                broken = broken or f"'{_named(path)}' is broken: {getattr(exc, 'strerror', '') or exc}"
                continue
            if found is not None:
                self._read[path] = now, found
        self._read = {
            path: it for path, it in self._read.items() if path.parent == directory and now - it[0] < LINGER
        }
        return {_named(path): found for path, (_, found) in self._read.items()}, broken


class DeviceInfosFile:
    """Keeps the file for as long as it is told by one. It stays when the agent ends: without it koordlet
    would tell of a node without cards. So it does while the Device tells the cards, should a koordlet come
    that reads it, and then it stays true.
    """

    def __init__(
        self,
        telling: Cell[Telling | None],
        every: float = 5.0,
        note: Callable[[Path], object] = lambda path: None,
        noted: Callable[[], Iterable[Path]] = tuple,
        elsewhere: Cell[frozenset[str]] | None = None,
    ) -> None:
        """`every`: seconds until it is looked again at what stands in the directory. `note` is told of the
        file that is ours, before it is made; `noted`: those that were noted, also by an earlier agent, and
        files of other kinds. It may raise OSError. `elsewhere` is kept: the uuids of the cards for which
        other files of the directory answer.
        """
        self._telling = telling
        self._every = every
        self._note = note
        self._noted = noted
        self._elsewhere = elsewhere or Cell(frozenset())
        self._neighbours = Neighbours()
        self._news = asyncio.Event()
        #: The directory beside which none has a file of ours, and the one that has none either.
        self._alone, self._withdrawn = "", ""
        #: Why the file is not as it should be; empty while it is, or nobody wants one.
        self.error = ""
        #: Of each card that others list already, by its uuid, the sentence that says so.
        self.left_out: Mapping[str, str] = {}
        self.writes = 0

    async def run(self) -> None:
        """Follow what is to be told for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._hear)
            while True:
                self._news.clear()
                await self.once()
                with anyio.move_on_after(self._every):
                    await self._news.wait()

    async def once(self) -> None:
        """Bring the file up to date."""
        telling = self._telling.value
        kept = ListedCards()
        if telling is not None:
            try:
                kept = await self._bring(telling)
            except (AgentError, OSError) as exc:
                kept = ListedCards(str(exc), self.left_out, self._elsewhere.value)
        self._tell(kept.error)
        self._elsewhere.set(kept.elsewhere)
        self.left_out = kept.left_out

    async def _bring(self, telling: Telling) -> ListedCards:
        kept, ours = ListedCards(), Path(telling.directory) / NAME
        if telling.no_file:
            if self._withdrawn != telling.directory:
                await _in_thread(partial(_remove, ours))
                self._withdrawn = telling.directory
        elif telling.report is not None:
            self._withdrawn = ""
            if telling.mode == "feed":
                kept = await self._kept(ours, telling.report)
            elif telling.mode == "device" and await _in_thread(ours.is_file):
                await self._kept(ours, telling.report)
        if self._alone != telling.directory:
            await _in_thread(partial(self._leave, ours))
            self._alone = telling.directory
        return kept

    async def _kept(self, ours: Path, report: Report) -> ListedCards:
        await _in_thread(partial(self._note, ours))
        changed, kept = await _in_thread(partial(keep, ours.parent, report, self._neighbours))
        self.writes += changed
        return kept

    def _leave(self, ours: Path) -> None:
        """Remove what we wrote where koordlet looked before: nobody keeps it up."""
        for path in self._noted():
            if path.name == NAME and path != ours:
                _remove(path)

    async def _hear(self) -> None:
        async for _ in self._telling.watch():
            self._news.set()

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("cards not told to koordlet", error=error)
        if self.error and not error:
            log.info("cards are told to koordlet again")
        self.error = error


async def _in_thread(work: Callable[[], T]) -> T:
    # A disk that hangs must not hold up the end of the agent.
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def said(directory: Path) -> Report | None:
    """What our file there says, as an earlier agent may have left it; None where it is none of ours."""
    try:
        return told(_text(directory / NAME))
    except OSError:
        return None


def keep(directory: Path, report: Report, neighbours: Neighbours | None = None) -> tuple[bool, ListedCards]:
    """Write the file where it is not as it should be; returns whether it was changed.

    Where others list every card there is none: koordlet would count each twice. `neighbours` know what they
    listed before.

    Raises:
        ConfigError: There is no such directory, or it cannot be written.
        OSError: It cannot be read.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file, not a directory: {OTHER_DIRECTORY}")
    if not directory.is_dir():
        why = "koordlet makes it; mount the node's there, or say report.deviceInfosDir"
        raise ConfigError(f"there is no directory {directory}: {why}")
    others, broken = (neighbours or Neighbours()).look(directory)
    rest = unlisted(report, others)
    changed = _set(directory / NAME, device_infos(rest) if rest.cards else "")
    written = {it.uuid for it in rest.cards}
    left = (it.uuid for it in report.cards if it.uuid not in written)
    more = dict(zip(left, rest.left_out[len(report.left_out) :], strict=True))
    elsewhere = frozenset(more).union(*others.values())
    if broken:
        error = f"koordlet reads no file of {directory} while {broken}"
        return changed, ListedCards(f"{error}; have its writer mend it, or take it away", more, elsewhere)
    return changed, ListedCards("", more, elsewhere)


def listed(path: Path) -> Mapping[str, int] | None:
    """The cards that another file lists (`feed.cards`); None where it is gone by now.

    Raises:
        OSError: It cannot be read, or is no file; `strerror` says what it is.
        ValueError: It is no list of cards that koordlet takes.
    """
    try:
        text = files.read(path, MAX_BYTES)
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ENOENT, "is a link to what is not there", str(path)) from None
        return None
    if len(text) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES >> 20} MiB, and no more is read")
    return cards(text.decode(errors="replace"))


def _named(path: Path) -> str:
    return shorten(path.name, 60)


def _others(directory: Path) -> Iterator[Path]:
    """The files that koordlet reads beside ours; a link to a directory is one, too, and cannot be read."""
    there = sorted(os.scandir(directory), key=lambda it: it.name)
    names = (it for it in there if not it.is_dir(follow_symlinks=False))
    for count, it in enumerate(names):
        if count == MAX_FILES:
            raise ConfigError(f"{directory}: has more than {MAX_FILES} files; remove what nobody writes")
        if it.name != NAME:
            yield Path(it.path)


def _text(path: Path) -> str:
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _set(path: Path, text: str) -> bool:
    if text == _text(path):
        return False
    if not text:
        _remove(path)
        return True
    try:
        _replace(path, text)
    except OSError as exc:
        why = "give the agent a directory that it can write"
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}; {why}") from exc
    return True


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


def _replace(path: Path, text: str) -> None:
    """In one step, and on the disk before: half a file would cost koordlet all that it knows."""
    unfinished = path.parent / UNFINISHED
    unfinished.mkdir(mode=0o755, exist_ok=True)
    try:
        files.replace(unfinished / path.name, text, sync=True)
        os.replace(unfinished / path.name, path)
        files.sync_directory(path.parent)
    finally:
        with suppress(OSError):
            (unfinished / path.name).unlink(missing_ok=True)
            unfinished.rmdir()
