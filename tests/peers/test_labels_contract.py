"""The real API server takes the node's labels, as labels of its Node and as a NodeFeature object."""

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
from agent.cluster.api_client import Client, open_api
from agent.cluster.credentials import find
from agent.cluster.label_patches import NODE_NAME, OWNED
from agent.cluster.label_writer import LabelTiming, LabelWriter, remove
from agent.cluster.own_node import OwnNode, own_node
from agent.cluster.reflector import FollowTiming, Reflector
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures

from .apiserver import RealApiServer
from .nodefeatures import node_features

TWO = {"acme.com/count": "2", "acme.com/model": "x"}
THREE = {"acme.com/count": "3"}

#: As strict as that of node-feature-discovery: what its NodeFeature must have, and of which types.
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SPEC = {
    "type": "object",
    "properties": {
        "labels": STRINGS,
        "features": {
            "type": "object",
            "required": ["attributes", "flags", "instances"],
            "properties": {"attributes": ANY, "flags": ANY, "instances": ANY},
        },
    },
}
CRD = node_features({"type": "object", "required": ["spec"], "properties": {"spec": SPEC}})


@dataclass
class Here:
    """A Node of the test's own at the real server, and what follows and writes it."""

    server: RealApiServer
    name: str
    wanted: Cell[WantedFeatures | None]
    node: Cell[OwnNode | None]
    writer: LabelWriter
    api: Client

    async def metadata(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(
            await self.server.kubectl("get", "node", self.name, "-o", "json")
        )
        return found["metadata"]  # type: ignore[no-any-return]

    def labels(self) -> Mapping[str, str]:
        """As the watch tells them, but those that a Node is made with."""
        found = self.node.value.labels if self.node.value else {}
        return {key: value for key, value in found.items() if "kubernetes.io/" not in key}


@asynccontextmanager
async def labelling(
    server: RealApiServer, directory: Path, token: str | None = None, told_as: Any = "node"
) -> AsyncIterator[Here]:
    name = f"node-{secrets.token_hex(4)}"
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": "a"}}}
    await server.kubectl("create", "-f", "-", stdin=json.dumps(made))
    access = find(server.kubeconfig(directory / secrets.token_hex(4), token), {})
    assert access is not None
    api = await open_api(access)
    mine: Cell[OwnNode | None] = Cell(None)
    labels: Cell[Mapping[str, str] | None] = Cell(None)
    wanted: Cell[WantedFeatures | None] = Cell(WantedFeatures(told_as, VendorLabels(TWO)))
    nodes = Reflector(api, node.NODES, node.query(name), own_node, FollowTiming(shortest=0.01, longest=0.1))
    writer = LabelWriter(
        api, name, "default", wanted, mine, pauses=Pauses(0.01, 0.1), timing=LabelTiming(0.01)
    )
    async with anyio.create_task_group() as group:
        group.start_soon(nodes.run)
        group.start_soon(writer.run, Cell(0))
        group.start_soon(node.follow, nodes.cell, name, mine, labels)
        yield Here(server, name, wanted, mine, writer, api)
        group.cancel_scope.cancel()
    await api.close()


async def test_a_node_gets_loses_and_keeps_labels(api_server: RealApiServer, tmp_path: Path) -> None:
    async with labelling(api_server, tmp_path) as here:
        await eventually(lambda: here.labels() == {"pool": "a", **TWO})

        here.wanted.set(WantedFeatures("node", VendorLabels(THREE)))
        await eventually(lambda: here.labels() == {"pool": "a", **THREE})

        # Somebody removes one, and sets another.
        await api_server.kubectl("label", "node", here.name, "acme.com/count-", "acme.com/theirs=1")
        await eventually(lambda: here.labels() == {"pool": "a", "acme.com/theirs": "1", **THREE})
        assert (await here.metadata())["annotations"][OWNED] == "acme.com/count"

        here.wanted.set(WantedFeatures())
        await eventually(lambda: here.labels() == {"pool": "a", "acme.com/theirs": "1"})
        assert OWNED not in (await here.metadata()).get("annotations", {})


async def test_a_node_seen_as_it_was_is_not_overwritten(api_server: RealApiServer, tmp_path: Path) -> None:
    async with labelling(api_server, tmp_path) as here:
        await eventually(lambda: here.labels() == {"pool": "a", **TWO})
        old = here.node.value
        here.wanted.set(WantedFeatures("node", VendorLabels(THREE)))
        await eventually(lambda: here.labels() == {"pool": "a", **THREE})

        # The watch lags behind: what it tells is from before the last write.
        writer = LabelWriter(here.api, here.name, "default", here.wanted, Cell(old))
        here.wanted.set(WantedFeatures("node", VendorLabels({**THREE, "acme.com/new": "1"})))
        await writer.once()

        await eventually(lambda: here.labels() == {"pool": "a", "acme.com/new": "1", **THREE})
        assert (await here.metadata())["annotations"][OWNED] == "acme.com/count,acme.com/new"


async def test_a_node_that_may_not_be_written_is_an_error_of_the_labels(
    api_server: RealApiServer, tmp_path: Path
) -> None:
    await api_server.kubectl("create", "namespace", (space := f"test-{secrets.token_hex(4)}"))
    await api_server.kubectl("create", "serviceaccount", "agent", "--namespace", space)
    await api_server.kubectl("create", "clusterrole", space, "--verb=get,list,watch", "--resource=nodes")
    bound = f"--serviceaccount={space}:agent"
    await api_server.kubectl("create", "clusterrolebinding", space, f"--clusterrole={space}", bound)
    token = await api_server.service_account_token("agent", space)

    async with labelling(api_server, tmp_path, token) as here:
        await eventually(lambda: "403 Forbidden" in here.writer.error)

        await api_server.kubectl("create", "clusterrole", f"{space}-w", "--verb=patch", "--resource=nodes")
        await api_server.kubectl(
            "create", "clusterrolebinding", f"{space}-w", f"--clusterrole={space}-w", bound
        )

        await eventually(lambda: here.labels() == {"pool": "a", **TWO} and not here.writer.error)


async def test_a_node_feature_is_made_changed_and_removed(api_server: RealApiServer, tmp_path: Path) -> None:
    # The server is that of other tests, too, which may have brought the kind.
    await api_server.kubectl("delete", "crd", CRD["metadata"]["name"], "--ignore-not-found")
    async with labelling(api_server, tmp_path, told_as="nodeFeature") as here:
        # A cluster without node-feature-discovery, and then with it.
        await eventually(lambda: "install node-feature-discovery there" in here.writer.error)
        await api_server.kubectl("apply", "-f", "-", stdin=json.dumps(CRD))

        await eventually(lambda: here.writer.writes == 1 and not here.writer.error)
        made = await feature(here)
        assert made["metadata"]["labels"] == {NODE_NAME: here.name}
        assert made["spec"] == {"features": {"attributes": {}, "flags": {}, "instances": {}}, "labels": TWO}

        here.wanted.set(WantedFeatures("nodeFeature", VendorLabels(THREE)))
        await eventually(lambda: here.writer.writes == 2)
        assert (await feature(here))["spec"]["labels"] == THREE
        assert here.labels() == {"pool": "a"}

        await remove(here.api, here.name, "default")
        assert await here.server.kubectl("get", "nodefeatures", "-o", "name") == ""


async def feature(here: Here) -> Mapping[str, Any]:
    name = f"xpu-agent-features-for-{here.name}"
    found: Mapping[str, Any] = json.loads(await here.server.kubectl("get", "nodefeature", name, "-o", "json"))
    return found
