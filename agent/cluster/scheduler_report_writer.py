"""Writes the object from which a scheduler knows this node's cards, such as Koordinator's Device.

The object is read, changed and put back under its resourceVersion. It is not applied: its list of devices is
one value to the API server, so an apply would remove what other programs have in the list.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import anyio.to_thread
import structlog

from agent.cluster.api_errors import Conflict, NotFound
from agent.cluster.api_protocol import Api, Object
from agent.cluster.object_fields import text
from agent.cluster.object_record import ObjectRecord
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import MirroredObjects
from agent.cluster.repeated_writes import RepeatedWrites, RepeatedWriteTexts, RepeatingWriter
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.cluster.scheduler_report_timing import SchedulerReportTiming
from agent.core.cell import Cell
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.managed_fields import AGENT_MANAGER, entries
from agent.scheduler_api.node_report import ObjectOwner, ReportObject

log = structlog.get_logger()


def path(kind: ReportObject, node_name: str) -> str:
    """Where the API server has the object of this node."""
    return f"{kind.path}/{quote(node_name, safe='')}"


def _texts(kind: str) -> RepeatedWriteTexts:
    return RepeatedWriteTexts(
        f"{kind} refused",
        f"{kind} waits for the API server",
        f"{kind} is as it should be again",
        f"another client changes this node's {kind} as often as the agent writes it",
    )


class SchedulerReportWriter(RepeatingWriter):
    """Keeps the object as the published report wants it, in mode `device`. It stays when the agent ends.

    The writer writes only differences. It yields to a program of the scheduler that writes the object too,
    and says so in `overwritten`.
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        state: SchedulerReportState,
        node: Cell[OwnNode | None],
        mirror: Cell[MirroredObjects[Object]],
        timing: SchedulerReportTiming,
        record: ObjectRecord,
    ) -> None:
        """`mirror`: the object, as the reflector has it. `record` notes the object's name before a write."""
        self._api = api
        self._node_name = node_name
        self._kind = state.reporting.object
        self._program = state.reporting.program
        self._published = state.published
        self._node = node
        self._mirror = mirror
        self._clock = timing.wall
        self._writes = RepeatedWrites(
            self._write,
            _texts(self._kind.kind),
            node_name,
            pauses=timing.away_pauses(),
            refused=timing.refused_pauses(),
            between=timing.between_writes,
            every=timing.between_reads,
            jitter=timing.jitter,
        )
        self._record = record
        #: The cards of our last write, and its resourceVersion; None before the first write.
        self._wrote: tuple[Any, str] | None = None
        #: Whether the program undid our last write.
        self.overwritten = Cell(False)
        #: The manager, other than the agent, that had changed the object before our last write.
        self._other_manager = ""

    @property
    def error(self) -> str:
        """Why the object is not as it should be, or does not stay so; empty while nothing is wrong."""
        if self._writes.undone and not self._writes.error:
            kind = self._kind.kind
            remedy = "stop that client, or set report.mode to none"
            return (
                f"{self._other_manager} changes this node's {kind} as often as the agent writes it; {remedy}"
            )
        return self._writes.error

    async def run(self, returns: Cell[int]) -> None:
        """Keep the object, for ever. `returns` counts how often the API server was away and came back."""
        await self._writes.run((self._published, self._node, self._mirror, self.overwritten), returns)

    async def _write(self, live: bool) -> str:
        mirror = self._mirror.value
        if not mirror.synced or not (live or self._body(mirror.objects.get(self._node_name))):
            return ""
        # The watch may show an older object than the API server has.
        existing = await self._read()
        body = self._body(existing)
        if body is None or self._is_undone(existing):
            return ""
        await anyio.to_thread.run_sync(self._record.note, self._node_name)
        if existing is None:
            written = await self._api.post(self._kind.path, body)
        else:
            written = await self._put(body)
        self._wrote = self._kind.listed(body), _version(written)
        self._other_manager = _other_manager(existing)
        published = self._published.value
        self._writes.wrote({"cards": published.report if published else None})
        return ""

    def _body(self, existing: Object | None) -> Object | None:
        """What to write in place of the existing object; None where nothing is to be written."""
        published, node = self._published.value, self._node.value
        if published is None or published.mode != "device" or published.report is None or node is None:
            return None
        if self.overwritten.value or not node.uid:
            return None
        return self._kind.wanted(ObjectOwner(node.name, node.uid), published.report, existing, self._clock())

    async def _put(self, body: Object) -> Object:
        try:
            return await self._api.put(path(self._kind, self._node_name), body)
        except NotFound as exc:  # deleted since the read: no refusal
            raise Conflict(exc.status, exc.reason, exc.message) from exc

    async def _read(self) -> Object | None:
        try:
            return await self._api.get(path(self._kind, self._node_name))
        except NotFound:
            return None

    def yields(self, existing: Object | None) -> bool:
        """Whether the program undid our last write: the object is then left to it until `forgive`."""
        if not self._is_undone(existing):
            return False
        if not self.overwritten.value:
            why = f"{self._program} writes this node's {self._kind.kind}, too; the agent stops writing it"
            log.warning(why, node=self._node_name)
        self.overwritten.set(True)
        return True

    def _is_undone(self, existing: Object | None) -> bool:
        """Whether the program undid our last write. An object older than that write proves nothing."""
        if self._wrote is None or not self._kind.is_of_program(existing):
            return False
        listed, version = self._wrote
        return self._kind.listed(existing) != listed and _is_later(_version(existing), version)

    def forgive(self) -> None:
        """Write again: the program that undid our last write no longer counts."""
        self._wrote = None
        self.overwritten.set(False)


def _other_manager(existing: Object | None) -> str:
    """The manager, other than the agent, with the newest change."""
    others = [it for it in entries(existing) if it.manager not in ("", AGENT_MANAGER)]
    return max(others, key=lambda it: it.since or 0.0).manager if others else "an unknown client"


def _version(document: Object | None) -> str:
    return text(part_of(document, "metadata"), "resourceVersion")


def _is_later(one: str, other: str) -> bool:
    """Compares resourceVersions of one object: numbers that grow, as Kubernetes says since 1.35."""
    return one.isdecimal() and other.isdecimal() and int(one) > int(other)
