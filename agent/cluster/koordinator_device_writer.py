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

import anyio.to_thread
import structlog

from agent.cluster.api import Api, Object
from agent.cluster.api_errors import Conflict, NotFound
from agent.cluster.object_fields import text
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import MirroredObjects
from agent.cluster.upkeep import KeptWriter, Upkeep, UpkeepTexts
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.managed_fields import OURS, entries
from agent.schedulers.koordinator.device_object import API_VERSION, device
from agent.schedulers.koordinator.koordlet_signs import grouped_by_hand, keeps
from agent.schedulers.koordinator.report_mode import Telling

log = structlog.get_logger()

#: The API version, in which is said whether there are Devices, and where they are.
VERSION = f"/apis/{API_VERSION}"
DEVICES = f"{VERSION}/devices"
#: Pauses between tries, seconds: where the server is away or busy, and where it refuses.
PAUSES, REFUSED = (1.0, 60.0), (5.0, 600.0)
WORDS = UpkeepTexts(
    "Device refused",
    "Device waits for the API server",
    "Device is as it should be again",
    "somebody else changes this node's Device as often as it is written",
)
STOP = "have it leave Devices alone, or set report.mode to none"


def path(node_name: str) -> str:
    return f"{DEVICES}/{quote(node_name, safe='')}"


class DeviceWriter(KeptWriter):
    """Keeps the Device as it is told, for as long as that is by a Device. It stays when the agent ends.

    It writes only what differs. It yields to a koordlet that writes, too, and says so in `overwritten`.
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        telling: Cell[Telling | None],
        node: Cell[OwnNode | None],
        there: Cell[MirroredObjects[Object]],
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
        self._upkeep = Upkeep(
            self._write,
            WORDS,
            node_name,
            pauses=pauses or Pauses(*PAUSES, jitter),
            refused=refused or Pauses(*REFUSED, jitter),
            between=between,
            every=every,
            jitter=jitter,
        )
        self._note = note
        #: The list as we wrote it last, and its resourceVersion; None where we did not.
        self._wrote: tuple[list[Any], str] | None = None
        #: Whether a koordlet undid what we had written.
        self.overwritten = Cell(False)
        #: Who else had changed the Device when it was written last.
        self._other = ""

    @property
    def error(self) -> str:
        """Why the Device is not as it should be, or does not stay so; empty while nothing is wrong."""
        if self._upkeep.undone and not self._upkeep.error:
            return f"{self._other} changes this node's Device as often as it is written; {STOP}"
        return self._upkeep.error

    async def run(self, returns: Cell[int]) -> None:
        """Follow what is to be told, and what stands there, for ever.

        `returns` counts how often the server was away and came back.
        """
        await self._upkeep.run((self._telling, self._node, self._there, self.overwritten), returns)

    async def _write(self, live: bool) -> str:
        mirror = self._there.value
        if not mirror.synced or not (live or self._body(mirror.objects.get(self._node_name))):
            return ""
        # What the watch told may be older than what is there.
        there = await self._read()
        body = self._body(there)
        if body is None or self._is_undone(there):
            return ""
        await anyio.to_thread.run_sync(self._note, self._node_name)
        if there is None:
            written = await self._api.post(DEVICES, body)
        else:
            written = await self._put(body)
        self._wrote, self._other = (body["spec"]["devices"], _version(written)), _other(there)
        telling = self._telling.value
        self._upkeep.wrote({"cards": telling.report if telling else None})
        return ""

    def _body(self, there: Object | None) -> dict[str, Any] | None:
        """What to write over what is there; None where there is nothing to write."""
        telling, node = self._telling.value, self._node.value
        if telling is None or telling.mode != "device" or telling.report is None or node is None:
            return None
        if self.overwritten.value or not node.uid:
            return None
        stay = grouped_by_hand(there)
        return device(node.name, node.uid, telling.report, there, self._clock(), groups_stay=stay)

    async def _put(self, body: Object) -> Object:
        try:
            return await self._api.put(path(self._node_name), body)
        except NotFound as exc:  # deleted since it was read: that is no refusal
            raise Conflict(exc.status, exc.reason, exc.message) from exc

    async def _read(self) -> Object | None:
        try:
            return await self._api.get(path(self._node_name))
        except NotFound:
            return None

    def yields(self, there: Object | None) -> bool:
        """Whether a koordlet undid what we wrote: then the Device is left to it until `forgive`."""
        if not self._is_undone(there):
            return False
        if not self.overwritten.value:
            why = "koordlet writes this node's Device, too; it is left to it"
            log.warning(why, node=self._node_name)
        self.overwritten.set(True)
        return True

    def _is_undone(self, there: Object | None) -> bool:
        """Whether a koordlet undid what we wrote.

        `there` may be older than what we wrote, as the watch has it: that tells nothing.
        """
        if self._wrote is None or not keeps(there):
            return False
        devices, version = self._wrote
        same = part_of(there, "spec").get("devices") == devices
        return not same and _is_later(_version(there), version)

    def forgive(self) -> None:
        """No koordlet reports here any more: what it did before is over."""
        self._wrote = None
        self.overwritten.set(False)


def _other(there: Object | None) -> str:
    """Who beside us changed it last."""
    others = [it for it in entries(there) if it.manager not in ("", OURS)]
    return max(others, key=lambda it: it.since or 0.0).manager if others else "somebody"


def _version(it: Object | None) -> str:
    return text(part_of(it, "metadata"), "resourceVersion")


def _is_later(one: str, other: str) -> bool:
    """Of two resourceVersions of one object: numbers that grow, as Kubernetes says since 1.35."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)
