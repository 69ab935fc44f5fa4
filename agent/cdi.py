"""CDI specs on disk: how a container runtime finds what a qualified device name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import structlog

from agent import files
from agent.core.cell import Cell

log = structlog.get_logger()


class CdiDirectory:
    """Keeps the specs that the vendors want in the directory that container runtimes read."""

    def __init__(self, path: Path, specs: Cell[Mapping[str, str]], every: float = 60.0) -> None:
        """`specs`: file name to content. One that somebody removed is written again after `every` seconds."""
        self._path = path
        self._specs = specs
        self._every = every
        #: Why containers may not find their devices; empty while the directory is as it should be.
        self.error = ""

    async def run(self) -> None:
        """Follow the specs for ever. They stay when the agent ends: containers restart while we are away."""
        while True:
            specs = self._specs.value
            await self._keep(specs)
            with anyio.move_on_after(self._every):
                if self._specs.value == specs:
                    await self._specs.changed()

    async def _keep(self, specs: Mapping[str, str]) -> None:
        error = ""
        try:
            await anyio.to_thread.run_sync(keep, self._path, specs)
        except OSError as exc:
            error = f"{self._path}: {exc.strerror}; make it a directory that the agent can write"
        if error and error != self.error:
            log.error("CDI specs not written", error=error)
        self.error = error


def keep(directory: Path, specs: Mapping[str, str]) -> None:
    """Write the specs that are not on disk as they should be.

    Raises:
        OSError: The directory can not be made or written.
    """
    stale = {name: text for name, text in specs.items() if _content(directory / name) != text}
    if stale:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, text in stale.items():
        files.replace(directory / name, text)


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
