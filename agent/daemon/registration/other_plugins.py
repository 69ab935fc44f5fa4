"""Other plugins that give out a vendor's cards: beside one that runs nothing of them is registered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import anyio
import structlog

from agent.core.cell import Cell
from agent.core.model import SessionStatus
from agent.kubelet.directory import OtherSocket
from agent.vendor_api.agent import Vendor

log = structlog.get_logger()

REMEDY = "remove it from this node, or let vendors.{vendor}.foreign be `yield`, which leaves the cards to it"
YIELDED = "the cards are left to it until it goes"


class Rivals:
    """Known by the names of their sockets, or by their resources. One that has gone counts for a moment more.

    A kubelet that begins removes all sockets, and each plugin makes its own anew when it sees that.
    """

    def __init__(
        self,
        vendors: Callable[[], Iterable[Vendor]],
        neighbours: Cell[frozenset[OtherSocket]],
        is_served: Callable[[OtherSocket], bool],
        yields: Callable[[str], bool],
        beside: Callable[[], Mapping[str, str]] = dict,
        every: float = 2.0,
        gone_after: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`yields` says whether the config leaves a vendor's cards to them. `beside`: vendor to a resource of
        its cards that the kubelet has from somebody else.

        Seconds: `every` is between looks, `gone_after` until one whose socket nobody serves has gone.
        """
        self._vendors = vendors
        self._neighbours = neighbours
        self._is_served = is_served
        self._yields = yields
        self._beside = beside
        self._every = every
        self._gone_after = gone_after
        self._clock = clock
        #: Vendor to where it shows, and when it last did.
        self._seen: dict[str, tuple[str, float]] = {}
        #: Counts how often what is there became another.
        self.changes: Cell[int] = Cell(0)

    async def run(self) -> None:
        """Look for ever: a plugin that is killed leaves its socket."""
        while True:
            self.look()
            await anyio.sleep(self._every)

    def closed(self, vendor: str) -> SessionStatus | None:
        """Why nothing of the vendor is to be registered now."""
        self.look()
        if (sentence := self.found.get(vendor)) is None:
            return None
        return SessionStatus("yielded" if self._yields(vendor) else "refused", sentence)

    @property
    def found(self) -> Mapping[str, str]:
        """Vendor to a sentence on the plugin that is there."""
        return {name: self._sentence(name, where) for name, (where, _) in self._seen.items()}

    def look(self) -> None:
        """See who is there now, and say what became another, whoever looks first."""
        now, before = self._clock(), self.found
        for vendor in self._vendors():
            if where := self._shows(vendor):
                self._seen[vendor.name] = where, now
        self._seen = {
            name: (where, at) for name, (where, at) in self._seen.items() if now - at < self._gone_after
        }
        if self.found != before:
            log.warning("other device plugins", found=dict(self.found))
            self.changes.set(self.changes.value + 1)

    def _shows(self, vendor: Vendor) -> str:
        if socket := self._served(vendor):
            return f"at {socket}"
        resource = self._beside().get(vendor.name)
        return f"as {resource}" if resource else ""

    def _served(self, vendor: Vendor) -> str:
        known = vendor.replaces.sockets
        there = (it for it in self._neighbours.value if any(fnmatchcase(it.name, one) for one in known))
        return min((it.name for it in there if self._is_served(it)), default="")

    def _sentence(self, vendor: str, where: str) -> str:
        end = YIELDED if self._yields(vendor) else REMEDY.format(vendor=vendor)
        return f"another device plugin serves cards of {vendor} {where}: {end}"
