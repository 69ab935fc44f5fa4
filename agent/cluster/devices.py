"""The node's Device object, from which Koordinator's scheduler and manager know the cards.

It is read, changed and put back under its resourceVersion, never applied: its list of devices is one value
to the API server, and who applies it would remove what others have in it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import structlog

from agent.cluster.api import Api, Object
from agent.cluster.errors import ApiAway, ApiError, Busy, Conflict, NotFound
from agent.cluster.fields import text
from agent.cluster.koordlet import keeps
from agent.cluster.node import OwnNode
from agent.cluster.reflector import Mirror
from agent.core.cell import Cell
from agent.core.koordinator.device import API_VERSION, device
from agent.core.koordinator.mode import Telling
from agent.core.parts import part_of
from agent.core.pauses import Pauses

log = structlog.get_logger()

#: The API version, in which is said whether there are Devices, and where they are.
VERSION = f"/apis/{API_VERSION}"
DEVICES = f"{VERSION}/devices"
#: Pauses between tries, seconds: where the server is away or busy, and where it refuses.
PAUSES, REFUSED = (1.0, 60.0), (5.0, 600.0)
#: Seconds for which a server that is busy is left alone at most, whatever it asks.
LONGEST = 600.0


def path(node_name: str) -> str:
    return f"{DEVICES}/{quote(node_name, safe='')}"


class DeviceWriter:
    """Keeps the Device as it is told, for as long as that is by a Device. It stays when the agent ends.

    It writes only what differs. It yields to a koordlet that writes, too, and says so in `overwritten`.
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        telling: Cell[Telling | None],
        node: Cell[OwnNode | None],
        there: Cell[Mirror[Object]],
        *,
        clock: Callable[[], float] = time.time,
        pauses: Pauses | None = None,
        refused: Pauses | None = None,
        between: float = 1.0,
        every: float = 600.0,
        jitter: Callable[[], float] = random.random,
        note: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`there`: the Device, as it is followed. Seconds: `between` two writes, so that a storm of health is
        a few, and `every` how often it is looked at what stands there, whatever the watch says. `note` is
        told the Device's name before it is written.
        """
        self._api = api
        self._node_name = node_name
        self._telling = telling
        self._node = node
        self._there = there
        self._clock = clock
        self._pauses = pauses or Pauses(*PAUSES, jitter)
        self._patience = refused or Pauses(*REFUSED, jitter)
        self._between = between
        self._every = every
        self._jitter = jitter
        self._note = note
        self._news = anyio.Event()
        #: The list as we wrote it last, and its resourceVersion; None where we did not.
        self._wrote: tuple[list[Any], str] | None = None
        #: Whether a koordlet undid what we had written.
        self.overwritten = Cell(False)
        #: Why the API server refuses it; empty while it does not.
        self.error = ""
        #: Why it waits: the server is away, or has too much to do.
        self.waits = ""
        self.writes = 0

    async def run(self, returns: Cell[int]) -> None:
        """Follow what is to be told, and what stands there, for ever.

        `returns` counts how often the server was away and came back.
        """
        async with anyio.create_task_group() as group:
            for cell in (self._telling, self._node, self._there, self.overwritten):
                group.start_soon(self._hear, cell)
            live = False
            while True:
                self._news = anyio.Event()
                before, pause = returns.value, await self.once(live=live)
                with anyio.move_on_after(pause):
                    await returns.other_than(before)
                    self._pauses.reset()
                with anyio.move_on_after(self._every * (0.5 + self._jitter() / 2)) as slept:
                    await self._news.wait()
                live = slept.cancelled_caught

    async def once(self, *, live: bool = False) -> float:
        """Bring it up to date; returns for how many seconds the server is to be left alone.

        `live`: look at what stands there, also where by the watch nothing is to be done.
        """
        before = self.writes
        try:
            await self._twice(live=live)
        except (ApiAway, Busy, Conflict) as exc:
            self._tell("", str(exc))
            asked = exc.retry_after or 0.0 if isinstance(exc, Busy) else 0.0
            return self._again(max(self._pauses.next(), min(asked, LONGEST)))
        except ApiError as exc:
            self._tell(str(exc), "")
            return self._again(self._patience.next())
        self._tell("", "")
        self._pauses.reset()
        self._patience.reset()
        return self._between if self.writes > before else 0.0

    def _again(self, pause: float) -> float:
        self._news.set()  # it is still to be done
        return pause

    async def _hear(self, cell: Cell[Any]) -> None:
        async for _ in cell.watch():
            self._news.set()

    async def _twice(self, *, live: bool) -> None:
        """What is read before it is written may have changed meanwhile."""
        try:
            await self._write(live=live)
        except Conflict:
            await self._write(live=True)

    async def _write(self, *, live: bool) -> None:
        mirror = self._there.value
        if not mirror.synced or not (live or self._body(mirror.objects.get(self._node_name))):
            return
        # What the watch told may be older than what is there.
        there = await self._read()
        body = self._body(there)
        if body is None or self.yields(there):
            return
        await anyio.to_thread.run_sync(self._note, self._node_name)
        if there is None:
            written = await self._api.post(DEVICES, body)
        else:
            written = await self._api.put(path(self._node_name), body)
        self.writes += 1
        self._wrote = body["spec"]["devices"], _version(written)

    def _body(self, there: Object | None) -> dict[str, Any] | None:
        """What to write over what is there; None where there is nothing to write."""
        telling, node = self._telling.value, self._node.value
        if telling is None or telling.mode != "device" or telling.report is None or node is None:
            return None
        if self.overwritten.value or not node.uid:
            return None
        return device(node.name, node.uid, telling.report, there, self._clock())

    async def _read(self) -> Object | None:
        try:
            return await self._api.get(path(self._node_name))
        except NotFound:
            return None

    def yields(self, there: Object | None) -> bool:
        """Whether a koordlet undid what we wrote: then the Device is left to it from now on.

        `there` may be older than what we wrote, as the watch has it: that tells nothing.
        """
        if self._wrote is None or not keeps(there):
            return False
        devices, version = self._wrote
        if part_of(there, "spec").get("devices") == devices or not _is_later(_version(there), version):
            return False
        if not self.overwritten.value:
            why = "koordlet writes this node's Device, too; it is left to it"
            log.warning(why, node=self._node_name)
        self.overwritten.set(True)
        return True

    def forgive(self) -> None:
        """The koordlet is gone: what it did before is over."""
        self._wrote = None
        self.overwritten.set(False)

    def _tell(self, error: str, waits: str) -> None:
        if error and error != self.error:
            log.error("Device refused", node=self._node_name, error=error)
        elif waits and not self.waits:
            log.warning("Device waits for the API server", node=self._node_name, error=waits)
        elif (self.error or self.waits) and not (error or waits):
            log.info("Device is as it should be again", node=self._node_name)
        self.error, self.waits = error, waits


def _version(it: Object | None) -> str:
    return text(part_of(it, "metadata"), "resourceVersion")


def _is_later(one: str, other: str) -> bool:
    """Of two resourceVersions of one object: numbers that grow, as Kubernetes says since 1.35."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)
