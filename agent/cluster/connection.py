"""The agent's way to the API server: opened late, kept open, and missed by nobody while it is shut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from agent.cluster import own_node as node
from agent.cluster import pods
from agent.cluster.api import Api
from agent.cluster.api_errors import ApiAway, ApiError
from agent.cluster.client import open_api
from agent.cluster.credentials import ApiAccess
from agent.cluster.event_writer import Events
from agent.cluster.extended_resource_writer import ExtendedWriter
from agent.cluster.koordinator import Koordinator
from agent.cluster.koordinator_exchange import Exchange
from agent.cluster.label_writer import LabelWriter
from agent.cluster.lock_writer import LockWriter
from agent.cluster.node_annotation_patches import AnnotationWriter
from agent.cluster.own_node import OwnNode, own_node
from agent.cluster.pod_state import PodState
from agent.cluster.receipt_writer import ReceiptWriter
from agent.cluster.reflector import FollowTimings, MirroredObjects, Reflector
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.endless_tasks import for_ever
from agent.core.publishing.agent_status import AgentStatus, ApiServer, Counters, FollowedList, SchedulerReport
from agent.core.publishing.extended_resource_rules import Extended
from agent.core.publishing.label_rules import WantedFeatures
from agent.core.publishing.node_annotation_rules import Annotated
from agent.core.publishing.receipt_rules import OwedReceipt
from agent.scheduler_api import AnnotationFilter, Candidate, PodList
from agent.scheduler_api.document_parts import part_of

log = structlog.get_logger()

#: Seconds between tries to open, the first and the longest; and what a goodbye may take.
PAUSES = (1.0, 60.0)
GOODBYE = 1.0


#: What may be wrong with a list that is followed, in the words of the log.
AWAY = "the API server is away; devices are served as before"
REFUSED = "the API server refuses a list; devices are served without it, and it is asked again now and then"
UNLISTED = "the right to list and watch pods is missing (in the chart pods.enabled)"
NAMELESS = "the API server has no Node of this name"
FOLLOWED = "the API server is followed again"


class ApiConnection:
    """Follows this node's Node and pods, and writes labels, events and its Device, for as long as it runs."""

    def __init__(
        self,
        access: ApiAccess,
        node_name: str,
        labels: Cell[Mapping[str, str] | None],
        candidates: Cell[tuple[Candidate, ...]] | None,
        *,
        reads: Cell[AnnotationFilter],
        exchange: Exchange | None = None,
        scheduled: PodState | None = None,
        instance: str = "",
        note: Callable[[str], object] = lambda _: None,
        forget: Callable[[str], object] = lambda _: None,
        note_device: Callable[[str], object] = lambda _: None,
        forget_device: Callable[[str], object] = lambda _: None,
        following: FollowTimings | None = None,
        opening: Callable[[ApiAccess], Awaitable[Api]] = open_api,
    ) -> None:
        """`labels` and `candidates` are kept as the server has them; `instance` is this agent's pod.

        Without `candidates` pods are not followed; of their annotations those are kept whose keys begin as
        `reads` says, also where that changes. `note` is told the namespaces in which NodeFeature objects are
        made, and `forget` those where none is any more; `note_device` and `forget_device` the name of the
        Device that is ours. In `exchange` is said how Koordinator hears of the
        cards, in `scheduled` what schedulers and those who serve the kubelet have to tell each other.
        """
        self._access = access
        self._node_name = node_name
        self._labels = labels
        self._candidates = candidates
        self._reads = reads
        self._exchange = exchange or Exchange()
        self._scheduled = scheduled or PodState()
        self._locks: LockWriter | None = None
        self._note = note
        self._forget = forget
        self._note_device = note_device
        self._forget_device = forget_device
        self._following = following
        self._opening = opening
        self.events = Events(node_name, instance)
        #: This node's Node, as last seen.
        self.node: Cell[OwnNode | None] = Cell(None)
        #: How often the API server was away and came back.
        self._returns = Cell(0)
        self._mirrors: dict[str, Cell[MirroredObjects[Any]]] = {}
        self._writer: LabelWriter | None = None
        self._annotations: AnnotationWriter | None = None
        self._extended: ExtendedWriter | None = None
        self._receipts: ReceiptWriter | None = None
        self._koordinator: Koordinator | None = None
        self._api: Api | None = None
        self._error = "not opened yet"

    def seen(self, base: AgentStatus) -> AgentStatus:
        """The view with what is known here."""
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
        error = self._koordinator.error if self._koordinator else ""
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
        """The access with the server of now: a kubeconfig that was rewritten may name another."""
        return replace(self._access, server=self._api.server) if self._api else self._access

    def _counters(self) -> Counters:
        counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("events", (("outcome", outcome),)): count for outcome, count in self.events.counts.items()
        }
        counters["label_writes", ()] = self._writer.writes if self._writer else 0
        counters["annotation_writes", ()] = self._annotations.writes if self._annotations else 0
        counters["extended_writes", ()] = self._extended.writes if self._extended else 0
        counters["receipt_writes", ()] = self._receipts.writes if self._receipts else 0
        counters["locks_freed", ()] = self._locks.freed if self._locks else 0
        counters["koordinator_device_writes", ()] = self._koordinator.writes if self._koordinator else 0
        return counters

    async def run(
        self,
        wanted: Cell[WantedFeatures | None],
        annotations: Cell[Annotated | None] | None = None,
        receipts: Cell[tuple[OwedReceipt, ...]] | None = None,
        extended: Cell[Extended | None] | None = None,
    ) -> None:
        """Serve for ever. `wanted`: the labels that the Node is to have; `annotations` and `extended`
        resources: those of vendors; `receipts`: what pods are to tell their schedulers.
        """
        self._api = api = await self._opened()
        nodes = Reflector(api, node.NODES, node.query(self._node_name), own_node, self._following)
        self._writer = LabelWriter(
            api,
            self._node_name,
            self._access.namespace,
            wanted,
            self.node,
            note=self._note,
            forget=self._forget,
        )
        self._annotations = AnnotationWriter(
            api, self._node_name, annotations or Cell(Annotated()), self.node
        )
        self._extended = ExtendedWriter(api, self._node_name, extended or Cell(Extended()), self.node)
        self._receipts = ReceiptWriter(api, receipts or Cell(()))
        self._koordinator = Koordinator(
            api,
            self._node_name,
            self._exchange,
            self.node,
            self._following,
            note=self._note_device,
            forget=self._forget_device,
        )
        self._locks = LockWriter(api, self._node_name, self._scheduled.locks)
        try:
            async with anyio.create_task_group() as group:
                self._follow(group, "nodes", nodes)
                group.start_soon(for_ever, node.follow, nodes.cell, self._node_name, self.node, self._labels)
                if self._candidates is not None:
                    self._scheduled.ask = partial(self._list_pods, api)
                    group.start_soon(for_ever, self._follow_pods, api, self._candidates)
                group.start_soon(for_ever, self._writer.run, self._returns)
                group.start_soon(for_ever, self._annotations.run, self._returns)
                group.start_soon(for_ever, self._extended.run, self._returns)
                group.start_soon(for_ever, self._receipts.run, self._returns)
                group.start_soon(for_ever, self._koordinator.run, self._returns)
                group.start_soon(for_ever, self._follow_locks)
                group.start_soon(for_ever, self._locks.run)
                group.start_soon(for_ever, self.events.run, api, self._returns)
        finally:
            self._scheduled.ask = None
            with anyio.move_on_after(GOODBYE, shield=True):
                await api.close()

    async def _opened(self) -> Api:
        """What cannot be used now may be mended meanwhile: a kubeconfig, a certificate."""
        pauses = Pauses(*PAUSES)
        while True:
            try:
                return await self._opening(self._access)
            except ApiAway as exc:
                if str(exc) != self._error:
                    log.error("no way to the API server", error=str(exc))
                self._error = str(exc)
            await anyio.sleep(pauses.next())

    async def _follow_locks(self) -> None:
        """Keep the cell of locks as the Node has them, for ever."""
        async for seen in self.node.watch():
            self._scheduled.locks.annotations.set(seen.locks if seen is not None else {})

    async def _list_pods(self, api: Api) -> PodList | None:
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
        items = found.get("items")
        its = (pods.candidate(it, self._reads.value) for it in (items if isinstance(items, list) else ()))
        listed = tuple(it for it in its if it is not None)
        return PodList(listed, pods.version(part_of(found, "metadata")))

    async def _follow_pods(self, api: Api, candidates: Cell[tuple[Candidate, ...]]) -> None:
        """Anew when other annotations are read: those of the pods that are here were not kept."""
        while True:
            async with anyio.create_task_group() as group:
                its_pods = self._pods(api)
                self._follow(group, "pods", its_pods)
                group.start_soon(for_ever, pods.follow, its_pods.cell, candidates, self._scheduled.follow_to)
                await self._reads.changed()
                group.cancel_scope.cancel()

    def _pods(self, api: Api) -> Reflector[Candidate]:
        keep = partial(pods.candidate, reads=self._reads.value)
        return Reflector(api, pods.PODS, pods.query(self._node_name), keep, self._following)

    def _follow(self, group: TaskGroup, what: str, reflector: Reflector[Any]) -> None:
        self._mirrors[what] = reflector.cell
        group.start_soon(for_ever, reflector.run)
        group.start_soon(for_ever, self._tell, what, reflector.cell)

    async def _tell(self, what: str, mirror: Cell[MirroredObjects[Any]]) -> None:
        """Say once when something goes wrong with this list, and when it is well again."""
        told = ""
        async for seen in mirror.watch():
            wrong = _wrong(what, seen)
            if what == "pods":
                self._scheduled.is_away = bool(seen.error)
                self._scheduled.unseen = f"{UNLISTED}: {seen.error}" if seen.refused else ""
            if wrong and wrong != told:
                log.warning(wrong, list=what, node=self._node_name, error=seen.error)
            elif told and not wrong:
                self._returns.set(self._returns.value + 1)
                log.info(FOLLOWED, list=what, server=self._reached.server)
            told = wrong


def _wrong(what: str, seen: MirroredObjects[Any]) -> str:
    if seen.error:
        return REFUSED if seen.refused else AWAY
    return NAMELESS if what == "nodes" and seen.synced and not seen.objects else ""
