"""The agent's connection to the API server: opened late, kept open; the agent works without it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct, structs
from msgspec.structs import replace

from agent.cluster import own_node as node
from agent.cluster import pods
from agent.cluster.api_client import open_api
from agent.cluster.api_errors import ApiAway, ApiError
from agent.cluster.api_protocol import Api
from agent.cluster.credentials import ApiAccess
from agent.cluster.event_writer import Events
from agent.cluster.extended_resource_writer import ExtendedWriter
from agent.cluster.label_writer import LabelWriter
from agent.cluster.node_annotation_writer import AnnotationWriter
from agent.cluster.node_lock_writer import LockWriter
from agent.cluster.object_record import ObjectRecords
from agent.cluster.own_node import OwnNode, own_node
from agent.cluster.pod_state import PodState
from agent.cluster.receipt_writer import ReceiptWriter
from agent.cluster.reflector import FollowTiming, MirroredObjects, Reflector
from agent.cluster.scheduler_report_follower import SchedulerReportFollower
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.core.allocation.known_pods import KnownPods
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.publishing.agent_status import AgentStatus, ApiServer, Counters, FollowedList, SchedulerReport
from agent.core.publishing.extended_resource_rules import Extended
from agent.core.publishing.label_rules import WantedFeatures
from agent.core.publishing.node_annotation_rules import Annotated
from agent.core.publishing.receipt_rules import OwedReceipt
from agent.scheduler_api.candidate import PodList
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.scheduler import AnnotationFilter

log = structlog.get_logger()

#: Seconds between tries to open the connection, shortest and longest; and for closing it.
PAUSES = (1.0, 60.0)
GOODBYE = 1.0


#: Log texts about a list that is followed.
AWAY = "the API server is away; devices are served as before"
REFUSED = "the API server refuses a list; devices are served without it, and the agent asks again later"
UNLISTED = "the right to list and watch pods is missing (in the chart pods.enabled)"
NAMELESS = "the API server has no Node of this name"
FOLLOWED = "the API server is followed again"


class FollowedPods(Struct, frozen=True):
    """The pods of this node, kept as the API server has them."""

    candidates: Cell[KnownPods]
    #: Which of their annotations are kept. Another value has the pods listed again.
    reads: Cell[AnnotationFilter]


class ConnectionOptions(Struct, frozen=True):
    """How the connection is opened and kept, and which instance it stands for."""

    #: The pod of this agent, named as the source of Events.
    instance: str = ""
    #: None for the usual timings.
    following: FollowTiming | None = None
    open: Callable[[ApiAccess], Awaitable[Api]] = open_api


class ApiConnection:
    """Follows this node's Node and pods, and runs all writers, for as long as it runs."""

    def __init__(
        self,
        access: ApiAccess,
        node_name: str,
        labels: Cell[Mapping[str, str] | None],
        *,
        pods: FollowedPods | None = None,
        pod_state: PodState | None = None,
        report: SchedulerReportState | None = None,
        records: ObjectRecords | None = None,
        options: ConnectionOptions | None = None,
    ) -> None:
        """`labels` are kept as the server has them. Without `pods` no pods are followed.

        `report` is the report of the cards to a scheduler; `pod_state` has what pods and locks of schedulers
        mean for the answers to the kubelet. `records`: for `uninstall`.
        """
        options = options or ConnectionOptions()
        self._access = access
        self._node_name = node_name
        self._labels = labels
        self._pods = pods
        self._report = report
        self._pod_state = pod_state or PodState()
        self._locks: LockWriter | None = None
        self._records = records or ObjectRecords()
        self._following = options.following
        self._open = options.open
        self.events = Events(node_name, options.instance)
        #: This node's Node, as last seen.
        self.node: Cell[OwnNode | None] = Cell(None)
        #: How often the API server was away and came back.
        self._returns = Cell(0)
        self._mirrors: dict[str, Cell[MirroredObjects[Any]]] = {}
        self._writer: LabelWriter | None = None
        self._annotations: AnnotationWriter | None = None
        self._extended: ExtendedWriter | None = None
        self._receipts: ReceiptWriter | None = None
        self._report_object: SchedulerReportFollower | None = None
        self._api: Api | None = None
        self._error = "not opened yet"

    def seen(self, base: AgentStatus) -> AgentStatus:
        """The status, completed with what the connection knows."""
        error = self._writer.error if self._writer else ""
        refused = self._annotations.error if self._annotations else ""
        uncounted = self._extended.error if self._extended else ""
        unmarked = self._receipts.error if self._receipts else ""
        return replace(
            base,
            api_server=self.status,
            labels_error="; ".join(it for it in (base.labels_error, error) if it),
            annotations_error="; ".join(it for it in (base.annotations_error, refused) if it),
            extended_error="; ".join(it for it in (base.extended_error, uncounted) if it),
            receipts_error="; ".join(it for it in (base.receipts_error, unmarked) if it),
            receipts_owed=self._receipts.owed if self._receipts else 0,
            locks_error=self._locks.error if self._locks else "",
            reported=self._reported(base.reported),
            counters={**base.counters, **self._counters()},
        )

    def _reported(self, base: SchedulerReport) -> SchedulerReport:
        error = self._report_object.error if self._report_object else ""
        return replace(base, error=base.error or error)

    @property
    def status(self) -> ApiServer:
        seen = ((what, it.value) for what, it in self._mirrors.items())
        followed = {what: FollowedList(it.synced, it.error, it.refused) for what, it in seen}
        if not followed:
            return ApiServer(str(self._reached), error=self._error)
        error = next((f"{what}: {it.error}" for what, it in followed.items() if it.error), "")
        return ApiServer(str(self._reached), all(it.synced for it in followed.values()), error, followed)

    @property
    def _reached(self) -> ApiAccess:
        """The access with the current server: a rewritten kubeconfig may name another."""
        return structs.replace(self._access, server=self._api.server) if self._api else self._access

    def _counters(self) -> Counters:
        counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("events", (("outcome", outcome),)): count for outcome, count in self.events.counts.items()
        }
        counters["label_writes", ()] = self._writer.writes if self._writer else 0
        counters["annotation_writes", ()] = self._annotations.writes if self._annotations else 0
        counters["extended_writes", ()] = self._extended.writes if self._extended else 0
        counters["receipt_writes", ()] = self._receipts.writes if self._receipts else 0
        counters["locks_freed", ()] = self._locks.freed if self._locks else 0
        counters["koordinator_device_writes", ()] = self._report_object.writes if self._report_object else 0
        return counters

    async def run(
        self,
        wanted: Cell[WantedFeatures | None],
        annotations: Cell[Annotated | None] | None = None,
        receipts: Cell[tuple[OwedReceipt, ...]] | None = None,
        extended: Cell[Extended | None] | None = None,
    ) -> None:
        """Connect and serve, for ever.

        `wanted`: the labels of the Node; `annotations` and `extended`: those of vendors for the Node;
        `receipts`: the receipts that pods owe their schedulers.
        """
        self._api = api = await self._opened()
        nodes = Reflector(api, node.NODES, node.query(self._node_name), own_node, self._following)
        self._writer = LabelWriter(
            api,
            self._node_name,
            self._access.namespace,
            wanted,
            self.node,
            record=self._records.features,
        )
        self._annotations = AnnotationWriter(
            api, self._node_name, annotations or Cell(Annotated()), self.node
        )
        self._extended = ExtendedWriter(api, self._node_name, extended or Cell(Extended()), self.node)
        self._receipts = ReceiptWriter(api, receipts or Cell(()))
        if self._report is not None:
            self._report_object = SchedulerReportFollower(
                api,
                self._node_name,
                self._report,
                self.node,
                self._following,
                self._records.reports,
            )
        self._locks = LockWriter(api, self._node_name, self._pod_state.locks)
        try:
            async with anyio.create_task_group() as group:
                self._follow(group, "nodes", nodes)
                group.start_soon(for_ever, node.follow, nodes.cell, self._node_name, self.node, self._labels)
                if self._pods is not None:
                    self._pod_state.ask = partial(self._list_pods, api, self._pods)
                    group.start_soon(for_ever, self._follow_pods, api, self._pods)
                group.start_soon(for_ever, self._writer.run, self._returns)
                group.start_soon(for_ever, self._annotations.run, self._returns)
                group.start_soon(for_ever, self._extended.run, self._returns)
                group.start_soon(for_ever, self._receipts.run, self._returns)
                if self._report_object is not None:
                    group.start_soon(for_ever, self._report_object.run, self._returns)
                group.start_soon(for_ever, self._follow_locks)
                group.start_soon(for_ever, self._locks.run)
                group.start_soon(for_ever, self.events.run, api, self._returns)
        finally:
            self._pod_state.ask = None
            with anyio.move_on_after(GOODBYE, shield=True):
                await api.close()

    async def _opened(self) -> Api:
        """Open the connection, with retries: a kubeconfig or a certificate may be replaced meanwhile."""
        pauses = Pauses(*PAUSES)
        while True:
            try:
                return await self._open(self._access)
            except ApiAway as exc:
                if str(exc) != self._error:
                    log.error("no way to the API server", error=str(exc))
                self._error = str(exc)
            await anyio.sleep(pauses.next())

    async def _follow_locks(self) -> None:
        """Keep the cell of locks equal to the Node's, for ever."""
        async for seen in self.node.watch():
            self._pod_state.locks.annotations.set(seen.locks if seen is not None else {})

    async def _list_pods(self, api: Api, followed: FollowedPods) -> PodList | None:
        """The pods of this node that have not ended, as of now; None while the server is away.

        One that ran before this boot is shown as Running until it runs again.
        """
        if not self.status.up:
            return None
        selector = f"spec.nodeName={self._node_name},status.phase!=Succeeded,status.phase!=Failed"
        try:
            found = await api.get(pods.PODS, {"fieldSelector": selector})
        except ApiError as exc:
            log.info("pods not listed for an Allocate", error=str(exc))
            return None
        documents = found.get("items")
        documents = documents if isinstance(documents, list) else ()
        candidates = (pods.candidate(document, followed.reads.value) for document in documents)
        listed = tuple(it for it in candidates if it is not None)
        return PodList(listed, pods.version(part_of(found, "metadata")))

    async def _follow_pods(self, api: Api, followed: FollowedPods) -> None:
        """Follow the pods; list the pods again when other annotations are read, which were not kept."""
        query, follow_to = pods.query(self._node_name), self._pod_state.follow_to
        while True:
            async with anyio.create_task_group() as group:
                keep = partial(pods.candidate, reads=followed.reads.value)
                reflector = Reflector(api, pods.PODS, query, keep, self._following)
                self._follow(group, "pods", reflector)
                group.start_soon(for_ever, pods.follow, reflector.cell, followed.candidates, follow_to)
                await followed.reads.changed()
                group.cancel_scope.cancel()

    def _follow(self, group: TaskGroup, what: str, reflector: Reflector[Any]) -> None:
        self._mirrors[what] = reflector.cell
        group.start_soon(for_ever, reflector.run)
        group.start_soon(for_ever, self._tell, what, reflector.cell)

    async def _tell(self, what: str, mirror: Cell[MirroredObjects[Any]]) -> None:
        """Log when the list fails or works again, and count the returns."""
        logged = ""
        async for seen in mirror.watch():
            wrong = _wrong(what, seen)
            if what == "pods":
                self._pod_state.is_away = bool(seen.error)
                self._pod_state.unseen = f"{UNLISTED}: {seen.error}" if seen.refused else ""
            if wrong and wrong != logged:
                log.warning(wrong, list=what, node=self._node_name, error=seen.error)
            elif logged and not wrong:
                self._returns.set(self._returns.value + 1)
                log.info(FOLLOWED, list=what, server=self._reached.server)
            logged = wrong


def _wrong(what: str, seen: MirroredObjects[Any]) -> str:
    if seen.error:
        return REFUSED if seen.refused else AWAY
    return NAMELESS if what == "nodes" and seen.synced and not seen.objects else ""
