"""NVIDIA's half in the child process: cards, their links and their health, all through NVML."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.core.vendor import Backend, BackendUnavailable, Device, HealthEvent, Link

from . import faults, library, topology, xid
from .cards import Card, completed, driver_attributes, read
from .watch import Watch

#: Products that drive a display and compute nothing.
SKIPPED = frozenset({"DGX Display", "NVIDIA DGX Display"})

CLOSE_PATIENCE = 0.2  # seconds to let a wait for events end


class NvmlBackend(Backend):
    """One NVML session for life: starting one costs up to seconds per card."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._sysfs = Path(settings.get("sysfs") or "/sys")
        self._nvml: Any = None
        self._driver: dict[str, str] = {}
        self._cards: dict[str, Card] = {}
        self._left_out: set[int] = set()
        self._watch: Watch | None = None
        self._watching = threading.Lock()

    def open(self) -> None:
        self._nvml = library.start(self.settings.get("library") or "")
        self._driver = driver_attributes(self._nvml)
        ignored = self.settings.get("ignoreXids")
        self._watch = Watch(self._nvml, xid.IGNORED if ignored is None else ignored)

    def close(self) -> None:
        if self._watch is None:
            return
        watch, self._watch = self._watch, None
        # The cards stay known, so that one that the next session finds lost still has its name.
        self._cards = {uuid: replace(card, handle=None) for uuid, card in self._cards.items()}
        # Under a wait for events NVML can not be shut down; then the session ends with the process.
        if self._watching.acquire(timeout=CLOSE_PATIENCE):
            watch.close()
            self._nvml.nvmlShutdown()
            self._watching.release()

    def discover(self) -> Sequence[Device]:
        watch = self._opened()
        looks = [self._look(index) for index in range(self._count())]
        looks = [look for look in looks if look.device.model not in SKIPPED]
        found = {look.uuid: self._completed(look) for look in looks if look.uuid}
        for look in looks:
            named = None if look.uuid else self._named(look, found)
            if named is not None:
                found[named.uuid] = named
        self._cards = found
        watch.put(found)
        return sorted((card.device for card in found.values()), key=lambda device: device.index)

    def links(self, uuid: str) -> Sequence[Link]:
        card = self._cards.get(uuid)
        return topology.links(self._nvml, card, self._cards) if card is not None else ()

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        with self._watching:
            return self._opened().news(timeout)

    def _opened(self) -> Watch:
        if self._watch is None:
            raise BackendUnavailable("not-open", "open() comes first")
        return self._watch

    def _count(self) -> int:
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise library.unavailable(self._nvml, error, otherwise="nvml-failed") from error
        if not count and self._cards:
            raise BackendUnavailable("no-devices", f"NVML counts no cards, there were {len(self._cards)}")
        return count

    def _look(self, index: int) -> Card:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            return Card(Device(uuid="", index=index, fault=faults.reading(self._nvml, error)), None)
        return Card(read(self._nvml, handle, index, self._sysfs, self._driver), handle)

    def _completed(self, look: Card) -> Card:
        """Fill what a sick card no longer tells from what it told before."""
        known = self._cards.get(look.uuid)
        if look.device.fault is None or known is None:
            return look
        return Card(completed(look.device, known.device), look.handle)

    def _named(self, look: Card, found: Mapping[str, Card]) -> Card | None:
        """Name a card that no longer tells its UUID, by its PCI address or its index; None if none fits."""
        index, pci = look.device.index, look.device.pci
        for known in self._cards.values():
            same = known.device.pci == pci if pci else known.device.index == index
            if same and known.uuid not in found:
                return Card(completed(look.device, known.device), look.handle or known.handle)
        self._leave_out(look.device)
        return None

    def _leave_out(self, device: Device) -> None:
        if device.index in self._left_out:
            return
        self._left_out.add(device.index)
        why = device.fault.message if device.fault else "it has no UUID"
        sys.stderr.write(f"nvidia: card {device.index} is left out, its UUID was never read: {why}\n")
