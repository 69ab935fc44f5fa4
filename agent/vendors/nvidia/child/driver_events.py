"""Watches the cards' health: NVML's events, and the recovery action that the driver asks for."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import Fault, HealthEvent, Proof
from agent.vendors.nvidia.shared import xid
from agent.vendors.nvidia.shared.error_checks import Checks

from . import faults, mig
from .cards import NvidiaCard, address
from .driver_errors import DriverErrors


class WatchFailed(Exception):
    """Raised when NVML refuses to wait for events. The next wait starts with a new event set."""


class NvmlEventWatch:
    """Watches cards for health events.

    The thread of `discover` calls `watch_cards`. All other methods belong to the thread of `health_events`.
    `counts_slices`: MIG devices are devices of their own. Otherwise a card with MIG devices is one device.
    """

    def __init__(self, nvml: Any, checks: Checks, counts_slices: bool) -> None:
        #: All XIDs that came, also those that say nothing about health.
        self.errors = DriverErrors()
        self._nvml = nvml
        self._checks = checks
        self._counts_slices = counts_slices
        self._wanted = nvml.nvmlEventTypeXidCriticalError
        if checks.everything:
            self._wanted |= (
                nvml.nvmlEventTypeDoubleBitEccError
                | nvml.nvmlEventTypeGpuUnavailableError
                | nvml.nvmlEventTypeGpuRecoveryAction
            )
        self._cards: Mapping[str, NvidiaCard] = {}
        self._returned: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._set: Any = None
        self._registered: dict[str, int | None] = {}
        self._refused: dict[str, Fault] = {}
        # Cards with a driver that reports no errors, and devices that were reported as unwatched.
        self._unmonitored: set[str] = set()
        self._unwatched: set[str] = set()
        # Cards with a fault since the last recovery.
        self._troubled: set[str] = set()
        # Cards that need a recovery action, and the fault that was last reported for it. Only these cards can
        # prove a reset: a card without an action after an XID proves nothing.
        self._due: dict[str, Fault | None] = {}
        # Faults of a GPU and compute instance without a known MIG device, and the cards of that time.
        self._unplaced: dict[tuple[str, int, int, Fault], Mapping[str, NvidiaCard]] = {}
        self._known: Mapping[str, NvidiaCard] = {}

    def watch_cards(self, cards: Mapping[str, NvidiaCard], returned: Iterable[str] = ()) -> None:
        """Watch these cards from now on. The ones that `returned` may prove that a fault is over."""
        with self._changed:
            self._cards = cards
            self._returned |= frozenset(returned)
            self._changed.notify_all()

    def next_events(self, timeout: float) -> list[HealthEvent]:
        """Wait for health events, for at most `timeout` seconds.

        Raises:
            WatchFailed: NVML refuses to wait.
        """
        cards = self._current(timeout)
        if not cards:
            return []
        if self._checks.nothing:
            return [*self._unwatched_changes(cards), *self._suspects(cards)] or self._idle(cards, timeout)
        if self._set is not None and self._is_outdated(cards):
            return self._drain(cards)
        refused = self._refused
        events = [*self._place_faults(cards), *self._register(cards), *self._unwatched_changes(cards)]
        if not events and self._refused == refused:
            events = self._wait_on(cards, timeout)
        # A card that cannot be watched is reported each time, or clean polls would end its fault.
        return [*events, *(HealthEvent(uuid, fault) for uuid, fault in self._refused.items())]

    def close(self) -> None:
        if self._set is not None:
            self._drop()

    def _current(self, timeout: float) -> Mapping[str, NvidiaCard]:
        with self._changed:
            self._changed.wait_for(lambda: self._cards, timeout)
            cards = self._cards
            returned, self._returned = self._returned, frozenset()
        if cards is not self._known:
            self._known = cards
            for card in cards.values():
                if card.uuid in returned or (card.device.fault and card.device.fault.cleared_by):
                    self._due.setdefault(card.uuid, None)
        return cards

    def _idle(self, cards: Mapping[str, NvidiaCard], timeout: float) -> list[HealthEvent]:
        with self._changed:
            self._changed.wait_for(lambda: self._cards is not cards, timeout)
        return []

    def _unwatched_changes(self, cards: Mapping[str, NvidiaCard]) -> Iterator[HealthEvent]:
        """An event for each device that is no longer watched, and for each that is watched again."""
        of_cards = cards if self._checks.nothing else self._unmonitored & cards.keys()
        unwatched = {uuid for card in of_cards for uuid in cards[card].uuids}
        before, self._unwatched = self._unwatched, unwatched
        fault = faults.CHECKS_DISABLED if self._checks.nothing else faults.UNMONITORED
        for card in cards.values():
            for uuid in card.uuids:
                if (uuid in unwatched) != (uuid in before):
                    yield HealthEvent(uuid, fault if uuid in unwatched else None)

    # Registration

    def _is_outdated(self, cards: Mapping[str, NvidiaCard]) -> bool:
        """Whether a card of the event set is gone or has a new handle. NVML removes no card from a set."""
        return any(
            uuid not in cards or cards[uuid].address != known for uuid, known in self._registered.items()
        )

    def _drain(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        """Take the last events of the set, and free the set."""
        events = []
        with contextlib.suppress(WatchFailed):
            while (data := self._take(0)) is not None:
                events += self._health_events(cards, data)
        self.close()
        return events

    def _drop(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # the set may be broken
            self._nvml.nvmlEventSetFree(self._set)
        self._set = None
        self._registered = {}

    def _register(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        if self._set is None:
            try:
                self._set = self._nvml.nvmlEventSetCreate()
            except self._nvml.NVMLError as error:
                raise WatchFailed(f"nvmlEventSetCreate: {error}") from error
        self._refused = {}
        missing = [card for card in cards.values() if card.uuid not in self._registered]
        return [event for card in missing for event in self._add(card)]

    def _add(self, card: NvidiaCard) -> list[HealthEvent]:
        try:
            watched = self._subscribe(card)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                return self._due_fault(card.uuid, faults.LOST)
            self._refused[card.uuid] = Fault("event-registration", f"nvmlDeviceRegisterEvents: {error}")
            return []
        self._registered[card.uuid] = card.address
        if watched:
            self._unmonitored.discard(card.uuid)
        else:
            self._unmonitored.add(card.uuid)
        return self._read_action(card)

    def _subscribe(self, card: NvidiaCard) -> bool:
        """Register the card's events at the set; False if its driver has no events."""
        nvml = self._nvml
        try:
            types = nvml.nvmlDeviceGetSupportedEventTypes(card.handle) & self._wanted
            if not types & nvml.nvmlEventTypeXidCriticalError:
                return False
            nvml.nvmlDeviceRegisterEvents(card.handle, types, self._set)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
                raise
            return False
        return True

    # Events

    def _wait_on(self, cards: Mapping[str, NvidiaCard], timeout: float) -> list[HealthEvent]:
        try:
            return self._wait(cards, timeout)
        except WatchFailed:
            # One lost card fails the wait for all cards. If it is found, the others are watched without it.
            events = [*self._register(cards), *self._unwatched_changes(cards)]
            if not events:
                raise
            return events

    def _wait(self, cards: Mapping[str, NvidiaCard], timeout: float) -> list[HealthEvent]:
        data = self._take(timeout)
        events = [] if data is None else self._health_events(cards, data)
        return events + self._suspects(cards)

    def _suspects(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        """Read the recovery action of all cards with a fault or with an action."""
        suspects = sorted((self._troubled | self._due.keys()) & cards.keys())
        return [event for uuid in suspects for event in self._read_action(cards[uuid])]

    def _take(self, timeout: float) -> Any:
        try:
            return self._nvml.nvmlEventSetWait_v2(self._set, math.ceil(timeout * 1000))
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                return None
            self._drop()
            raise WatchFailed(f"nvmlEventSetWait: {error}") from error

    def _health_events(self, cards: Mapping[str, NvidiaCard], data: Any) -> list[HealthEvent]:
        card = self._card(cards, data.device)
        if card is None:
            return []
        nvml = self._nvml
        if data.eventType & nvml.nvmlEventTypeXidCriticalError:
            return self._xid_events(cards, card, data)
        if data.eventType & nvml.nvmlEventTypeGpuRecoveryAction:
            return self._read_action(card, changed=True)
        if data.eventType & nvml.nvmlEventTypeGpuUnavailableError:
            return self._trouble(card, (card.uuid,), faults.UNAVAILABLE)
        if data.eventType & nvml.nvmlEventTypeDoubleBitEccError:
            return self._fault_events(cards, card, data, faults.DOUBLE_BIT_ECC)
        return []

    def _card(self, cards: Mapping[str, NvidiaCard], handle: Any) -> NvidiaCard | None:
        """The card of an event, first by its handle: a card that fell off the bus has no readable UUID."""
        where = address(handle)
        for card in cards.values():
            if card.address == where:
                return card
        try:
            return cards.get(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:
            return None

    def _xid_events(self, cards: Mapping[str, NvidiaCard], card: NvidiaCard, data: Any) -> list[HealthEvent]:
        code = int(data.eventData)
        self.errors.count(card.uuid, code)
        if self._checks.ignores(code):
            return []
        if code != xid.RECOVERY_ACTION_CHANGED:
            return self._fault_events(cards, card, data, xid.fault(code))
        try:
            reports_action = faults.recovery_action(self._nvml, card.handle) is not None
        except self._nvml.NVMLError:
            reports_action = True
        if reports_action:
            return self._read_action(card, changed=True)
        return self._trouble(card, (card.uuid,), xid.fault(code))

    def _fault_events(
        self, cards: Mapping[str, NvidiaCard], card: NvidiaCard, data: Any, fault: Fault
    ) -> list[HealthEvent]:
        """The events for a fault: of the MIG devices that the driver's event names, or of the whole card.

        Without MIG devices as devices of their own, the fault is the card's (k8s-device-plugin v0.20,
        internal/rm/health.go, uses the instance IDs for MIG devices alone).
        """
        gi, ci = data.gpuInstanceId, data.computeInstanceId
        if not self._counts_slices or gi == mig.NOWHERE:
            return self._trouble(card, (card.uuid,), fault)
        affected = mig.at_instance(card.slices, gi, ci)
        if not affected:
            # The MIG device may be newer than the last discovery. The next one finds it within seconds. A
            # fault of the card now would make all its MIG devices unhealthy for the error of one.
            self._unplaced[card.uuid, gi, ci, fault] = cards
        return self._trouble(card, affected, fault) if affected else []

    def _place_faults(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        """The events for unplaced faults after a newer discovery: of the MIG device, or else of the card."""
        placed = [it for it, before in self._unplaced.items() if before is not cards and it[0] in cards]
        events = []
        for place in placed:
            del self._unplaced[place]
            uuid, gi, ci, fault = place
            affected = mig.at_instance(cards[uuid].slices, gi, ci) or (uuid,)
            events += self._trouble(cards[uuid], affected, fault)
        return events

    def _trouble(self, card: NvidiaCard, affected: Sequence[str], fault: Fault) -> list[HealthEvent]:
        self._troubled.add(card.uuid)
        return [HealthEvent(uuid, fault) for uuid in affected]

    # Recovery actions

    def _read_action(self, card: NvidiaCard, *, changed: bool = False) -> list[HealthEvent]:
        """Read the card's recovery action. `changed`: the driver just reported another action."""
        if not self._checks.everything and card.uuid not in self._troubled | self._due.keys():
            return []
        try:
            action = faults.recovery_action(self._nvml, card.handle)
        except self._nvml.NVMLError:
            return self._due_fault(card.uuid, faults.LOST)
        if action is None:
            return []
        if action:
            return self._due_fault(card.uuid, faults.recovery(action))
        if card.uuid in self._due or (changed and card.uuid in self._troubled):
            self._due.pop(card.uuid, None)
            self._troubled.discard(card.uuid)
            return [HealthEvent(card.uuid, None, Proof.RESET)]
        return []

    def _due_fault(self, uuid: str, fault: Fault) -> list[HealthEvent]:
        """Report a fault that the driver ends by its recovery action, if it was not reported before."""
        if fault is faults.LOST:
            self._registered.pop(uuid, None)  # a card that comes back is registered again
        if self._due.get(uuid) == fault:
            return []
        self._due[uuid] = fault
        return [HealthEvent(uuid, fault, recovery_due=True)]
