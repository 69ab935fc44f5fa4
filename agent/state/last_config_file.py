"""Keeps the last configuration that was in force, for a start with an unusable one.

It has its own file, because the checkpoint is written at each Allocate and a configuration may have 1 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import structlog

from agent.config import ConfigState, LastConfig, RememberedConfig
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.state import file_formats
from agent.state.checkpoint import CHECKPOINT, CheckpointFile
from agent.state.file_envelope import Unusable
from agent.state.sealed_file import SealedFile
from agent.state.write_thread import WriteThread

log = structlog.get_logger()

#: The file's name in the state directory.
NAME = "agent.last-config.json"
#: A configuration of 1 MiB as JSON, with its labels, takes more.
MAX_BYTES = 8 << 20
#: Shortest and longest pause, in seconds, before a failed write is tried again.
PAUSES = (0.1, 30.0)


def last_config(state_dir: Path) -> SealedFile[LastConfig]:
    """The file of the last configuration that was in force."""
    return SealedFile(state_dir / NAME, LastConfig, file_formats.LAST_CONFIG, MAX_BYTES)


def remembered_from(state_dir: Path) -> RememberedConfig:
    """The choice of the config in the last run with this state directory, and the last config that worked."""
    saved = CheckpointFile(state_dir / CHECKPOINT).peek()
    try:
        return RememberedConfig(saved.labels, saved.config, last_config(state_dir).read())
    except Unusable as exc:
        return RememberedConfig(
            saved.labels, saved.config, trouble=f"the last good one cannot be used: {exc}"
        )


class LastConfigKeeper:
    """Writes the config in force if the file has another; a disk that fails or hangs is reported."""

    def __init__(
        self,
        file: SealedFile[LastConfig],
        config: Cell[ConfigState],
        pauses: tuple[float, float] = PAUSES,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._file = file
        self._config = config
        self._pauses = Pauses(*pauses)
        self._clock = clock
        self._worker = WriteThread()
        self._written: LastConfig | None = None
        self._error = ""

    async def run(self) -> None:
        """Follow the configuration for ever."""
        await self._worker.submit(self._read)
        async for state in self._config.watch():
            if not state.waiting:
                await self._keep(state)

    async def write_again(self) -> None:
        """Write the config again after the file was lost with its directory."""
        self._report(await self._worker.submit(self._restore))

    async def _keep(self, state: ConfigState) -> None:
        """Write the state, with retries, until the disk takes it or another config is in force."""
        last = _last_config_of(state, self._clock())
        if self._written is not None and replace(last, since=self._written.since) == self._written:
            return
        self._pauses.reset()
        while True:
            error = await self._worker.submit(partial(self._write, last))
            self._report(error)
            if not error or self._config.value != state:
                return
            with anyio.move_on_after(self._pauses.next()):
                await self._config.changed()

    def _write(self, last: LastConfig) -> None:
        # Set in the worker: `_restore` runs after this write, and must see this value.
        self._file.write(last)
        self._written = last

    def _restore(self) -> None:
        if self._written is not None:
            self._file.write(self._written)

    def _read(self) -> None:
        try:
            self._written = self._file.read()
        except Unusable as exc:
            log.warning("last config ignored", error=str(exc), then="the next one in force replaces it")

    def _report(self, error: str) -> None:
        if error and error != self._error:
            remedy = "free space, or replace the disk"
            log.error("last config not written", error=error, path=str(self._file.path), remedy=remedy)
        if self._error and not error:
            log.info("last config written again", path=str(self._file.path))
        self._error = error


def _last_config_of(state: ConfigState, now: datetime) -> LastConfig:
    text = state.content.decode()  # cannot fail: the content was read as text before it came into force
    since = state.since or now.replace(microsecond=0)
    side_files = {
        directory.path: {name: content.decode(errors="replace") for name, content in directory.files}
        for directory in state.side_files
    }
    return LastConfig(_utf8(state.source), text, since, _utf8(state.name), state.labels, side_files)


def _utf8(name: str) -> str:
    """A file name, which may be any bytes, as UTF-8."""
    return name.encode(errors="backslashreplace").decode()
