"""For which devices a vendor was asked for CDI specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.core.vendor import Device, Fault

_SICK = Fault("sick")


class Asked:
    """Holds over the processes of one vendor: what cost one is not asked of the next."""

    def __init__(self) -> None:
        self._devices: tuple[Device, ...] = ()

    def about(self, devices: Sequence[Device]) -> bool:
        return _shape(devices) == self._devices

    def put(self, devices: Sequence[Device]) -> None:
        self._devices = _shape(devices)

    def forget(self) -> None:
        """Ask again soon: there was no answer, for a reason that may go away."""
        self._devices = ()


def _shape(devices: Sequence[Device]) -> tuple[Device, ...]:
    """What specs may follow from: all but links, and of a fault only that there is one."""
    return tuple(replace(it, fault=_SICK if it.fault else None, links=()) for it in devices)
