"""What the driver told it does to a card, until it told that this is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.vendor_api.backend import Fault

#: Seconds after which a card that reads well is believed, though nobody told that its reset is over.
PATIENCE = 300.0


@dataclass(slots=True)
class Disturbances:
    """Times are of a clock that only goes forward."""

    _begun: dict[str, tuple[Fault, float]] = field(default_factory=dict)
    #: Cards whose reset is over, and that have not read well since.
    due: set[str] = field(default_factory=set)

    def begin(self, uuid: str, fault: Fault, now: float) -> None:
        self._begun[uuid] = fault, now
        self.due.discard(uuid)

    def end(self, uuid: str) -> None:
        self._begun.pop(uuid, None)
        self.due.add(uuid)

    def proven(self, uuid: str) -> None:
        """The card read well after its reset."""
        self.due.discard(uuid)

    def fault(self, uuid: str, now: float) -> Fault | None:
        fault, since = self._begun.get(uuid, (None, 0.0))
        if fault is not None and now - since >= PATIENCE:
            del self._begun[uuid]
            return None
        return fault
