"""What Enflame calls its resources and annotations, and what others make of it who sell its cards."""

from __future__ import annotations

from dataclasses import dataclass


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


ENFLAME = Brand()
