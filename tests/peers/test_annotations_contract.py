"""The real API server takes annotations of vendors on the node, and leaves those of others untouched."""

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
from agent.cluster.node_annotation_writer import AnnotationWriter
from agent.cluster.own_node import ANNOTATED, OwnNode, own_node
from agent.cluster.reflector import FollowTiming, Reflector
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.node_annotation_rules import MAX_BYTES, Annotated

from .apiserver import RealApiServer

KEY = "acme.com/devices"
THEIRS = {"their.io/x": "1"}


@dataclass
class Here:
    """A Node of the test's own at the real server, and what follows and writes it."""

    server: RealApiServer
    name: str
    api: Api
    wanted: Cell[Annotated | None]
    writer: AnnotationWriter

    async def annotations(self) -> Mapping[str, str]:
        found: Any = json.loads(await self.server.kubectl("get", "node", self.name, "-o", "json"))
        its: Mapping[str, str] = found["metadata"].get("annotations", {})
        return its

    async def has(self, expected: Mapping[str, str]) -> None:
        async def had() -> bool:
            return await self.annotations() == expected

        await eventually(had)


@asynccontextmanager
async def annotating(server: RealApiServer, directory: Path, token: str | None = None) -> AsyncIterator[Here]:
    name = f"node-{secrets.token_hex(4)}"
    metadata = {"name": name, "annotations": THEIRS}
    made = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    await server.kubectl("create", "-f", "-", stdin=json.dumps(made))
    access = find(server.kubeconfig(directory / secrets.token_hex(4), token), {})
    assert access is not None
    api = await open_api(access)
    mine: Cell[OwnNode | None] = Cell(None)
    labels: Cell[Mapping[str, str] | None] = Cell(None)
    wanted: Cell[Annotated | None] = Cell(Annotated({KEY: "1"}))
    nodes = Reflector(api, node.NODES, node.query(name), own_node, FollowTiming(shortest=0.01, longest=0.1))
    writer = AnnotationWriter(api, name, wanted, mine, pauses=Pauses(0.01, 0.1), between=0.01)
    async with anyio.create_task_group() as group:
        group.start_soon(nodes.run)
        group.start_soon(writer.run, Cell(0))
        group.start_soon(node.follow, nodes.cell, name, mine, labels)
        yield Here(server, name, api, wanted, writer)
        group.cancel_scope.cancel()
    await api.close()


async def test_a_node_gets_keeps_and_loses_annotations(api_server: RealApiServer, tmp_path: Path) -> None:
    ours = {KEY: "1", ANNOTATED: KEY}
    async with annotating(api_server, tmp_path) as here:
        await here.has({**THEIRS, **ours})

        # Somebody changes ours and one of theirs.
        changed = (f"{KEY}=0", "their.io/x=2")
        await api_server.kubectl("annotate", "node", here.name, "--overwrite", *changed)
        await here.has({"their.io/x": "2", **ours})

        here.wanted.set(Annotated({KEY: "2"}))
        await here.has({"their.io/x": "2", **ours, KEY: "2"})
        here.wanted.set(Annotated())
        await here.has({"their.io/x": "2"})


async def test_as_much_as_the_server_takes_is_written_and_more_is_told(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    room = MAX_BYTES - sum(len(it) for it in (KEY, ANNOTATED, KEY, *THEIRS, *THEIRS.values()))
    async with annotating(api_server, tmp_path) as here:
        here.wanted.set(Annotated({KEY: "x" * room}))
        await here.has({**THEIRS, KEY: "x" * room, ANNOTATED: KEY})

        here.wanted.set(Annotated({KEY: "x" * (room + 1)}))
        await eventually(lambda: "must have at most" in here.writer.error or "Too long" in here.writer.error)


async def test_uninstalling_takes_them_away(api_server: RealApiServer, tmp_path: Path) -> None:
    async with annotating(api_server, tmp_path) as here:
        await here.has({**THEIRS, KEY: "1", ANNOTATED: KEY})
        here.wanted.set(None)

        assert await AnnotationWriter.remove(here.api, here.name)

        await here.has(THEIRS)
