"""The file from which a scheduler's program on the node knows the cards, in a directory of several writers.

koordlet, the one program of this kind today, reads every file of the directory, also hidden or half-written
files. It takes none of them while one cannot be read, and counts a card that two files list twice. Source:
koordinator pkg/koordlet/metricsadvisor/collectors/noderesource (collector_xpu.go).
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct, field

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.errors import AgentError, ConfigError
from agent.host import files
from agent.scheduler_api.node_checks import OtherFile
from agent.scheduler_api.node_report import NodeReport, PublishedReport, Report, ReportFile
from agent.vendor_api.text import shorten

log = structlog.get_logger()

T = TypeVar("T")

#: The agent's file.
NAME = "xpu-agent.json"
#: The directory where the agent's file is written before the move: the program skips directories.
UNFINISHED = ".xpu-agent"
#: Bytes of one file, and number of other files in the directory.
MAX_BYTES, MAX_FILES = 1 << 20, 64
#: Seconds for which the cards of a file count after it is gone or broken: its writer may be restarting.
LINGER = 30.0


class ListedCards(Struct, frozen=True):
    """The cards that other files list, after one write of the agent's file."""

    #: What keeps the program from reading the directory; empty without a fault.
    error: str = ""
    #: Uuid of each reported card that is left out of the agent's file, to the sentence with the reason.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Uuids of all cards that other files list.
    elsewhere: frozenset[str] = frozenset()


class OtherFiles:
    """The cards in the other files of the directory."""

    def __init__(self, report_format: ReportFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._format = report_format
        self._clock = clock
        #: Of each file the time of the last read, and its cards, uuid to minor.
        self._read: dict[Path, tuple[float, Mapping[str, int]]] = {}

    def look(self, directory: Path) -> tuple[Mapping[str, Mapping[str, int]], str]:
        """Of each file, by name, its cards (uuid to minor); and the first broken file with the reason.

        Raises:
            ConfigError: The directory has too many files.
            OSError: The directory cannot be read.
        """
        now, broken = self._clock(), ""
        for path in _others(directory):
            try:
                cards = listed(path, self._format)
            except (OSError, ValueError) as exc:
                broken = broken or f"'{_name_of(path)}' is broken: {getattr(exc, 'strerror', '') or exc}"
                continue
            if cards is not None:
                self._read[path] = now, cards
        self._read = {
            path: read
            for path, read in self._read.items()
            if path.parent == directory and now - read[0] < LINGER
        }
        return {_name_of(path): cards for path, (_, cards) in self._read.items()}, broken


class ReportFileWriter:
    """Keeps the agent's file while the report is published by file. The file stays when the agent ends:
    without it the scheduler's program would report a node without cards. In mode `device` an existing file
    is kept up too, so that it is true for a program that starts to read it.
    """

    def __init__(
        self,
        reporting: NodeReport,
        published: Cell[PublishedReport | None],
        every: float = 5.0,
        note: Callable[[Path], object] = lambda path: None,
        noted: Callable[[], Iterable[Path]] = tuple,
        elsewhere: Cell[frozenset[str]] | None = None,
    ) -> None:
        """`every`: seconds between two looks at the directory. `note` gets the path of the agent's file
        before the file is made, and may raise OSError. `noted`: all paths that were noted, by earlier agents
        too, and for other kinds of files. `elsewhere` is kept here: uuids of the cards that other files list.
        """
        self._reporting = reporting
        self._published = published
        self._every = every
        self._note = note
        self._noted = noted
        self._elsewhere = elsewhere or Cell(frozenset())
        self._others = OtherFiles(reporting.file)
        self._changed = asyncio.Event()
        #: The chosen directory for which the agent's files in other directories were removed.
        self._cleaned_for = ""
        #: The directory from which the agent's file was withdrawn.
        self._withdrawn_from = ""
        #: Why the file is not as it should be; empty while it is, or while no file is wanted.
        self.error = ""
        #: Uuid of each card that other files list already, to the sentence with the reason.
        self.left_out: Mapping[str, str] = {}
        self.writes = 0

    async def run(self) -> None:
        """Follow the published report, for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, set_on_change, self._changed, self._published)
            while True:
                self._changed.clear()
                await self.once()
                with anyio.move_on_after(self._every):
                    await self._changed.wait()

    async def once(self) -> None:
        """Bring the file up to date."""
        published = self._published.value
        kept = ListedCards()
        if published is not None:
            try:
                kept = await self._bring(published)
            except (AgentError, OSError) as exc:
                kept = ListedCards(str(exc), self.left_out, self._elsewhere.value)
        self._log(kept.error)
        self._elsewhere.set(kept.elsewhere)
        self.left_out = kept.left_out

    async def _bring(self, published: PublishedReport) -> ListedCards:
        kept, path = ListedCards(), Path(published.directory) / NAME
        if published.withdraw_file:
            if self._withdrawn_from != published.directory:
                await _in_thread(partial(_remove, path))
                self._withdrawn_from = published.directory
        elif published.report is not None:
            self._withdrawn_from = ""
            if published.mode == "feed":
                kept = await self._keep_file(path, published.report)
            elif published.mode == "device" and await _in_thread(path.is_file):
                await self._keep_file(path, published.report)
        if self._cleaned_for != published.directory:
            await _in_thread(partial(self._remove_earlier, path))
            self._cleaned_for = published.directory
        return kept

    async def _keep_file(self, path: Path, report: Report) -> ListedCards:
        await _in_thread(partial(self._note, path))
        work = partial(keep, path.parent, report, self._reporting, self._others)
        changed, kept = await _in_thread(work)
        self.writes += changed
        return kept

    def _remove_earlier(self, path: Path) -> None:
        """Remove the agent's file from directories of an earlier configuration."""
        for noted in self._noted():
            if noted.name == NAME and noted != path:
                _remove(noted)

    def _log(self, error: str) -> None:
        program = self._reporting.program
        broken, mended = f"cards not reported to {program}", f"cards are reported to {program} again"
        if error and error != self.error:
            log.error(broken, error=error)
        if self.error and not error:
            log.info(mended)
        self.error = error


async def _in_thread(work: Callable[[], T]) -> T:
    # A disk that hangs must not hold up the end of the agent.
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def report_in(directory: Path, report_format: ReportFile) -> Report | None:
    """The report in the agent's file, perhaps of an earlier agent; None where there is none."""
    try:
        return report_format.report(_text(directory / NAME))
    except OSError:
        return None


def keep(
    directory: Path, report: Report, reporting: NodeReport, others: OtherFiles | None = None
) -> tuple[bool, ListedCards]:
    """Write the file where it differs from the report; returns whether the file was changed.

    A card that another file lists is left out, because the program would count it twice. Without any card
    left the file is removed. `others` knows what the other files listed before.

    Raises:
        ConfigError: The directory does not exist, or cannot be written.
        OSError: The directory cannot be read.
    """
    program = reporting.program
    if directory.exists() and not directory.is_dir():
        remedy = f"name the directory that {program} reads in report.deviceInfosDir"
        raise ConfigError(f"{directory} is a file, not a directory: {remedy}")
    if not directory.is_dir():
        remedy = (
            f"{program} makes the directory; mount the node's directory there, or set report.deviceInfosDir"
        )
        raise ConfigError(f"there is no directory {directory}: {remedy}")
    listed_by_others, broken = (others or OtherFiles(reporting.file)).look(directory)
    rest = reporting.file.without(report, listed_by_others)
    changed = _set(directory / NAME, reporting.file.text(rest) if rest.cards else "")
    written = {card.uuid for card in rest.cards}
    left_out = (card.uuid for card in report.cards if card.uuid not in written)
    reasons = dict(zip(left_out, rest.left_out[len(report.left_out) :], strict=True))
    elsewhere = frozenset(reasons).union(*listed_by_others.values())
    error = f"{program} reads no file of {directory} while {broken}; have its writer mend it, or take it away"
    return changed, ListedCards(error if broken else "", reasons, elsewhere)


def listed(path: Path, report_format: ReportFile) -> Mapping[str, int] | None:
    """The cards that a file of another program lists, uuid to minor; None where the file is gone.

    Raises:
        OSError: The file cannot be read, or is no file; `strerror` says what it is.
        ValueError: The file is no list of cards that the program takes.
    """
    try:
        text = files.read(path, MAX_BYTES)
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ENOENT, "is a link to what is not there", str(path)) from None
        return None
    if len(text) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES >> 20} MiB, and no more is read")
    return report_format.cards(text.decode(errors="replace"))


def other_files(directory: Path, report_format: ReportFile) -> tuple[OtherFile, ...]:
    """The other files of the directory, at most `MAX_FILES`, in the order of their names.

    Raises:
        OSError: The directory cannot be read.
    """
    entries = islice((it for it in directory.iterdir() if it.name != NAME), MAX_FILES)
    return tuple(
        _other_file(path, report_format)
        for path in sorted(it for it in entries if it.is_symlink() or not it.is_dir())
    )


def _other_file(path: Path, report_format: ReportFile) -> OtherFile:
    try:
        return OtherFile(str(path), frozenset(listed(path, report_format) or ()))
    except (OSError, ValueError) as exc:
        error = str(getattr(exc, "strerror", "") or exc)
        return OtherFile(str(path), error=error, is_like_cards=_is_like_cards(path))


def _is_like_cards(path: Path) -> bool:
    """Whether the text begins like JSON, so that a program that lists cards may have written it."""
    try:
        return files.read(path, 100, links=False).lstrip()[:1] in (b"[", b"{")
    except OSError:
        return False


def _name_of(path: Path) -> str:
    return shorten(path.name, 60)


def _others(directory: Path) -> Iterator[Path]:
    """The other files that the program reads. A link to a directory counts: the program fails to read it."""
    entries = sorted(os.scandir(directory), key=lambda it: it.name)
    others = (entry for entry in entries if not entry.is_dir(follow_symlinks=False))
    for count, entry in enumerate(others):
        if count == MAX_FILES:
            raise ConfigError(
                f"{directory}: has more than {MAX_FILES} files; remove those that no program writes"
            )
        if entry.name != NAME:
            yield Path(entry.path)


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
    """Replace the file in one step, after its text is on the disk: half a file would cost the program all."""
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
