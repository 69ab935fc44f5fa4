"""The real API server takes a vendor's extended resources into the node's status, and others' stay there."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from support.waiting import eventually

from agent.cluster import own_node as node
from agent.cluster.api_client import open_api
from agent.cluster.api_protocol import Api
from agent.cluster.credentials import find
from agent.cluster.extended_resource_writer import EXTENDED, ExtendedWriter
from agent.cluster.own_node import OwnNode, own_node
from agent.cluster.reflector import FollowTiming, Reflector
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.extended_resource_rules import Extended

from .apiserver import RealApiServer

NAME, MORE = "acme.com/card-count", "acme.com/board-count"
KUBELETS = {"cpu": "8", "acme.com/card": "2"}
OURS = {NAME: "8"}


@dataclass
class Here:
    """A Node of the test's own at the real server, and what follows it and writes its status."""

    server: RealApiServer
    name: str
    api: Api
    wanted: Cell[Extended | None]

    async def node(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(
            await self.server.kubectl("get", "node", self.name, "-o", "json")
        )
        return found

    async def patched(self, status: Mapping[str, Any]) -> None:
        how = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        await self.server.kubectl("patch", "node", self.name, *how)

    async def has(self, counts: Mapping[str, str], record: str | None) -> None:
        """Both lists have these beside the kubelet's, and the Node tells whose they are."""

        async def had() -> bool:
            return _is_so(await self.node(), {**KUBELETS, **counts}, record)

        await eventually(had)


def _is_so(there: Mapping[str, Any], counts: Mapping[str, str], record: str | None) -> bool:
    status, metadata = there["status"], there["metadata"]
    same = status.get("capacity") == status.get("allocatable") == counts
    return bool(same and metadata.get("annotations", {}).get(EXTENDED) == record)


@asynccontextmanager
async def counting(server: RealApiServer, directory: Path) -> AsyncIterator[Here]:
    name = f"node-{secrets.token_hex(4)}"
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await server.kubectl("create", "-f", "-", stdin=json.dumps(made))
    access = find(server.kubeconfig(directory / secrets.token_hex(4)), {})
    assert access is not None
    api = await open_api(access)
    mine: Cell[OwnNode | None] = Cell(None)
    labels: Cell[Mapping[str, str] | None] = Cell(None)
    wanted: Cell[Extended | None] = Cell(Extended({NAME: 8}))
    here = Here(server, name, api, wanted)
    await here.patched({"capacity": KUBELETS, "allocatable": KUBELETS, "phase": "Running"})
    nodes = Reflector(api, node.NODES, node.query(name), own_node, FollowTiming(shortest=0.01, longest=0.1))
    writer = ExtendedWriter(api, name, wanted, mine, pauses=Pauses(0.01, 0.1), between=0.01)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(nodes.run)
            group.start_soon(writer.run, Cell(0))
            group.start_soon(node.follow, nodes.cell, name, mine, labels)
            yield here
            group.cancel_scope.cancel()
    finally:
        await api.close()


async def test_a_nodes_status_gets_keeps_and_loses_a_count(api_server: RealApiServer, tmp_path: Path) -> None:
    async with counting(api_server, tmp_path) as here:
        await here.has(OURS, NAME)
        assert (await here.node())["status"]["phase"] == "Running"

        # As a kubelet does at its start that finds no plugin's file.
        await here.patched({"capacity": {NAME: "0"}, "allocatable": {NAME: "0"}})
        await here.has(OURS, NAME)

        here.wanted.set(Extended({NAME: 16000}))
        await here.has({NAME: "16k"}, NAME)
        here.wanted.set(Extended({MORE: 2}))
        await here.has({MORE: "2"}, MORE)
        here.wanted.set(Extended())
        await here.has({}, None)


async def test_what_stands_there_already_changes_nothing_on_the_server(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    async with counting(api_server, tmp_path) as here:
        await here.has(OURS, NAME)
        before = await here.node()

        assert not await ExtendedWriter.write(here.api, here.name, Extended({NAME: 8}))

        assert (await here.node())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_uninstalling_takes_it_away(api_server: RealApiServer, tmp_path: Path) -> None:
    async with counting(api_server, tmp_path) as here:
        await here.has(OURS, NAME)
        here.wanted.set(None)

        assert await ExtendedWriter.remove(here.api, here.name)

        await here.has({}, None)
