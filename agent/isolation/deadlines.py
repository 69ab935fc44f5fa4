"""How long a vendor's process may take for a call."""

from __future__ import annotations

from msgspec import Struct

#: Calls after which containers may need other CDI specs.
MAKING = frozenset({"prepare", "release"})


class Deadlines(Struct, frozen=True):
    """Seconds for each kind of call; a call that takes longer costs the process."""

    open: float = 30.0
    discover: float = 10.0
    call: float = 2.0
    #: For a sample of use. Beside the calls, three late samples in a row end sampling, and cost no more.
    sample: float = 2.0
    prepare: float = 8.0  # for prepare and release, which change hardware
    events: float = 5.0  # of one wait for events; an empty list is an answer too
    close: float = 0.5
    kill: float = 5.0  # after which a killed process that still runs is reported

    def of(self, call: str) -> float:
        if call in MAKING:
            return self.prepare
        if call == "sample":
            return self.sample
        # CDI specs are made from the driver's files, and the disk may be slow.
        return self.discover if call in ("discover", "cdi") else self.call
