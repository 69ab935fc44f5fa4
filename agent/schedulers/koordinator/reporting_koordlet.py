"""Decides from the Device whether a koordlet counts as the reporter of this node's cards.

A koordlet compares the Device with its sources every 3 s (-node-topology-sync-interval) and writes
differences. So a koordlet that works corrects the Device within seconds, and one that has not done so for a
minute does not work. A running pod proves nothing, and its last write may be days old.
Sources: koordinator pkg/koordlet/statesinformer/impl/states_informer.go, states_device_linux.go at a7a1b76b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds for which the Device may differ from a koordlet's sources, and the longest such time. The time
#: grows where a koordlet undoes the agent's write at once: it works, with sources unknown to the agent.
PATIENCE, LONGEST = 60.0, 600.0
#: Seconds within which a working koordlet undoes the agent's write, after the koordlet stopped counting.
AT_ONCE = 15.0


@dataclass(frozen=True, slots=True)
class KoordletObservation:
    """What one look at the API server shows of a koordlet."""

    #: Whether a pod of a reporting koordlet is on the node.
    is_here: bool = False
    #: A value that differs after each of koordlet's writes of the list; None while the list is another's.
    written: object = None
    #: Whether the Device shows what its sources say; None while unknown.
    shows: bool | None = None


@dataclass(frozen=True, slots=True)
class KoordletStanding:
    """Whether a koordlet counts. Times are seconds of a clock that never goes back."""

    counts: bool = False
    #: Start of the difference between Device and sources, and the seconds for which it may last.
    differs: float | None = None
    patience: float = PATIENCE
    #: Time at which the koordlet stopped counting. Only a new write of its own makes it count again.
    stopped: float | None = None
    #: `KoordletObservation.written` of the last look.
    written: object = None

    def after(self, look: KoordletObservation, now: float) -> KoordletStanding:
        """The standing after this look."""
        if self.stopped is not None:
            if look.written in (None, self.written):
                return KoordletStanding(False, None, self.patience, self.stopped, look.written)
            undone = now - self.stopped < AT_ONCE
            patience = min(2 * self.patience, LONGEST) if undone else PATIENCE
            return KoordletStanding(patience=patience).after(look, now)
        if not look.is_here and look.written is None:
            return KoordletStanding()
        if look.shows is not False:
            patience = PATIENCE if look.shows else self.patience
            return KoordletStanding(True, None, patience, None, look.written)
        differs = now if self.differs is None else self.differs
        if now - differs < self.patience:
            return KoordletStanding(True, differs, self.patience, None, look.written)
        return KoordletStanding(False, None, self.patience, now, look.written)

    def ends(self, now: float) -> float:
        """Seconds until the koordlet stops counting, if nothing changes; infinite if it does not stop."""
        return math.inf if self.differs is None else max(0.0, self.differs + self.patience - now)
