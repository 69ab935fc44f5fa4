"""The agent's way to the API server: opened late, kept open, and missed by nobody while it is shut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import anyio
import structlog

from agent.cluster import node, pods
from agent.cluster.access import Access
from agent.cluster.api import Api
from agent.cluster.client import open_api
from agent.cluster.errors import ApiAway
from agent.cluster.events import Events
from agent.cluster.labels import LabelWriter
from agent.cluster.node import OwnNode, own_node
from agent.cluster.reflector import Following, Mirror, Reflector
from agent.core.cell import Cell
from agent.core.claims import Candidate
from agent.core.labels import Wanted
from agent.core.pauses import Pauses
from agent.core.view import ApiServer, Counters, View

log = structlog.get_logger()

#: Seconds between tries to open, the first and the longest; and what a goodbye may take.
PAUSES = (1.0, 60.0)
GOODBYE = 1.0


class Door:
    """Follows this node's Node and pods, and writes its labels and events, for as long as it runs."""

    def __init__(
        self,
        access: Access,
        node_name: str,
        labels: Cell[Mapping[str, str] | None],
        candidates: Cell[tuple[Candidate, ...]],
        *,
        instance: str = "",
        note: Callable[[str], object] = lambda _: None,
        following: Following | None = None,
        opening: Callable[[Access], Awaitable[Api]] = open_api,
    ) -> None:
        """`labels` and `candidates` are kept as the server has them; `instance` is this agent's pod.

        `note` is told the namespaces in which NodeFeature objects are made.
        """
        self._access = access
        self._node_name = node_name
        self._labels = labels
        self._candidates = candidates
        self._note = note
        self._following = following
        self._opening = opening
        self.events = Events(node_name, instance)
        #: This node's Node, as last seen.
        self.node: Cell[OwnNode | None] = Cell(None)
        self._mirrors: tuple[Cell[Mirror[OwnNode]], Cell[Mirror[Candidate]]] | None = None
        self._writer: LabelWriter | None = None
        self._error = "not opened yet"

    def seen(self, base: View) -> View:
        """The view with what is known here."""
        error = self._writer.error if self._writer else ""
        return replace(
            base,
            api_server=self.status,
            labels_error="; ".join(it for it in (base.labels_error, error) if it),
            counters={**base.counters, **self._counters()},
        )

    @property
    def status(self) -> ApiServer:
        if self._mirrors is None:
            return ApiServer(str(self._access), error=self._error)
        mirrors = [it.value for it in self._mirrors]
        error = next((it.error for it in mirrors if it.error), "")
        return ApiServer(str(self._access), all(it.synced for it in mirrors), error)

    def _counters(self) -> Counters:
        counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("events", (("outcome", outcome),)): count for outcome, count in self.events.counts.items()
        }
        counters["label_writes", ()] = self._writer.writes if self._writer else 0
        return counters

    async def run(self, wanted: Cell[Wanted | None]) -> None:
        """Serve for ever. `wanted`: the labels that the Node is to have."""
        api = await self._opened()
        nodes = Reflector(api, node.NODES, node.query(self._node_name), own_node, self._following)
        its_pods = Reflector(api, pods.PODS, pods.query(self._node_name), pods.candidate, self._following)
        self._writer = LabelWriter(
            api, self._node_name, self._access.namespace, wanted, self.node, note=self._note
        )
        self._mirrors = nodes.cell, its_pods.cell
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(nodes.run)
                group.start_soon(its_pods.run)
                group.start_soon(node.follow, nodes.cell, self._node_name, self.node, self._labels)
                group.start_soon(pods.follow, its_pods.cell, self._candidates)
                group.start_soon(self._writer.run)
                group.start_soon(self.events.run, api)
                group.start_soon(self._tell, nodes.cell)
        finally:
            with anyio.move_on_after(GOODBYE, shield=True):
                await api.close()

    async def _opened(self) -> Api:
        """What can not be used now may be mended meanwhile: a kubeconfig, a certificate."""
        pauses = Pauses(*PAUSES)
        while True:
            try:
                return await self._opening(self._access)
            except ApiAway as exc:
                if str(exc) != self._error:
                    log.error("no way to the API server", error=str(exc))
                self._error = str(exc)
            await anyio.sleep(pauses.next())

    async def _tell(self, mirror: Cell[Mirror[OwnNode]]) -> None:
        """Say once when the server goes away and when it is back."""
        away = False
        async for seen in mirror.watch():
            if seen.error and not away:
                log.warning("the API server is away; devices are served as before", error=seen.error)
            elif away and not seen.error:
                log.info("the API server is back", server=self._access.server)
            elif seen.synced and not seen.objects and not seen.error:
                log.warning("the API server has no Node of this name", node=self._node_name)
            away = bool(seen.error)
