"""CDI specs on disk: how a container runtime finds what a qualified device name stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.host import files

log = structlog.get_logger()

#: Vendor to file name to content; empty is a file that shall not be there.
Specs = Mapping[str, Mapping[str, str]]
#: Hears of a file that is ours, and what text was written into it.
Note = Callable[[Path, str], object]
MAX_BYTES = 8 << 20
#: Seconds that a disk gets to take the specs that a container waits for.
PATIENCE = 8.0


class CdiDirectory:
    """Keeps the specs that the vendors want in the directory that container runtimes read."""

    def __init__(
        self,
        path: Path,
        specs: Cell[Specs],
        every: float = 60.0,
        note: Note = lambda path, text: None,
    ) -> None:
        """`specs`: vendor to file name to content. One that somebody removes comes back after `every` s.

        `note` is told of each file that is ours now, and of its text.
        """
        self._path = path
        self._specs = specs
        self._every = every
        self._note = note
        #: How many looks at the disk were asked for, and up to which of them it was looked at.
        self._asked = 0
        self._looked = Cell(0)
        #: Vendor to why its containers may not find their devices; none while all is as it should be.
        self.errors: Cell[Mapping[str, str]] = Cell({})

    async def run(self) -> None:
        """Follow the specs for ever. They stay when the agent ends: containers restart while we are away.

        Nobody else writes them: of two at once a late one would put old specs over new ones.
        """
        while True:
            specs, asked = self._specs.value, self._asked
            await self._write(specs)
            self._looked.set(asked)
            with anyio.move_on_after(self._every):
                if (self._specs.value, self._asked) == (specs, asked):
                    await self._specs.changed()

    async def settle(self, vendor: str, within: float = PATIENCE) -> None:
        """Wait until the specs that this vendor wants now are on disk, at which `run` looks anew.

        Raises:
            VendorError: They are not, after so many seconds.
        """
        if not self._specs.value.get(vendor):
            return
        self._asked += 1
        asked = self._asked
        self._specs.touch()
        try:
            with anyio.fail_after(within):
                while self._looked.value < asked:
                    await self._looked.changed()
        except TimeoutError:
            raise VendorError(
                f"{vendor}: its CDI specs are not in {self._path} after {within:g} s; is the disk well?"
            ) from None
        if error := self.errors.value.get(vendor):
            raise VendorError(f"{vendor}: its CDI specs cannot be written: {error}")

    async def _write(self, specs: Specs) -> None:
        # A disk that hangs must not hold up the end of the agent.
        errors = await anyio.to_thread.run_sync(keep, self._path, specs, self._note, abandon_on_cancel=True)
        for vendor, error in errors.items():
            if error != self.errors.value.get(vendor):
                log.error("CDI specs not written", vendor=vendor, error=error)
        self.errors.set(errors)


def keep(directory: Path, specs: Specs, note: Note = lambda path, text: None) -> dict[str, str]:
    """Have the specs on disk as they should be; vendor to what is wrong with some of its."""
    wrong: dict[str, str] = {}
    writers: dict[str, str] = {}
    for vendor, its in sorted(specs.items()):
        taken = [name for name in its if writers.setdefault(name, vendor) != vendor]
        reasons = [f"{name} is {writers[name]}'s already" for name in taken]
        for name in its:
            if name in taken:
                continue
            if why := _written(directory / name, its[name]):
                reasons.append(why)
            elif its[name]:
                note(directory / name, its[name])
        if reasons:
            wrong[vendor] = "; ".join(reasons)
    return wrong


def _written(path: Path, text: str) -> str:
    """What keeps the file from being as it should be."""
    try:
        if not text:
            path.unlink(missing_ok=True)
        elif _content(path) != text:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            files.replace(path, text)
    except OSError as exc:
        return f"{path}: {exc.strerror}; the agent needs a directory there that it can write"
    return ""


def _content(path: Path) -> str | None:
    """What is there, if it is a file at all."""
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
