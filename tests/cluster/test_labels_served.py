"""Labels on their way through a server: they choose the node's configuration, and its devices make others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.waiting import eventually

from agent.cluster import own_node
from agent.cluster.api_client import open_api
from agent.cluster.credentials import find
from agent.cluster.label_writer import LabelTiming, LabelWriter
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import FollowTiming, Reflector
from agent.config import CONFIG_LABEL, ConfigWatch, Labels, RememberedConfig
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures
from agent.testing.simapi import SimApiServer

NODE = "node-1"
LABELS = {"acme.com/count": "2"}


@dataclass
class Here:
    """The server with its Node, and what follows and writes it."""

    server: SimApiServer
    watch: ConfigWatch
    wanted: Cell[WantedFeatures | None]

    def labels(self) -> Mapping[str, str]:
        found = self.server.find("Node", NODE)
        assert found is not None
        labels: Mapping[str, str] = found["metadata"].get("labels", {})
        return labels

    def set_label(self, value: str | None) -> None:
        """As `kubectl label node` does."""
        found: Any = self.server.find("Node", NODE)
        labels = {key: it for key, it in found["metadata"].get("labels", {}).items() if key != CONFIG_LABEL}
        found["metadata"]["labels"] = {**labels, **({CONFIG_LABEL: value} if value is not None else {})}
        self.server.put_object(found)

    def chosen(self, name: str) -> Callable[[], bool]:
        return lambda: self.watch.cell.value.name == name and not self.watch.cell.value.error


@asynccontextmanager
async def serving(tmp_path: Path, before: RememberedConfig, *, away: bool = False) -> AsyncIterator[Here]:
    configs = tmp_path / "configs"
    configs.mkdir()
    for name in ("default", "any"):
        (configs / name).write_text("version: v1")
    async with SimApiServer() as server:
        metadata = {"name": NODE, "labels": {"pool": "a", CONFIG_LABEL: "any"}}
        server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        if away:
            await server.go_away()
        access = find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert access is not None
        api = await open_api(access)
        labels: Cell[Labels | None] = Cell(None)
        mine: Cell[OwnNode | None] = Cell(None)
        wanted: Cell[WantedFeatures | None] = Cell(WantedFeatures("node", VendorLabels(LABELS)))
        quick = FollowTiming(shortest=0.01, longest=0.1)
        nodes = Reflector(api, own_node.NODES, own_node.query(NODE), own_node.own_node, quick)
        writer = LabelWriter(
            api, NODE, "ours", wanted, mine, pauses=Pauses(0.01, 0.1), timing=LabelTiming(0.01)
        )
        watch = ConfigWatch(configs, NODE, settle=0.01, labels=labels, recall=lambda _: before)
        async with anyio.create_task_group() as group:
            for loop in (nodes.run, partial(writer.run, Cell(0)), watch.run):
                group.start_soon(loop)
            group.start_soon(own_node.follow, nodes.cell, NODE, mine, labels)
            yield Here(server, watch, wanted)
            group.cancel_scope.cancel()
        await api.close()


async def test_the_node_s_label_chooses_and_the_devices_labels_come_beside_it(tmp_path: Path) -> None:
    async with serving(tmp_path, RememberedConfig()) as here:
        assert here.watch.cell.value.waiting
        await eventually(here.chosen("any"))
        await eventually(lambda: here.labels() == {"pool": "a", CONFIG_LABEL: "any", **LABELS})

        here.set_label(None)
        await eventually(here.chosen("default"))

        here.set_label("any")
        await eventually(here.chosen("any"))


@pytest.mark.parametrize(
    "known", [RememberedConfig({CONFIG_LABEL: "default"}, "default"), RememberedConfig()]
)
async def test_a_server_that_is_away_at_the_start_is_caught_up_with(
    tmp_path: Path, known: RememberedConfig
) -> None:
    async with serving(tmp_path, known, away=True) as here:
        # What was seen last time holds, and what was not is awaited.
        assert here.watch.cell.value.waiting == (not known.labels)
        assert here.watch.cell.value.name == known.config

        await here.server.come_back()

        await eventually(here.chosen("any"))
        await eventually(lambda: here.labels().items() >= LABELS.items())


async def test_an_outage_changes_nothing_and_what_changed_meanwhile_is_written_after_it(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, RememberedConfig()) as here:
        await eventually(here.chosen("any"))
        await eventually(lambda: here.labels().items() >= LABELS.items())

        await here.server.go_away()
        here.wanted.set(WantedFeatures("node", VendorLabels({"acme.com/other": "1"})))
        here.set_label("default")
        await here.server.come_back()

        await eventually(here.chosen("default"))
        await eventually(
            lambda: here.labels() == {"pool": "a", CONFIG_LABEL: "default", "acme.com/other": "1"}
        )
