"""The value that one place gives to one flag."""

from __future__ import annotations

from dataclasses import dataclass

from agent.config.location import KeyLocation
from agent.core.errors import ConfigError
from agent.vendor_api.config_flags import Flag, FlagValue


@dataclass(frozen=True, slots=True)
class GivenValue:
    """The value of a flag, and the place that gives it."""

    flag: str
    value: FlagValue
    place: KeyLocation
    #: The vendor that defines the flag, and its definition; empty and None for a flag of the agent.
    vendor: str = ""
    definition: Flag | None = None

    @property
    def sets(self) -> str:
        """The key that a vendor's flag sets, with dots; empty where it sets none."""
        return self.definition.sets if self.definition is not None else ""

    def refused(self, why: str) -> ConfigError:
        """An error that names the place."""
        return ConfigError(self.place.with_place((), why))
