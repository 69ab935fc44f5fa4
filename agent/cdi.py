"""CDI specs on disk: how a container runtime finds what a qualified device name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import structlog

from agent import files
from agent.core.cell import Cell

log = structlog.get_logger()

#: Vendor to file name to content.
Specs = Mapping[str, Mapping[str, str]]
MAX_BYTES = 8 << 20


class CdiDirectory:
    """Keeps the specs that the vendors want in the directory that container runtimes read."""

    def __init__(self, path: Path, specs: Cell[Specs], every: float = 60.0) -> None:
        """`specs`: vendor to file name to content. One that somebody removes comes back after `every` s."""
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

    async def _keep(self, specs: Specs) -> None:
        try:
            # A disk that hangs must not hold up the end of the agent.
            error = await anyio.to_thread.run_sync(keep, self._path, specs, abandon_on_cancel=True)
        except OSError as exc:
            error = f"{self._path}: {exc.strerror}; make it a directory that the agent can write"
        if error and error != self.error:
            log.error("CDI specs not written", error=error)
        self.error = error


def keep(directory: Path, specs: Specs) -> str:
    """Write the specs that are not on disk as they should be; what is wrong with some of them, or "".

    Raises:
        OSError: The directory can not be made.
    """
    if any(specs.values()):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    wrong: list[str] = []
    writers: dict[str, str] = {}
    for vendor, its in sorted(specs.items()):
        for name, text in its.items():
            if writers.setdefault(name, vendor) != vendor:
                wrong.append(f"{name} is {writers[name]}'s already, {vendor} wants it too")
            else:
                wrong += _written(directory / name, text)
    return "; ".join(wrong)


def _written(path: Path, text: str) -> list[str]:
    """What keeps the file from being as it should be: nothing, or one reason."""
    try:
        if _content(path) != text:
            files.replace(path, text)
    except OSError as exc:
        return [f"{path}: {exc.strerror}"]
    return []


def _content(path: Path) -> str | None:
    """What is there, if it is a file at all."""
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
