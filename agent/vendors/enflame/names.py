"""What Enflame calls its resources and annotations, and what others make of it who sell its cards."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Kinds that `Brand` makes of a whole card's, which is one of these groups.
_MADE = re.compile(r"(?:shared|drs)-(.+)|(.+)-(?:memory|count|shared-capacity|drs-capacity)")


@dataclass(frozen=True, slots=True)
class Brand:
    """Whose names are used: `domain/kind` is the whole card, as `enflame.com/gcu`.

    Others' are made of Enflame's by putting theirs in, first the domain, then the kind, wherever they stand.
    Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go (ee04a65).
    """

    domain: str = "enflame.com"
    kind: str = "gcu"

    def name(self, enflames: str) -> str:
        """What stands for this name of Enflame's: `enflame.com/shared-gcu`."""
        return enflames.replace("enflame.com", self.domain).replace("gcu", self.kind)

    @property
    def whole(self) -> str:
        return self.name("enflame.com/gcu")

    @property
    def memory(self) -> str:
        """Units of memory, as GCUShare counted them in its first generation."""
        return self.name("enflame.com/gcu-memory")

    @property
    def shared(self) -> str:
        """Slices of a card that nothing keeps apart, as GCUShare counts since its second generation."""
        return self.name("enflame.com/shared-gcu")

    @property
    def drs(self) -> str:
        """Slices that the hardware makes."""
        return self.name("enflame.com/drs-gcu")

    @property
    def count(self) -> str:
        """How many cards are shared, as the agent writes it to the Node."""
        return self.name("enflame.com/gcu-count")

    @property
    def names(self) -> tuple[str, ...]:
        """All that a node may bear."""
        capacities = (self.name(f"enflame.com/gcu-{it}-capacity") for it in ("shared", "drs"))
        return (self.whole, self.memory, self.shared, self.drs, self.count, *capacities)

    @property
    def origin(self) -> str:
        """The whole card's name of which this one is made; empty where it is a whole card's itself."""
        made = _MADE.fullmatch(self.kind)
        return f"{self.domain}/{made[1] or made[2]}" if made else ""


ENFLAME = Brand()
