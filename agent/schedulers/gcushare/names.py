"""GCUShare's names of resources and annotations, for Enflame's brand or for another brand of the cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """`domain/kind` is the whole card, as enflame.com/gcu. `memory`, `shared` and `drs` are resources: units
    of memory, slices without isolation, and slices that the hardware makes.

    An annotation's key is Enflame's key with the domain replaced first and the kind after it, everywhere in
    the key, also in the domain: keys of gcucloud.com/card begin with cardcloud.com/card.
    Source: EnflameTechnology/gcushare, gcushare-device-plugin/pkg/config/config.go (ee04a65).
    """

    domain: str
    kind: str
    memory: str
    shared: str
    drs: str

    @classmethod
    def of(cls, terms: Mapping[str, str]) -> ResourceNames:
        """The names from a vendor's terms.

        Raises:
            ValueError: A term is missing, or unknown.
        """
        wanted = {it.name for it in fields(cls)}
        if terms.keys() != wanted:
            raise ValueError(f"the terms are {sorted(terms)}, needed are {sorted(wanted)}")
        return cls(**terms)

    def key(self, enflames: str) -> str:
        """The key for this key of Enflame's, such as `enflame.com/gcu-assigned`."""
        return self.domain_key(enflames).replace("gcu", self.kind)

    def domain_key(self, enflames: str) -> str:
        """The key with the domain alone replaced, for programs that replace no more."""
        return enflames.replace("enflame.com", self.domain)

    @property
    def count(self) -> str:
        """The extended resource that counts the shared cards."""
        return f"{self.domain}/{self.kind}-count"

    @property
    def keys(self) -> str:
        """Prefix of all annotations but `assigned-containers`."""
        return self.key("enflame.com/")
