"""Notices that the kubelet takes our devices for dead though it listens to us, and registers them again.

Up to 1.36 the kubelet knows one plugin of a resource by name: where another one registered our resource and
goes away again, all devices are unhealthy, Allocate goes to nobody, and our own stream stays open
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient). What shows of it is that
GetAllocatableResources lists none of the devices that we call healthy, until we send a list: then they are
listed and still nobody is asked (strangers.py sees to that). While the other one lives and has any device,
some are listed: then nothing is done, for the two would take the resource from each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio
import structlog

from agent.kubelet.errors import KubeletError

log = structlog.get_logger()

#: Seconds until a resource is registered again that the kubelet has not listed since the last time.
IN_VAIN = 300.0

#: Asks the kubelet which of these resources have a healthy device.
Allocatable = Callable[[Collection[str]], Awaitable[Collection[str]]]


class Lapses:
    """Looks now and then; what is found twice counts."""

    def __init__(
        self,
        offered: Callable[[], Mapping[str, int]],
        allocatable: Allocatable,
        renew: Callable[[str], None],
        every: float = 10.0,
        sure: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`offered`: the resources of which the kubelet was told a healthy device, each with the number of
        its registration. Seconds: `every` is between looks, `sure` until what was found is looked at again.
        """
        self._offered = offered
        self._allocatable = allocatable
        self._renew = renew
        self._every = every
        self._sure = sure
        self._clock = clock
        #: Resource to when it was registered again; until the kubelet lists it.
        self._renewed: dict[str, float] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await anyio.sleep(self._every)
            await self.look()

    async def look(self) -> None:
        """Look once, and have registered again what has lapsed."""
        found = await self._missing()
        if not found:
            return
        await anyio.sleep(self._sure)  # a list of ours may have been on its way
        again = await self._missing()
        for name in sorted(name for name, number in found.items() if again.get(name) == number):
            log.warning("the kubelet lists none of our healthy devices, registering again", resource=name)
            self._renewed[name] = self._clock()
            self._renew(name)

    async def _missing(self) -> Mapping[str, int]:
        """What the kubelet should list and does not; nothing where it can not be asked."""
        offered = self._offered()
        if not offered:
            return {}
        try:
            listed = await self._allocatable(offered.keys())
        except KubeletError:
            return {}  # evidence says so; and kubelets before 1.23 have no such call
        for name in listed:
            self._renewed.pop(name, None)
        return {
            name: number
            for name, number in offered.items()
            if name not in listed and self._clock() - self._renewed.get(name, -IN_VAIN) >= IN_VAIN
        }
