"""The node's labels in a file: `key=value` lines that node-feature-discovery finds in its features.d."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import structlog

from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.errors import AgentError, ConfigError
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures, as_lines, domain, from_lines
from agent.host import files

log = structlog.get_logger()

T = TypeVar("T")

#: Of a file of labels; node-feature-discovery reads no larger one (source/local, MaxFeatureFileSize).
MAX_BYTES = 64 << 10


def write(path: Path, text: str) -> None:
    """Replace the file in one step: whoever reads it sees the old one or the new one.

    Raises:
        ConfigError: It cannot be written.
    """
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path}: there is no directory {path.parent}; make it, or mount the node's features.d there"
        )
    try:
        files.replace(path, text)
    except OSError as exc:
        raise ConfigError(
            f"{path}: cannot be written: {exc.strerror}; name a file in a directory that the agent can write"
        ) from exc


class FeaturesFile:
    """Keeps the file that the labels are wanted in, from the agent's start until after its end.

    Of a vendor that has not spoken yet what the file says stays: neither a restart of the agent nor one of
    the driver takes labels away, which would end the pods that select them.
    """

    def __init__(
        self,
        wanted: Cell[WantedFeatures | None],
        every: float = 60.0,
        note: Callable[[Path], object] = lambda path: None,
        noted: Callable[[], Iterable[Path]] = tuple,
        forget: Callable[[Path], object] = lambda path: None,
    ) -> None:
        """`every`: seconds until a file that somebody removed is written again.

        `note` is told of the file that is ours now, `noted` tells those of all agents that were here, and
        `forget` is told which of them is removed.
        """
        self._wanted = wanted
        self._every = every
        self._note = note
        self._noted = noted
        self._forget = forget
        self._news = asyncio.Event()
        self._path: Path | None = None
        #: Why the file is not as it should be; empty while it is, or nobody wants one.
        self.error = ""

    async def run(self) -> None:
        """Follow what is wanted for ever. The file stays when the agent ends, for pods depend on it."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, self._hear)
            while True:
                self._news.clear()
                self._tell(await self._kept())
                with anyio.move_on_after(self._every):
                    await self._news.wait()

    async def _hear(self) -> None:
        async for _ in self._wanted.watch():
            self._news.set()

    async def _kept(self) -> str:
        """Bring the file up to date, and return what is wrong."""
        wanted = self._wanted.value
        if wanted is None:
            return ""  # nobody knows yet which labels are wanted
        path = Path(wanted.file) if wanted.file else None
        try:
            if path is not None:
                await _in_thread(partial(keep, path, wanted.vendor_labels))
                await _in_thread(partial(self._note, path))
            await _in_thread(partial(self._leave, path, wanted.vendor_labels))
            self._path = path
        except (AgentError, OSError) as exc:
            return str(exc)
        return ""

    def _leave(self, path: Path | None, heard: VendorLabels) -> None:
        """Remove the files that labels went to before, of this agent and of those before it.

        One whose directory is not here may be on a host that is not seen: it stays written down. Today's file
        under another name is struck out and stays.
        """
        former = {*self._noted(), *([self._path] if self._path else [])} - {path}
        for it in sorted(former):
            if path is not None and _is_same(it, path):
                self._forget(it)
            elif it.parent.is_dir() and not _awaited(it, heard):
                it.unlink(missing_ok=True)
                self._forget(it)

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("labels not written", error=error)
        if self.error and not error:
            log.info("labels written again", path=str(self._path))
        self.error = error


async def _in_thread(work: Callable[[], T]) -> T:
    # A disk that hangs must not hold up the end of the agent.
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def keep(path: Path, known: VendorLabels) -> None:
    """Write the file where it is not as it should be. None is made while there is nothing to say.

    Raises:
        ConfigError: It cannot be written.
        OSError: It cannot be read.
    """
    there = _content(path)
    wanted = as_lines(known.over(from_lines(there)))
    if wanted != there:
        write(path, wanted)


def _is_same(one: Path, other: Path) -> bool:
    """Whether a link on the way, as /var/run is one to /run, leads both to one file."""
    try:
        return os.path.samefile(one, other)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _awaited(path: Path, heard: VendorLabels) -> bool:
    """Whether there are labels of a vendor that has not spoken yet: nobody else tells them now."""
    return any(domain(key) in heard.awaited for key in from_lines(_content(path)))


def _content(path: Path) -> str:
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
