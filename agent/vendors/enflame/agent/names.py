"""The names of Enflame's resources and annotations, also under the brand of another seller of the cards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Kinds that `Brand` makes of the kind of a whole card, which is one of these groups.
_MADE = re.compile(r"(?:shared|drs)-(.+)|(.+)-(?:memory|count|shared-capacity|drs-capacity)")


@dataclass(frozen=True, slots=True)
class Brand:
    """The brand of the names: `domain/kind` is the whole card, such as `enflame.com/gcu`.

    Resources have domain and kind as they are. An annotation is Enflame's with both replaced, first the
    domain, then the kind, everywhere in the text, also in the domain: annotations of gcucloud.com/card begin
    with cardcloud.com/card. GCUShare's scheduler makes them the same way.
    Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go, ResourceName and
    ReplaceResource (ee04a65).
    """

    domain: str = "enflame.com"
    kind: str = "gcu"

    def key(self, enflames: str) -> str:
        """The brand's annotation in place of one of Enflame's, such as `enflame.com/gcu-assigned`."""
        return enflames.replace("enflame.com", self.domain).replace("gcu", self.kind)

    @property
    def keys(self) -> str:
        """The beginning of all annotations but `assigned-containers`."""
        return self.key("enflame.com/")

    @property
    def whole(self) -> str:
        return f"{self.domain}/{self.kind}"

    @property
    def memory(self) -> str:
        """The resource of units of memory, which GCUShare's first generation counts."""
        return f"{self.whole}-memory"

    @property
    def shared(self) -> str:
        """The resource of shares without isolation, which GCUShare counts since its second generation."""
        return f"{self.domain}/shared-{self.kind}"

    @property
    def drs(self) -> str:
        """The resource of slices that the hardware makes."""
        return f"{self.domain}/drs-{self.kind}"

    @property
    def terms(self) -> Mapping[str, str]:
        """The names that GCUShare's dialects need."""
        return {
            "domain": self.domain,
            "kind": self.kind,
            "memory": self.memory,
            "shared": self.shared,
            "drs": self.drs,
        }

    @property
    def count(self) -> str:
        """The resource that counts the shared cards; schedulers divide by the count."""
        return f"{self.whole}-count"

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a Node may have."""
        capacities = (self.key(f"enflame.com/gcu-{it}-capacity") for it in ("shared", "drs"))
        return (self.whole, self.memory, self.shared, self.drs, self.count, *capacities)

    @property
    def origin(self) -> str:
        """The whole card's name from which this name was made; empty where this is a whole card's name."""
        made = _MADE.fullmatch(self.kind)
        return f"{self.domain}/{made[1] or made[2]}" if made else ""


ENFLAME = Brand()
