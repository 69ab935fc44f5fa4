"""Watches the cards' health: NVML's events, and the recovery action that the driver asks for."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import Fault, HealthEvent, Proof
from agent.vendors.nvidia import xid
from agent.vendors.nvidia.error_checks import Checks

from . import faults, mig
from .cards import NvidiaCard, address


class WatchFailed(Exception):
    """NVML refuses to wait for events. The next wait starts with a new event set."""


class NvmlEventWatch:
    """The cards under watch. `cards` comes from the thread that discovers; all else belongs to the other.

    `counts_slices` says whether the kubelet counts MIG devices, or cards that have some as whole ones.
    """

    def __init__(self, nvml: Any, checks: Checks, counts_slices: bool) -> None:
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
        # Cards whose driver reports no errors, and devices of which it was said that nothing watches them.
        self._unmonitored: set[str] = set()
        self._unwatched: set[str] = set()
        self._troubled: set[str] = set()
        # Cards of which the driver said that they need something, and what was last said of it. Only from
        # here leads a way to the proof of a reset: a card that looks well after an XID proves nothing.
        self._due: dict[str, Fault | None] = {}
        # Faults in a GPU and compute instance of a card that no MIG device was in, and the list of that time.
        self._unplaced: dict[tuple[str, int, int, Fault], Mapping[str, NvidiaCard]] = {}
        self._known: Mapping[str, NvidiaCard] = {}

    def put(self, cards: Mapping[str, NvidiaCard], returned: Iterable[str] = ()) -> None:
        """Watch these cards from now on. Those that returned may bring the proof that a fault is over."""
        with self._changed:
            self._cards = cards
            self._returned |= frozenset(returned)
            self._changed.notify_all()

    def news(self, timeout: float) -> list[HealthEvent]:
        """Wait for news of the cards.

        Raises:
            WatchFailed: NVML refuses to wait.
        """
        cards = self._current(timeout)
        if not cards:
            return []
        if self._checks.nothing:
            return [*self._say_unwatched(cards), *self._suspects(cards)] or self._idle(cards, timeout)
        if self._set is not None and self._is_outdated(cards):
            return self._drain(cards)
        refused = self._refused
        events = [*self._place(cards), *self._register(cards), *self._say_unwatched(cards)]
        if not events and self._refused == refused:
            events = self._wait_on(cards, timeout)
        # A card that cannot be watched is said to be so again and again, or clean polls would acquit it.
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

    def _say_unwatched(self, cards: Mapping[str, NvidiaCard]) -> Iterator[HealthEvent]:
        """Say which devices nothing watches, and which of them something watches now; each once."""
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
        """Whether a card of the set is gone or has another handle: NVML takes nothing out of a set."""
        return any(
            uuid not in cards or cards[uuid].address != known for uuid, known in self._registered.items()
        )

    def _drain(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        events = []
        with contextlib.suppress(WatchFailed):
            while (data := self._take(0)) is not None:
                events += self._meaning(cards, data)
        self.close()
        return events

    def _drop(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # it may be broken, that is why it goes
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
                return self._say(card.uuid, faults.LOST)
            self._refused[card.uuid] = Fault("event-registration", f"nvmlDeviceRegisterEvents: {error}")
            return []
        self._registered[card.uuid] = card.address
        if watched:
            self._unmonitored.discard(card.uuid)
        else:
            self._unmonitored.add(card.uuid)
        return self._look(card)

    def _subscribe(self, card: NvidiaCard) -> bool:
        """Ask for the card's events; False where its driver has none."""
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
            # One lost card fails the wait for all. Where it can be named, the others are watched without it.
            events = [*self._register(cards), *self._say_unwatched(cards)]
            if not events:
                raise
            return events

    def _wait(self, cards: Mapping[str, NvidiaCard], timeout: float) -> list[HealthEvent]:
        data = self._take(timeout)
        events = [] if data is None else self._meaning(cards, data)
        return events + self._suspects(cards)

    def _suspects(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        """What the driver says now of the cards that had something."""
        suspects = sorted((self._troubled | self._due.keys()) & cards.keys())
        return [event for uuid in suspects for event in self._look(cards[uuid])]

    def _take(self, timeout: float) -> Any:
        try:
            return self._nvml.nvmlEventSetWait_v2(self._set, math.ceil(timeout * 1000))
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                return None
            self._drop()
            raise WatchFailed(f"nvmlEventSetWait: {error}") from error

    def _meaning(self, cards: Mapping[str, NvidiaCard], data: Any) -> list[HealthEvent]:
        card = self._card(cards, data.device)
        if card is None:
            return []
        nvml = self._nvml
        if data.eventType & nvml.nvmlEventTypeXidCriticalError:
            return self._xid(cards, card, data)
        if data.eventType & nvml.nvmlEventTypeGpuRecoveryAction:
            return self._look(card, changed=True)
        if data.eventType & nvml.nvmlEventTypeGpuUnavailableError:
            return self._trouble(card, (card.uuid,), faults.UNAVAILABLE)
        if data.eventType & nvml.nvmlEventTypeDoubleBitEccError:
            return self._blame(cards, card, data, faults.DOUBLE_BIT_ECC)
        return []

    def _card(self, cards: Mapping[str, NvidiaCard], handle: Any) -> NvidiaCard | None:
        """The card of an event. By handle first: a card that fell off the bus no longer tells its UUID."""
        where = address(handle)
        for card in cards.values():
            if card.address == where:
                return card
        try:
            return cards.get(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:
            return None

    def _xid(self, cards: Mapping[str, NvidiaCard], card: NvidiaCard, data: Any) -> list[HealthEvent]:
        code = int(data.eventData)
        if self._checks.ignores(code):
            return []
        if code != xid.RECOVERY_ACTION_CHANGED:
            return self._blame(cards, card, data, xid.fault(code))
        try:
            says = faults.recovery_action(self._nvml, card.handle) is not None
        except self._nvml.NVMLError:
            says = True
        return self._look(card, changed=True) if says else self._trouble(card, (card.uuid,), xid.fault(code))

    def _blame(
        self, cards: Mapping[str, NvidiaCard], card: NvidiaCard, data: Any, fault: Fault
    ) -> list[HealthEvent]:
        """Whose fault it is: that of the MIG devices in the event's place, where they are counted.

        A whole card is one device to the kubelet, whatever was made of it (k8s-device-plugin v0.20,
        internal/rm/health.go, looks at the place for MIG devices alone).
        """
        gi, ci = data.gpuInstanceId, data.computeInstanceId
        if not self._counts_slices or gi == mig.NOWHERE:
            return self._trouble(card, (card.uuid,), fault)
        meant = mig.hit(card.slices, gi, ci)
        if not meant:
            # It may have been made since the last list. The next one shows it within seconds; to name the
            # card now would take all its MIG devices for good, though the error is that of one.
            self._unplaced[card.uuid, gi, ci, fault] = cards
        return self._trouble(card, meant, fault) if meant else []

    def _place(self, cards: Mapping[str, NvidiaCard]) -> list[HealthEvent]:
        """The faults that a newer list can place; the card's where no MIG device is there still."""
        placed = [it for it, before in self._unplaced.items() if before is not cards and it[0] in cards]
        events = []
        for it in placed:
            del self._unplaced[it]
            uuid, gi, ci, fault = it
            events += self._trouble(cards[uuid], mig.hit(cards[uuid].slices, gi, ci) or (uuid,), fault)
        return events

    def _trouble(self, card: NvidiaCard, meant: Sequence[str], fault: Fault) -> list[HealthEvent]:
        self._troubled.add(card.uuid)
        return [HealthEvent(uuid, fault) for uuid in meant]

    # What the driver asks for

    def _look(self, card: NvidiaCard, *, changed: bool = False) -> list[HealthEvent]:
        """Ask which recovery action is due; `changed` when the driver just said that it is another one."""
        if not self._checks.everything and card.uuid not in self._troubled | self._due.keys():
            return []
        try:
            action = faults.recovery_action(self._nvml, card.handle)
        except self._nvml.NVMLError:
            return self._say(card.uuid, faults.LOST)
        if action is None:
            return []
        if action:
            return self._say(card.uuid, faults.recovery(action))
        if card.uuid in self._due or (changed and card.uuid in self._troubled):
            self._due.pop(card.uuid, None)
            self._troubled.discard(card.uuid)
            return [HealthEvent(card.uuid, None, Proof.RESET)]
        return []

    def _say(self, uuid: str, fault: Fault) -> list[HealthEvent]:
        """Tell of a fault that the driver will tell the end of; once."""
        if fault is faults.LOST:
            self._registered.pop(uuid, None)  # what comes back is registered anew
        if self._due.get(uuid) == fault:
            return []
        self._due[uuid] = fault
        return [HealthEvent(uuid, fault, recovery_due=True)]
