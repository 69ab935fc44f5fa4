"""NVIDIA's backend: cards, MIG devices, links, health and use, all through NVML."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import (
    Backend,
    BackendUnavailable,
    Device,
    HealthEvent,
    Link,
    ProcessUsage,
    Usage,
)
from agent.vendors.common.device_fields import completed
from agent.vendors.nvidia.shared.error_checks import Checks

from . import cdi_spec, device_nodes, faults, library
from . import links as topology
from .cards import NvidiaCard, driver_attributes, read
from .driver_events import NvmlEventWatch
from .mig import MigReader
from .usage_readers import UsageReaders

#: Models that only drive a display and cannot compute.
SKIPPED = frozenset({"DGX Display", "NVIDIA DGX Display"})

CLOSE_PATIENCE = 0.2  # seconds that `close` gives to a wait for events, and to a sample


@dataclass(frozen=True, slots=True)
class NvmlSession:
    """The parts that exist between `open` and `close`. `nvml` is the module pynvml."""

    nvml: Any
    mig: MigReader
    watch: NvmlEventWatch
    readers: UsageReaders
    #: Attributes that are the same for all cards: versions of driver and CUDA.
    driver: Mapping[str, str]


class NvmlBackend(Backend):
    """Keeps one NVML session from `open` to `close`: to start a session takes up to seconds for each card."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._sysfs = Path(settings.get("sysfs") or "/sys")
        self._procfs = Path(settings.get("procfs") or "/proc")
        self._checks = Checks.read(settings)
        self._counts_slices = (settings.get("migStrategy") or "none") != "none"
        self._session: NvmlSession | None = None
        self._cards: dict[str, NvidiaCard] = {}
        #: Cards without a known UUID, by index.
        self._nameless: dict[int, Device] = {}
        self._watching, self._sampling = threading.Lock(), threading.Lock()

    def open(self) -> None:
        nvml = library.start(self.settings)
        watch = NvmlEventWatch(nvml, self._checks, self._counts_slices)
        mig, readers = MigReader(nvml, self._procfs), UsageReaders(nvml, watch.errors)
        self._session = NvmlSession(nvml, mig, watch, readers, driver_attributes(nvml))

    def close(self) -> None:
        if self._session is None:
            return
        session, self._session = self._session, None
        # The cards stay known, so that a card that is lost in the next session still has its UUID.
        self._cards = {uuid: replace(card, handle=None) for uuid, card in self._cards.items()}
        # NVML cannot be shut down during a wait for events, or a sample. Then the process ends the session.
        with ExitStack() as held:
            for calls in (self._watching, self._sampling):
                if not calls.acquire(timeout=CLOSE_PATIENCE):
                    return
                held.callback(calls.release)
            session.watch.close()
            session.readers.close()
            session.nvml.nvmlShutdown()

    def discover(self) -> Sequence[Device]:
        session = self._opened()
        node = {
            **session.driver,
            **device_nodes.attributes(self.settings),
            **cdi_spec.attributes(self.settings),
        }
        read = [self._read(session.nvml, node, index) for index in range(self._count(session.nvml))]
        read = [card for card in read if card.device.model not in SKIPPED]
        cards = {card.uuid: self._completed(card) for card in read if card.uuid}
        returned = [uuid for uuid, card in cards.items() if card.device.index in self._nameless]
        nameless: dict[int, Device] = {}
        for card in read:
            named = None if card.uuid else self._named(card, cards)
            if named is not None:
                cards[named.uuid] = named
            elif not card.uuid:
                index = card.device.index
                nameless[index] = replace(card.device, uuid=f"nvidia-nameless-{index}", nameless=True)
        cards = {uuid: replace(card, slices=session.mig.slices(card)) for uuid, card in cards.items()}
        self._cards, self._nameless = cards, nameless
        session.watch.watch_cards(cards, returned)
        return sorted([*self._devices(), *nameless.values()], key=lambda device: device.index)

    def links(self, uuid: str) -> Sequence[Link]:
        card = self._cards.get(uuid)
        return () if card is None else topology.links(self._opened().nvml, card, self._cards)

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        with self._watching:
            return self._opened().watch.next_events(timeout)

    def usage(self) -> Sequence[Usage]:
        with self._sampling:
            return self._opened().readers.usage.read(self._cards.values())

    def processes(self) -> Sequence[ProcessUsage]:
        with self._sampling:
            return self._opened().readers.processes.read(self._cards.values())

    def cdi(self) -> Mapping[str, str]:
        return cdi_spec.specs(self.settings, self._devices())

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

    def _read(self, nvml: Any, node: Mapping[str, str], index: int) -> NvidiaCard:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            fault = faults.reading(nvml, error)
            due = faults.recovery_due(fault, None)
            return NvidiaCard(Device("", index, attributes=node, fault=fault, recovery_due=due), None)
        advice = self._checks.everything
        return NvidiaCard(read(nvml, handle, index, self._sysfs, node, advice=advice), handle)

    def _completed(self, card: NvidiaCard) -> NvidiaCard:
        """Add the known slices to a card, and fill its gaps from the last discovery if it has a fault."""
        known = self._cards.get(card.uuid)
        if known is None:
            return card
        device = completed(card.device, known.device) if card.device.fault else card.device
        return NvidiaCard(device, card.handle, known.slices)

    def _named(self, card: NvidiaCard, named: Mapping[str, NvidiaCard]) -> NvidiaCard | None:
        """Complete a card without a readable UUID from the last discovery; None if no known card fits.

        The cards are the same if they have the same PCI address, or the same index if the address is not
        readable. `named` are the cards of this discovery by UUID. A card without a known UUID in this process
        may still be known to the agent, from an earlier process or from the checkpoint.
        """
        index, pci = card.device.index, card.device.pci
        for known in self._cards.values():
            same = known.device.pci == pci if pci else known.device.index == index
            if same and known.uuid not in named:
                device = completed(card.device, known.device)
                return NvidiaCard(device, card.handle or known.handle, known.slices)
        return None
