"""Resets and suspensions of cards that the driver has announced and not yet ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.vendor_api.backend import Fault

#: Seconds after which a disturbance ends without an event of the driver.
PATIENCE = 300.0


@dataclass(slots=True)
class Disturbances:
    """The disturbances by uuid of the card. Times are seconds of a monotonic clock."""

    _begun: dict[str, tuple[Fault, float]] = field(default_factory=dict)
    #: Cards with a finished reset that have not been read without a fault since.
    due: set[str] = field(default_factory=set)

    def begin(self, uuid: str, fault: Fault, now: float) -> None:
        self._begun[uuid] = fault, now
        self.due.discard(uuid)

    def end(self, uuid: str) -> None:
        self._begun.pop(uuid, None)
        self.due.add(uuid)

    def proven(self, uuid: str) -> None:
        """The card was read without a fault after its reset."""
        self.due.discard(uuid)

    def fault(self, uuid: str, now: float) -> Fault | None:
        """The disturbance of a card; None if there is none, or if it is older than PATIENCE."""
        fault, since = self._begun.get(uuid, (None, 0.0))
        if fault is not None and now - since >= PATIENCE:
            del self._begun[uuid]
            return None
        return fault
