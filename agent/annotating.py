"""Which annotations of vendors the node is to have: config, devices and allocations in, one value out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import structlog

from agent.config import Config, ConfigState
from agent.core.annotations import Annotated, grants, made
from agent.core.cell import Cell
from agent.core.errors import VendorError
from agent.core.ledger import Ledger
from agent.core.model import DeviceStatus, NodeSnapshot, VendorState
from agent.core.vendor import Fault, Vendor

log = structlog.get_logger()


class Annotating:
    """Keeps `wanted` as config, devices and allocations are. Whoever writes the Node reads it."""

    def __init__(
        self,
        config: Cell[ConfigState],
        snapshot: Cell[NodeSnapshot],
        ledger: Ledger,
        vendors: Callable[[], Mapping[str, Vendor]],
        *,
        settle: float = 0.05,
    ) -> None:
        """`settle`: seconds after a change, so that many at once are one."""
        self._config = config
        self._snapshot = snapshot
        self._ledger = ledger
        self._vendors = vendors
        self._settle = settle
        self._news = asyncio.Event()
        #: None while nobody knows what is wanted.
        self.wanted: Cell[Annotated | None] = Cell(None)
        #: Why not all are made; empty while all is well.
        self.error = ""

    async def run(self) -> None:
        """Follow config, devices and allocations for ever."""
        async with anyio.create_task_group() as group:
            for cell in (self._config, self._snapshot, self._ledger.changes):
                group.start_soon(self._hear, cell)
            while True:
                await self._news.wait()
                await anyio.sleep(self._settle)
                self._news.clear()
                self.once()

    def once(self) -> None:
        """Look at config, devices and allocations, and say what follows."""
        if self._config.value.waiting:
            return  # nobody knows yet which vendors are wanted
        texts: dict[str, str | None] = {}
        awaited: set[str] = set()
        trouble: list[str] = []
        for status in self._snapshot.value.vendors:
            vendor = self._vendors().get(status.name)
            if vendor is None or not vendor.annotation_keys:
                continue
            try:
                found = self._of(vendor, self._config.value.config, opened=status.state is VendorState.OPEN)
            except VendorError as exc:
                trouble.append(str(exc))
                found = None
            texts |= found or {}
            awaited |= set() if found is not None else {*vendor.annotation_keys}
        self.wanted.set(Annotated(texts, frozenset(awaited)))
        self._tell("; ".join(trouble))

    def _of(self, vendor: Vendor, config: Config, *, opened: bool) -> Mapping[str, str | None] | None:
        """None while it has not listed its devices."""
        its = (it for it in self._snapshot.value.of(vendor.name) if not it.gone)
        devices = tuple(replace(it.device, fault=_fault(it)) for it in its)
        if not (devices or opened):
            return None
        given = grants(self._ledger.in_use(), vendor.name)
        return made(vendor, config.vendor(vendor.name).resources, devices, given)

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    def _tell(self, error: str) -> None:
        if error and error != self.error:
            log.error("annotations not made", error=error)
        if self.error and not error:
            log.info("annotations are made again")
        self.error = error


def _fault(it: DeviceStatus) -> Fault | None:
    """Why nobody new gets it; None where the kubelet may give it out: both shall schedule alike."""
    if not it.told_healthy:
        return Fault(it.health.reason, it.health.message, it.health.state)
    return Fault("cordoned", it.cordon.reason) if it.cordon is not None else None
