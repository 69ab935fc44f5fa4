"""The node's labels in a file: `key=value` lines that node-feature-discovery finds in its features.d."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import structlog

from agent import files
from agent.config import Config, ConfigState
from agent.core.cell import Cell
from agent.core.errors import AgentError, ConfigError, VendorError
from agent.core.labels import Heard, Stamp, Wanted, as_lines, from_lines, made
from agent.core.model import NodeSnapshot, VendorState
from agent.core.names import label_value
from agent.core.vendor import Vendor

log = structlog.get_logger()

T = TypeVar("T")

#: Of a file of labels; node-feature-discovery reads no larger one (source/local, MaxFeatureFileSize).
MAX_BYTES = 64 << 10
MAX_MACHINE = 4096
UNKNOWN_MACHINE = "unknown"


def machine(file: str) -> str:
    """The model of the machine, `unknown` as GPU feature discovery says it where the file can not be read."""
    try:
        return label_value(files.read(Path(file), MAX_MACHINE).decode(errors="replace"))
    except (OSError, ValueError):
        return UNKNOWN_MACHINE


def write(path: Path, text: str) -> None:
    """Replace the file in one step: whoever reads it sees the old one or the new one.

    Raises:
        ConfigError: It can not be written.
    """
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path}: there is no directory {path.parent}; make it, or mount the node's features.d there"
        )
    try:
        files.replace(path, text)
    except OSError as exc:
        raise ConfigError(
            f"{path}: can not be written: {exc.strerror}; name a file in a directory that the agent can write"
        ) from exc


def heard(
    config: Config, snapshot: NodeSnapshot, vendors: Mapping[str, Vendor], stamp: Stamp | None = None
) -> Heard:
    """The labels of the vendors that have listed their devices since the agent started."""
    labels: dict[str, str] = {}
    awaited, trouble = set(), []
    for status in snapshot.vendors:
        vendor = vendors.get(status.name)
        if vendor is None or vendor.labels is None:
            continue
        devices = snapshot.present(status.name)
        try:
            if devices or status.state is VendorState.OPEN:
                labels |= made(vendor, config.vendor(status.name).resources, devices, stamp or Stamp())
                continue
        except VendorError as exc:
            trouble.append(str(exc))
        awaited.add(vendor.resource.partition("/")[0])
    return Heard(labels, frozenset(awaited), "; ".join(trouble))


class FeaturesFile:
    """Keeps `report.featuresFile` as the devices are, from the agent's start until after its end.

    Of a vendor that has not spoken yet what the file says stays: neither a restart of the agent nor one of
    the driver takes labels away, which would end the pods that select them.
    """

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        vendors: Callable[[], Mapping[str, Vendor]],
        clock: Callable[[], float],
        every: float = 60.0,
        settle: float = 0.1,
        note: Callable[[Path], object] = lambda path: None,
    ) -> None:
        """`every`: seconds until a file that somebody removed is written again. `settle`: after a change.

        `note` is told of the file that is ours now.
        """
        self._config = config
        self._snapshot = snapshot
        self._vendors = vendors
        self._clock = clock
        self._every = every
        self._settle = settle
        self._note = note
        self._news = asyncio.Event()
        self._loaded: Config | None = None
        self._timestamp = 0.0
        self._path: Path | None = None
        #: Why the labels are not as the devices are; empty while they are, or nobody wants them.
        self.error = ""
        #: What the API server is to be told; None while nobody knows what is wanted.
        self.wanted: Cell[Wanted | None] = Cell(None)

    async def run(self) -> None:
        """Follow config and devices for ever. The file stays when the agent ends, for pods depend on it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._hear, self._config)
            group.start_soon(self._hear, self._snapshot)
            while True:
                # The vendors take in the same config first, and a storm of health is one look.
                await anyio.sleep(self._settle)
                self._news.clear()
                self._tell(await self._kept())
                with anyio.move_on_after(self._every):
                    await self._news.wait()

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    async def _kept(self) -> str:
        """Bring the file up to date, and return what is wrong."""
        if self._config.value.waiting:
            return ""  # nobody knows yet which labels are wanted
        config = self._config.value.config
        if config != self._loaded:
            # GPU feature discovery takes the time once for each load of its config, too.
            self._loaded, self._timestamp = config, self._clock()
        report = config.report
        path = Path(report.features_file) if report.told_as == "file" else None
        known = await self._heard(config) if report.told_as else Heard({})
        self.wanted.set(Wanted(report.told_as, known, report.namespace))
        try:
            if path is not None:
                await _in_thread(partial(keep, path, known))
                await _in_thread(partial(self._note, path))
            if self._path is not None and self._path != path:
                await _in_thread(partial(self._path.unlink, missing_ok=True))
            self._path = path
        except (AgentError, OSError) as exc:
            return str(exc)
        return known.trouble

    async def _heard(self, config: Config) -> Heard:
        report = config.report
        model = await _in_thread(partial(machine, report.machine_file))
        stamp = Stamp(model, self._timestamp if report.timestamp else None)
        return heard(config, self._snapshot.value, self._vendors(), stamp)

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("labels not written", error=error)
        if self.error and not error:
            log.info("labels written again", path=str(self._path))
        self.error = error


async def _in_thread(work: Callable[[], T]) -> T:
    # A disk that hangs must not hold up the end of the agent.
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


def keep(path: Path, known: Heard) -> None:
    """Write the file where it is not as it should be. None is made while there is nothing to say.

    Raises:
        ConfigError: It can not be written.
        OSError: It can not be read.
    """
    there = _content(path)
    wanted = as_lines(known.over(from_lines(there)))
    if wanted != there:
        write(path, wanted)


def _content(path: Path) -> str:
    try:
        return files.read(path, MAX_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
