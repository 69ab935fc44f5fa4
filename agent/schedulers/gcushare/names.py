"""What GCUShare calls a vendor's resources and annotations, in the terms of who sells the cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """`domain/kind` is the whole card, as enflame.com/gcu; `memory`, `shared` and `drs` are resources: units
    of memory, slices that nothing keeps apart, and slices that the hardware makes.

    Annotations are made of Enflame's by putting domain and kind in, first the domain, then the kind, wherever
    they stand, also in the domain: those of gcucloud.com/card begin with cardcloud.com/card.
    Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go (ee04a65).
    """

    domain: str
    kind: str
    memory: str
    shared: str
    drs: str

    @classmethod
    def of(cls, terms: Mapping[str, str]) -> ResourceNames:
        """The names in a vendor's terms.

        Raises:
            ValueError: One is missing, or unknown.
        """
        wanted = {it.name for it in fields(cls)}
        if terms.keys() != wanted:
            raise ValueError(f"the terms are {sorted(terms)}, needed are {sorted(wanted)}")
        return cls(**terms)

    def key(self, enflames: str) -> str:
        """The annotation that stands for this one of Enflame's: `enflame.com/gcu-assigned`."""
        return enflames.replace("enflame.com", self.domain).replace("gcu", self.kind)

    @property
    def keys(self) -> str:
        """How all annotations but `assigned-containers` begin."""
        return self.key("enflame.com/")
