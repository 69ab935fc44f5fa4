"""Whether a koordlet counts as the one that reports this node's cards: by the Device, not by being there.

A koordlet compares the Device with what it knows every 3 s (-node-topology-sync-interval), and writes where
they differ. So one that works puts the Device right within seconds, and one that has not done so for a minute
does not work. Its pod proves nothing, nor does the time of its last write, which may be days ago.
Sources: koordinator pkg/koordlet/statesinformer/impl/states_informer.go, states_device_linux.go at a7a1b76b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds for which the Device may differ from what a koordlet's sources say, and how many at most where it
#: undoes at once what is written in its place: it works, and its sources are others than are known here.
PATIENCE, LONGEST = 60.0, 600.0
#: Seconds after it stopped counting in which it undoes what was written in its place, if it works.
AT_ONCE = 15.0


@dataclass(frozen=True, slots=True)
class KoordletObservation:
    """What one look at the API server shows of it."""

    #: Whether a pod of it is here that reports accelerators.
    is_here: bool = False
    #: What changes with each of its writes to the list of devices; None while that is not its own.
    written: object = None
    #: Whether the Device shows what its sources say; None while nobody knows.
    shows: bool | None = None


@dataclass(frozen=True, slots=True)
class KoordletStanding:
    """Whether it counts. Times are seconds of one clock that only goes on."""

    counts: bool = False
    #: Since when the Device differs, and for how long it may.
    differs: float | None = None
    patience: float = PATIENCE
    #: When it stopped counting. Then only a new write of its own makes it count again.
    stopped: float | None = None
    #: `KoordletObservation.written` of the last look.
    written: object = None

    def after(self, look: KoordletObservation, now: float) -> KoordletStanding:
        """How it stands after this look."""
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
        """Seconds until it counts no more if nothing changes; it may be never."""
        return math.inf if self.differs is None else max(0.0, self.differs + self.patience - now)
