"""CDI specs on disk, which tell a container runtime what a qualified device name means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.host import files

log = structlog.get_logger()

#: By vendor: the content of each file by name; empty content means that no such file is wanted.
Specs = Mapping[str, Mapping[str, str]]
#: Called with each file of the agent, and the text that was written into it.
Note = Callable[[Path, str], object]
MAX_BYTES = 8 << 20
#: Seconds that the disk gets for specs that a container waits for.
PATIENCE = 8.0


class CdiDirectory:
    """Keeps the vendors' specs in the directory that container runtimes read."""

    def __init__(
        self,
        path: Path,
        specs: Cell[Specs],
        every: float = 60.0,
        note: Note = lambda path, text: None,
    ) -> None:
        """A removed file is written again within `every` seconds.

        `note` is called with each file of the agent, and its text.
        """
        self._path = path
        self._specs = specs
        self._every = every
        self._note = note
        #: How many passes over the files were requested, and up to which of these one was completed.
        self._requested = 0
        self._completed = Cell(0)
        #: By vendor: why its containers may not find their devices; no entry where all specs are written.
        self.errors: Cell[Mapping[str, str]] = Cell({})

    async def run(self) -> None:
        """Follow the specs, for ever. They stay when the agent ends, because containers can restart then.

        Only this task writes them: a second one could write old specs over new ones.
        """
        while True:
            specs, requested = self._specs.value, self._requested
            await self._write(specs)
            self._completed.set(requested)
            with anyio.move_on_after(self._every):
                if (self._specs.value, self._requested) == (specs, requested):
                    await self._specs.changed()

    async def settle(self, vendor: str, within: float = PATIENCE) -> None:
        """Have `run` write the vendor's current specs, and wait until they are on disk.

        Raises:
            VendorError: They are not on disk after `within` seconds.
        """
        if not self._specs.value.get(vendor):
            return
        self._requested += 1
        requested = self._requested
        self._specs.touch()
        try:
            with anyio.fail_after(within):
                while self._completed.value < requested:
                    await self._completed.changed()
        except TimeoutError:
            raise VendorError(
                f"{vendor}: its CDI specs are not in {self._path} after {within:g} s; does the disk work?"
            ) from None
        if error := self.errors.value.get(vendor):
            raise VendorError(f"{vendor}: its CDI specs cannot be written: {error}")

    async def _write(self, specs: Specs) -> None:
        # Abandoned on cancel, because a disk that hangs must not delay the agent's end.
        errors = await anyio.to_thread.run_sync(keep, self._path, specs, self._note, abandon_on_cancel=True)
        for vendor, error in errors.items():
            if error != self.errors.value.get(vendor):
                log.error("CDI specs not written", vendor=vendor, error=error)
        self.errors.set(errors)


def keep(directory: Path, specs: Specs, note: Note = lambda path, text: None) -> dict[str, str]:
    """Write the specs that differ; returns by vendor why some of its specs are not written."""
    wrong: dict[str, str] = {}
    writers: dict[str, str] = {}
    for vendor, wanted in sorted(specs.items()):
        taken = [name for name in wanted if writers.setdefault(name, vendor) != vendor]
        reasons = [f"{name} is {writers[name]}'s already" for name in taken]
        for name in wanted:
            if name in taken:
                continue
            if why := _written(directory / name, wanted[name]):
                reasons.append(why)
            elif wanted[name]:
                note(directory / name, wanted[name])
        if reasons:
            wrong[vendor] = "; ".join(reasons)
    return wrong


def _written(path: Path, text: str) -> str:
    """Write or remove the file; returns why that failed, or ""."""
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
    """The file's text; None where there is no readable file."""
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
