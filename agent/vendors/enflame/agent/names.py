"""What Enflame calls its resources and annotations, and what others make of it who sell its cards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Kinds that `Brand` makes of a whole card's, which is one of these groups.
_MADE = re.compile(r"(?:shared|drs)-(.+)|(.+)-(?:memory|count|shared-capacity|drs-capacity)")


@dataclass(frozen=True, slots=True)
class Brand:
    """Whose names are used: `domain/kind` is the whole card, as `enflame.com/gcu`.

    Resources have domain and kind as they are. Annotations are made of Enflame's by putting theirs in, first
    the domain, then the kind, wherever they stand, also in the domain: those of gcucloud.com/card begin with
    cardcloud.com/card. So GCUShare's scheduler writes what is read here.
    Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go, ResourceName and
    ReplaceResource (ee04a65).
    """

    domain: str = "enflame.com"
    kind: str = "gcu"

    def key(self, enflames: str) -> str:
        """The annotation that stands for this one of Enflame's: `enflame.com/gcu-assigned`."""
        return self.domain_key(enflames).replace("gcu", self.kind)

    def domain_key(self, enflames: str) -> str:
        """The one with nothing but the domain put in, for a reader that looks for it so."""
        return enflames.replace("enflame.com", self.domain)

    @property
    def keys(self) -> str:
        """How all annotations but `assigned-containers` begin."""
        return self.key("enflame.com/")

    @property
    def whole(self) -> str:
        return f"{self.domain}/{self.kind}"

    @property
    def memory(self) -> str:
        """Units of memory, as GCUShare counted them in its first generation."""
        return f"{self.whole}-memory"

    @property
    def shared(self) -> str:
        """Slices of a card that nothing keeps apart, as GCUShare counts since its second generation."""
        return f"{self.domain}/shared-{self.kind}"

    @property
    def drs(self) -> str:
        """Slices that the hardware makes."""
        return f"{self.domain}/drs-{self.kind}"

    @property
    def terms(self) -> Mapping[str, str]:
        """What GCUShare's dialects need to know."""
        return {
            "domain": self.domain,
            "kind": self.kind,
            "memory": self.memory,
            "shared": self.shared,
            "drs": self.drs,
        }

    @property
    def count(self) -> str:
        """How many cards are shared, by which schedulers divide."""
        return f"{self.whole}-count"

    @property
    def names(self) -> tuple[str, ...]:
        """All that a node may bear."""
        capacities = (self.key(f"enflame.com/gcu-{it}-capacity") for it in ("shared", "drs"))
        return (self.whole, self.memory, self.shared, self.drs, self.count, *capacities)

    @property
    def origin(self) -> str:
        """The whole card's name of which this one is made; empty where it is a whole card's itself."""
        made = _MADE.fullmatch(self.kind)
        return f"{self.domain}/{made[1] or made[2]}" if made else ""


ENFLAME = Brand()
