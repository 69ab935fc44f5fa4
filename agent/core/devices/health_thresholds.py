"""How patient the rules of health are, as the config and the intervals of the process set it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthThresholds:
    """How many polls and seconds the rules wait; times are in seconds."""

    bad_polls: int = 3  # failed polls in a row before a device is called unhealthy
    good_polls: int = 2  # clean polls before a transient fault is over ...
    good_for: float = 10.0  # ... and how long it must have been clean
    patience: float = 30.0  # how long the last advertised health stays after contact is lost
    forget_after: float = 600.0  # how long a free card that its vendor no longer lists stays listed
