"""The value that one place gives to one flag."""

from __future__ import annotations

from dataclasses import dataclass

from agent.config.location import KeyLocation
from agent.core.errors import ConfigError

Value = str | bool | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GivenValue:
    """The value of a flag, and the place that gives it."""

    flag: str
    value: Value
    place: KeyLocation

    def refused(self, why: str) -> ConfigError:
        """An error that names the place."""
        return ConfigError(self.place.told((), why))
