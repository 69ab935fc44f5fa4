"""For which devices a vendor was asked for CDI specs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.core.backoff import Pauses
from agent.vendor_api.agent import Device, Fault

_SICK = Fault("sick")
#: Seconds, the first and the longest: what cost a process is not asked of the next one until then.
PAUSES = (4.0, 600.0)


class CdiRequests:
    """Holds over the processes of one vendor: what cost one is asked of a later one, more and more seldom.

    A library may hang each time, and a node may be slow for a moment only.
    """

    def __init__(
        self, pauses: tuple[float, float] = PAUSES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices: tuple[Device, ...] = ()
        self._pauses = Pauses(*pauses)
        self._clock = clock
        #: When it is asked again whatever the devices are.
        self._again = math.inf

    def about(self, devices: Sequence[Device]) -> bool:
        """Whether specs for these devices were asked for, and are not to be asked for again."""
        return _shape(devices) == self._devices and self._clock() < self._again

    def put(self, devices: Sequence[Device]) -> None:
        self._devices = _shape(devices)

    def forget(self) -> None:
        """Ask again soon: there was no answer, for a reason that may go away."""
        self._devices = ()

    def cost(self) -> None:
        """The process is lost over it."""
        self._again = self._clock() + self._pauses.next()

    def answered(self) -> None:
        """There are specs."""
        self._again = math.inf
        self._pauses.reset()


def _shape(devices: Sequence[Device]) -> tuple[Device, ...]:
    """What specs may follow from: all but links, and of a fault only that there is one."""
    return tuple(replace(it, fault=_SICK if it.fault else None, links=()) for it in devices)
