"""The real API server takes the node's Device, and shows a koordlet's hand in it."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from cluster.koordlets import cards, from_files, pod
from schedulers.koordinator import cards as of_node
from support.waiting import eventually

from agent.cluster import own_node as node
from agent.cluster.api_client import open_api
from agent.cluster.credentials import find
from agent.cluster.object_record import ObjectRecord
from agent.cluster.own_node import OwnNode
from agent.cluster.reflector import FollowTiming, Reflector
from agent.cluster.scheduler_report_follower import SchedulerReportFollower
from agent.cluster.scheduler_report_state import SchedulerReportState
from agent.cluster.scheduler_report_timing import SchedulerReportTiming
from agent.config import Config, ConfigState, ReportSettings
from agent.core.cell import Cell
from agent.core.model import Health, Plan
from agent.daemon.publishing.wanted_scheduler_report import WantedSchedulerReport, WantedSchedulerReportTiming
from agent.host.scheduler_report_file import NAME, ReportFileWriter
from agent.scheduler_api.node_report import LinkedCards, PublishedReport, Report, ReportedCard, ShownReport
from agent.schedulers.koordinator.node_report import NODE_REPORT
from agent.vendor_api.agent import State

from .apiserver import KubectlFailed, RealApiServer

CRD = Path(__file__).parents[2] / "deploy/crd/devices.scheduling.koordinator.sh.yaml"
KIND = "devices.scheduling.koordinator.sh"
GIB = 1 << 30


def reported(count: int = 2, **card: Any) -> Report:
    its = {"memory": 48 * GIB, "numa": 0, "pcie": "pci0000:3a", "pci": "0000:3b:00.0", "model": "A40"}
    first = ReportedCard("GPU-0", 0, **{**its, **card})
    labels = {"xpu-agent.io/model": "A40"}
    others = [ReportedCard(f"GPU-{it}", it, labels=labels, **its) for it in range(1, count)]  # type: ignore[arg-type]
    links = (LinkedCards((0, 1), "nvidia"),) if count > 1 else ()
    return Report("nvidia", (first, *others), "A40", "570.1", links)


@dataclass
class Here:
    """A Node of the test's own at the real server, and what looks at its Device and writes it."""

    server: RealApiServer
    name: str
    exchange: SchedulerReportState
    koordinator: SchedulerReportFollower
    node: Cell[OwnNode | None]

    def tell(self, report: Report) -> None:
        self.exchange.published.set(PublishedReport("device", report))

    async def device(self) -> Any:
        try:
            return json.loads(
                await self.server.kubectl("get", KIND, self.name, "-o", "json", "--show-managed-fields")
            )
        except KubectlFailed:
            return None

    async def health(self) -> list[bool]:
        device = await self.device()
        return [it["health"] for it in device["spec"].get("devices", ())] if device else []

    def managers(self, device: Any) -> dict[str, Any]:
        """What each manager has of spec and status."""
        return {
            it["manager"]: {key: value for key, value in it["fieldsV1"].items() if key != "f:metadata"}
            for it in device["metadata"]["managedFields"]
        }

    @property
    def shown(self) -> ShownReport | None:
        return self.exchange.shown.value

    async def is_written(self, *health: bool) -> Any:
        async def written() -> bool:
            return await self.health() == list(health)

        await eventually(written)
        return await self.device()

    async def is_gone(self) -> None:
        async def gone() -> bool:
            return await self.device() is None

        await eventually(gone)

    async def koordlet_writes(self, count: int = 1) -> None:
        """As its update does: devices, labels and annotations of its own in the place of all."""
        await self.koordlet_reports(cards(count))

    async def koordlet_reports(self, devices: Sequence[Mapping[str, Any]]) -> None:
        """The same of these devices. Without any it leaves the list out; the status is there always."""
        there = await self.device()
        there["metadata"] |= {"labels": {}, "annotations": {}}
        there |= {"spec": {"devices": devices} if devices else {}, "status": {}}
        options = ["--field-manager=koordlet", "--filename", "-"]
        await self.server.kubectl("replace", *options, stdin=json.dumps(there))


@pytest.fixture
async def kind(api_server: RealApiServer) -> None:
    await api_server.kubectl("apply", "--server-side", "--validate=strict", "--filename", str(CRD))
    await api_server.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")


async def a_node(server: RealApiServer, name: str) -> None:
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await server.kubectl("create", "--filename", "-", stdin=json.dumps(made))


@asynccontextmanager
async def looking(server: RealApiServer, directory: Path, token: str | None = None) -> AsyncIterator[Here]:
    name = f"node-{secrets.token_hex(4)}"
    await a_node(server, name)
    access = find(server.kubeconfig(directory / secrets.token_hex(4), token), {})
    assert access is not None
    api = await open_api(access)
    own: Cell[OwnNode | None] = Cell(None)
    labels: Cell[Mapping[str, str] | None] = Cell(None)
    exchange, returns = SchedulerReportState(NODE_REPORT), Cell(0)
    exchange.looks.set(True)
    quick = FollowTiming(shortest=0.01, longest=0.1, refused=0.1)
    nodes = Reflector(api, node.NODES, node.query(name), node.own_node, quick)
    timing = SchedulerReportTiming(
        between_writes=0.01, kind_missing=0.2, look=0.05, away=(0.01, 0.1), refused=(0.01, 0.1)
    )
    koordinator = SchedulerReportFollower(api, name, exchange, own, quick, ObjectRecord(), timing)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(nodes.run)
            group.start_soon(node.follow, nodes.cell, name, own, labels)
            group.start_soon(koordinator.run, returns)
            yield Here(server, name, exchange, koordinator, own)
            group.cancel_scope.cancel()
    finally:
        await api.close()


async def test_a_device_is_taken_whole_and_only_what_changes_is_written(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    async with looking(api_server, tmp_path) as here:
        here.tell(reported())
        made = await here.is_written(True, True)

        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Node", here.name)
        assert owner["uid"] == (here.node.value or OwnNode("")).uid
        # Nothing was pruned: what the scheduler books by is there.
        first, second = made["spec"]["devices"]
        assert first["topology"] == {
            "socketID": -1,
            "nodeID": 0,
            "pcieID": "pci0000:3a",
            "busID": "0000:3b:00.0",
        }
        assert first["resources"]["koordinator.sh/gpu-memory"] == "48Gi"
        assert second["labels"] == {"xpu-agent.io/model": "A40"}
        assert "scheduling.koordinator.sh/gpu-partitions" in made["metadata"]["annotations"]

        here.tell(reported(healthy=False, status="False", reason="ECCError", message="chip error 79"))
        sick = await here.is_written(False, True)
        assert sick["spec"]["devices"][0]["conditions"][0]["reason"] == "ECCError"
        await eventually(lambda: here.koordinator.writes == 2)
        here.exchange.published.touch()
        here.tell(reported())
        await here.is_written(True, True)
        await eventually(lambda: here.koordinator.writes == 3)


async def test_labels_annotations_and_cards_of_others_stay(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    async with looking(api_server, tmp_path) as here:
        here.tell(reported(1))
        there = await here.is_written(True)
        await api_server.kubectl("label", KIND, here.name, "theirs=1")
        await api_server.kubectl("annotate", KIND, here.name, "theirs=2")
        there = await here.device()
        nic = {"type": "rdma", "id": "0000:01:00.0", "minor": 0, "health": True}
        there["spec"]["devices"].append(nic)
        await api_server.kubectl("replace", "--filename", "-", stdin=json.dumps(there))

        here.tell(reported(2))

        after = await here.is_written(True, True, True)
        assert nic in after["spec"]["devices"]
        assert after["metadata"]["labels"]["theirs"] == "1"
        assert after["metadata"]["annotations"]["theirs"] == "2"


async def test_a_koordlet_s_hand_is_seen_and_the_device_is_left_to_it(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    async with looking(api_server, tmp_path) as here:
        here.tell(reported())
        await here.is_written(True, True)
        await here.koordlet_writes()

        await eventually(lambda: here.shown is not None and here.shown.overwritten)
        here.tell(reported(3))
        await eventually(lambda: here.shown is not None and here.shown.program)

        assert await here.health() == [True]
        assert here.koordinator.writes == 1


async def test_a_koordlet_that_takes_all_cards_away_is_not_fought(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    """What it has then is the status alone, as the double and the simulated server show it, too."""
    async with looking(api_server, tmp_path) as here:
        here.tell(reported())
        first = await here.is_written(True, True)
        assert here.managers(first) == {"xpu-agent": {"f:spec": {".": {}, "f:devices": {}}}}

        await here.koordlet_writes(0)

        await eventually(lambda: here.shown is not None and here.shown.overwritten)
        here.tell(reported(3))
        await eventually(lambda: here.shown is not None and here.shown.program)
        assert await here.health() == []
        assert here.koordinator.writes == 1
        assert here.managers(await here.device()) == {
            "xpu-agent": {"f:spec": {}},
            "koordlet": {"f:status": {}},
        }


async def test_a_koordlet_that_comes_is_fed_by_the_file_and_the_agent_writes_no_device_any_more(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    directory = tmp_path / "infos"
    directory.mkdir()
    settings = ReportSettings(mode="auto", device_infos_dir=str(directory))
    config = Cell(ConfigState(Config(report=settings), "test"))
    snapshot, plan = Cell(of_node.node(of_node.cards(2))), Cell[Plan]({})

    def fed() -> list[bool]:
        return [it["health"] for it in from_files(directory) or ()]

    async with looking(api_server, tmp_path) as here, anyio.create_task_group() as group:
        reporting = WantedSchedulerReport(
            here.exchange, config, snapshot, plan, timing=WantedSchedulerReportTiming(settle=0.01)
        )
        group.start_soon(reporting.run)
        file = ReportFileWriter(NODE_REPORT, here.exchange.published, 0.05, elsewhere=here.exchange.elsewhere)
        group.start_soon(file.run)
        await here.is_written(True, True)
        assert not (directory / NAME).exists()

        await here.koordlet_reports([])
        await eventually(lambda: fed() == [True, True])
        await here.koordlet_reports(from_files(directory) or ())
        broken = Health(State.UNHEALTHY, "xid-79", "fell off the bus")
        snapshot.set(of_node.node([of_node.card(0), of_node.card(1, health=broken)]))
        await eventually(lambda: fed() == [True, False])
        await here.koordlet_reports(from_files(directory) or ())

        assert await here.health() == [True, False]
        assert here.koordinator.writes == 1
        assert reporting.seen("").mode == "feed"
        assert reporting.seen("").overwritten
        group.cancel_scope.cancel()


async def test_cards_that_nobody_wants_told_any_more_go_and_others_stay(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    async with looking(api_server, tmp_path) as here:
        here.tell(reported())
        there = await here.is_written(True, True)
        nic = {"type": "rdma", "id": "0000:01:00.0", "minor": 0, "health": True}
        there["spec"]["devices"].append(nic)
        await api_server.kubectl("replace", "--filename", "-", stdin=json.dumps(there))

        here.exchange.published.set(PublishedReport("none", withdraw_object=True))
        left = await here.is_written(True)
        assert left["spec"]["devices"] == [nic]
        assert not left["metadata"].get("labels")

        await api_server.kubectl("delete", KIND, here.name)
        here.tell(reported())
        await here.is_written(True, True)
        here.exchange.published.set(PublishedReport("none", withdraw_object=True))
        await here.is_gone()


async def test_a_koordlet_s_pod_is_seen(api_server: RealApiServer, tmp_path: Path, kind: None) -> None:
    space = f"koord-{secrets.token_hex(4)}"
    await api_server.kubectl("create", "namespace", space)
    await api_server.kubectl("create", "serviceaccount", "default", "--namespace", space)
    async with looking(api_server, tmp_path) as here:
        await eventually(lambda: here.shown is not None and not here.shown.program)
        its = pod(here.name)
        its["metadata"]["namespace"] = space
        its["spec"]["containers"][0]["image"] = "koordlet"
        its.pop("status")
        await api_server.kubectl("create", "--filename", "-", stdin=json.dumps(its))

        await eventually(
            lambda: here.shown is not None and f"{space}/koordlet-x runs here" in here.shown.program
        )


async def test_a_node_that_is_made_anew_owns_the_device(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    async with looking(api_server, tmp_path) as here:
        here.tell(reported())
        before = await here.is_written(True, True)
        await api_server.kubectl("delete", "node", here.name)
        await a_node(api_server, here.name)

        async def owners() -> list[str]:
            return [it["uid"] for it in (await here.device())["metadata"]["ownerReferences"]]

        async def is_another() -> bool:
            return await owners() != [before["metadata"]["ownerReferences"][0]["uid"]]

        await eventually(is_another)
        assert await owners() == [(here.node.value or OwnNode("")).uid]


async def test_without_the_kind_nothing_is_asked_and_it_is_written_once_it_is_there_and_there_again(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    async with looking(api_server, tmp_path) as here:
        here.tell(reported())
        await here.is_written(True, True)

        await api_server.kubectl("delete", "crd", KIND)
        await eventually(lambda: here.shown == ShownReport(has_kind=False))
        await api_server.kubectl("apply", "--server-side", "--filename", str(CRD))

        await here.is_written(True, True)


async def test_the_rights_that_the_docs_name_are_enough_and_without_one_it_is_said(
    api_server: RealApiServer, tmp_path: Path, kind: None
) -> None:
    await api_server.kubectl("create", "namespace", (space := f"test-{secrets.token_hex(4)}"))
    await api_server.kubectl("create", "serviceaccount", "agent", "--namespace", space)
    for role, verbs, resource in (
        (space, "get,list,watch", "nodes"),
        (f"{space}-d", "get,list,watch,create", KIND),
        (f"{space}-p", "list,watch", "pods"),
    ):
        await grant(api_server, role, verbs, resource, space)
    token = await api_server.service_account_token("agent", space)

    async with looking(api_server, tmp_path, token) as here:
        here.tell(reported())
        await here.is_written(True, True)
        here.tell(reported(3))
        await eventually(lambda: "403" in here.koordinator.error)

        await grant(api_server, f"{space}-u", "update", KIND, space)

        await here.is_written(True, True, True)


async def grant(server: RealApiServer, role: str, verbs: str, resource: str, space: str) -> None:
    await server.kubectl("create", "clusterrole", role, f"--verb={verbs}", f"--resource={resource}")
    bound = f"--serviceaccount={space}:agent"
    await server.kubectl("create", "clusterrolebinding", role, f"--clusterrole={role}", bound)
