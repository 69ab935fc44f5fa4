"""NVIDIA's half in the child process: cards, their MIG devices, links and health, all through NVML."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Backend, BackendUnavailable, Device, HealthEvent, Link
from agent.vendors.common.device_fields import completed
from agent.vendors.nvidia.error_checks import Checks

from . import cdi, device_nodes, faults, library
from . import links as topology
from .cards import NvidiaCard, driver_attributes, read
from .driver_events import NvmlEventWatch
from .mig import MigReader

#: Products that drive a display and compute nothing.
SKIPPED = frozenset({"DGX Display", "NVIDIA DGX Display"})

CLOSE_PATIENCE = 0.2  # seconds to let a wait for events end


@dataclass(frozen=True, slots=True)
class NvmlSession:
    """What lives between open and close."""

    nvml: Any
    layouts: MigReader
    watch: NvmlEventWatch
    #: What the driver says of itself, for all cards.
    driver: Mapping[str, str]


class NvmlBackend(Backend):
    """One NVML session for life: starting one costs up to seconds per card."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._sysfs = Path(settings.get("sysfs") or "/sys")
        self._procfs = Path(settings.get("procfs") or "/proc")
        self._checks = Checks.read(settings)
        self._counts_slices = (settings.get("migStrategy") or "none") != "none"
        self._session: NvmlSession | None = None
        self._cards: dict[str, NvidiaCard] = {}
        #: Cards that have not told their UUID yet, by index.
        self._nameless: dict[int, Device] = {}
        self._watching = threading.Lock()

    def open(self) -> None:
        nvml = library.start(self.settings)
        watch = NvmlEventWatch(nvml, self._checks, self._counts_slices)
        self._session = NvmlSession(nvml, MigReader(nvml, self._procfs), watch, driver_attributes(nvml))

    def close(self) -> None:
        if self._session is None:
            return
        session, self._session = self._session, None
        # The cards stay known, so that one that the next session finds lost still has its name.
        self._cards = {uuid: replace(card, handle=None) for uuid, card in self._cards.items()}
        # Under a wait for events NVML cannot be shut down; then the session ends with the process.
        if self._watching.acquire(timeout=CLOSE_PATIENCE):
            session.watch.close()
            session.nvml.nvmlShutdown()
            self._watching.release()

    def discover(self) -> Sequence[Device]:
        session = self._opened()
        node = {**session.driver, **device_nodes.attributes(self.settings), **cdi.attributes(self.settings)}
        looks = [self._look(session.nvml, node, index) for index in range(self._count(session.nvml))]
        looks = [look for look in looks if look.device.model not in SKIPPED]
        found = {look.uuid: self._completed(look) for look in looks if look.uuid}
        returned = [uuid for uuid, card in found.items() if card.device.index in self._nameless]
        nameless: dict[int, Device] = {}
        for look in looks:
            named = None if look.uuid else self._named(look, found)
            if named is not None:
                found[named.uuid] = named
            elif not look.uuid:
                index = look.device.index
                nameless[index] = replace(look.device, uuid=f"nvidia-nameless-{index}", nameless=True)
        found = {uuid: replace(card, slices=session.layouts.slices(card)) for uuid, card in found.items()}
        self._cards, self._nameless = found, nameless
        session.watch.put(found, returned)
        return sorted([*self._devices(), *nameless.values()], key=lambda device: device.index)

    def links(self, uuid: str) -> Sequence[Link]:
        card = self._cards.get(uuid)
        return () if card is None else topology.links(self._opened().nvml, card, self._cards)

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        with self._watching:
            return self._opened().watch.news(timeout)

    def cdi(self) -> Mapping[str, str]:
        return cdi.specs(self.settings, self._devices())

    def _devices(self) -> list[Device]:
        """The cards in NVML's order, each with its MIG devices after it."""
        cards = sorted(self._cards.values(), key=lambda card: card.device.index)
        return [device for card in cards for device in (card.device, *card.slices)]

    def _opened(self) -> NvmlSession:
        if self._session is None:
            raise BackendUnavailable("not-open", "open() comes first")
        return self._session

    def _count(self, nvml: Any) -> int:
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise library.unavailable(nvml, error, otherwise="nvml-failed") from error
        if not count and self._cards:
            raise BackendUnavailable("no-devices", f"NVML counts no cards, there were {len(self._cards)}")
        return count

    def _look(self, nvml: Any, node: Mapping[str, str], index: int) -> NvidiaCard:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            fault = faults.reading(nvml, error)
            due = faults.recovery_due(fault, None)
            return NvidiaCard(Device("", index, attributes=node, fault=fault, recovery_due=due), None)
        advice = self._checks.everything
        return NvidiaCard(read(nvml, handle, index, self._sysfs, node, advice=advice), handle)

    def _completed(self, look: NvidiaCard) -> NvidiaCard:
        """Fill what a sick card no longer tells from what it told before."""
        known = self._cards.get(look.uuid)
        if known is None:
            return look
        device = completed(look.device, known.device) if look.device.fault else look.device
        return NvidiaCard(device, look.handle, known.slices)

    def _named(self, look: NvidiaCard, found: Mapping[str, NvidiaCard]) -> NvidiaCard | None:
        """Name a card that no longer tells its UUID, by its PCI address or its index; None if none fits.

        One that never told it to this process may be known to the agent, from another or from its checkpoint.
        """
        index, pci = look.device.index, look.device.pci
        for known in self._cards.values():
            same = known.device.pci == pci if pci else known.device.index == index
            if same and known.uuid not in found:
                device = completed(look.device, known.device)
                return NvidiaCard(device, look.handle or known.handle, known.slices)
        return None
