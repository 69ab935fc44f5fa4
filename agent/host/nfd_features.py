"""The node's labels as `key=value` lines in a file of node-feature-discovery's features.d directory."""

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
from agent.core.endless_tasks import for_ever, set_on_change
from agent.core.errors import AgentError, ConfigError
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures, as_lines, domain, from_lines
from agent.host import files

log = structlog.get_logger()

T = TypeVar("T")

#: Bytes of the file; node-feature-discovery reads no larger one (source/local, MaxFeatureFileSize).
MAX_BYTES = 64 << 10


def write(path: Path, text: str) -> None:
    """Replace the file in one step: readers see either the old content or the new.

    Raises:
        ConfigError: The file cannot be written.
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
    """Keeps the file of labels as it is wanted, and leaves it there when the agent ends.

    Labels of a vendor that has not reported yet stay in the file. So neither a restart of the agent nor one
    of the driver removes labels, which would end pods that select them.
    """

    def __init__(
        self,
        wanted: Cell[WantedFeatures | None],
        every: float = 60.0,
        note: Callable[[Path], object] = lambda path: None,
        noted: Callable[[], Iterable[Path]] = tuple,
        forget: Callable[[Path], object] = lambda path: None,
    ) -> None:
        """`every`: seconds until a file that was removed is written again.

        `note` is called with the file in use; `noted` gives the files of all agents of this node; `forget` is
        called with each file that was removed.
        """
        self._wanted = wanted
        self._every = every
        self._note = note
        self._noted = noted
        self._forget = forget
        self._changed = asyncio.Event()
        self._path: Path | None = None
        #: Why the file is not as wanted; empty while it is, or none is wanted.
        self.error = ""

    async def run(self) -> None:
        """Follow the wanted labels, for ever. The file stays when the agent ends, because pods need it."""
        async with anyio.create_task_group() as group:
            group.start_soon(for_ever, set_on_change, self._changed, self._wanted)
            while True:
                self._changed.clear()
                self._report(await self._keep_file())
                with anyio.move_on_after(self._every):
                    await self._changed.wait()

    async def _keep_file(self) -> str:
        """Bring the file up to date; returns what is wrong, or ""."""
        wanted = self._wanted.value
        if wanted is None:
            return ""  # the wanted labels are not known yet
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

    def _leave(self, path: Path | None, labels: VendorLabels) -> None:
        """Remove files that the labels were in before, of this agent and of earlier ones.

        A file without its directory stays recorded: it may be on the host, not mounted here. A file that is
        the current one under another path loses its record only.
        """
        others = {*self._noted(), *([self._path] if self._path else [])} - {path}
        for file in sorted(others):
            if path is not None and _is_same(file, path):
                self._forget(file)
            elif file.parent.is_dir() and not _awaited(file, labels):
                file.unlink(missing_ok=True)
                self._forget(file)

    def _report(self, error: str) -> None:
        if error and error != self.error:
            log.error("labels not written", error=error)
        if self.error and not error:
            log.info("labels written again", path=str(self._path))
        self.error = error


async def _in_thread(work: Callable[[], T]) -> T:
    # Abandoned on cancel, because a disk that hangs must not delay the agent's end.
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def keep(path: Path, known: VendorLabels) -> None:
    """Write the file if it differs. An empty file is not made.

    Raises:
        ConfigError: The file cannot be written.
        OSError: The file cannot be read.
    """
    current = _content(path)
    wanted = as_lines(known.over(from_lines(current)))
    if wanted != current:
        write(path, wanted)


def _is_same(one: Path, other: Path) -> bool:
    """Whether both paths name one file, for instance because /var/run is a link to /run."""
    try:
        return os.path.samefile(one, other)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _awaited(path: Path, labels: VendorLabels) -> bool:
    """Whether the file has labels of a vendor that has not reported yet, which would be lost."""
    return any(domain(key) in labels.awaited for key in from_lines(_content(path)))


def _content(path: Path) -> str:
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
