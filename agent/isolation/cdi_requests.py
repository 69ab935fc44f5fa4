"""Remembers for which devices a vendor was asked for CDI specs, and when to ask again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.core.backoff import Pauses
from agent.vendor_api.agent import Device, Fault

_SICK = Fault("sick")
#: Shortest and longest pause, in seconds, after a request that cost the process.
PAUSES = (4.0, 600.0)


class CdiRequests:
    """Outlives the processes of one vendor. A request that cost a process is repeated more and more seldom.

    A library may hang each time, or the node may have been slow once.
    """

    def __init__(
        self, pauses: tuple[float, float] = PAUSES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices: tuple[Device, ...] = ()
        self._pauses = Pauses(*pauses)
        self._clock = clock
        #: From this time on, ask again even for the same devices.
        self._again = math.inf

    def covers(self, devices: Sequence[Device]) -> bool:
        """Whether specs for these devices were requested, and need no new request yet."""
        return _shape(devices) == self._devices and self._clock() < self._again

    def put(self, devices: Sequence[Device]) -> None:
        self._devices = _shape(devices)

    def forget(self) -> None:
        """Ask again at the next list: the request failed for a reason that may pass."""
        self._devices = ()

    def cost(self) -> None:
        """Note that the request cost the process."""
        self._again = self._clock() + self._pauses.next()

    def answered(self) -> None:
        """Note that the vendor answered with specs."""
        self._again = math.inf
        self._pauses.reset()


def _shape(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices with what specs may depend on: without links, and without the details of a fault."""
    return tuple(replace(it, fault=_SICK if it.fault else None, links=()) for it in devices)
