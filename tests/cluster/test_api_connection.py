"""The way to the API server: the Node and its pods come in, labels and events go out, outages are borne."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs
from support.read_annotations import READS
from support.waiting import eventually

from agent.cluster import api_connection as door
from agent.cluster.api_client import open_api
from agent.cluster.api_connection import ApiConnection, ConnectionOptions, FollowedPods
from agent.cluster.api_errors import ApiAway, Forbidden
from agent.cluster.api_protocol import Api, Object
from agent.cluster.credentials import ApiAccess, find
from agent.cluster.object_record import ObjectRecord, ObjectRecords
from agent.cluster.pod_state import PodState
from agent.cluster.pods import PODS
from agent.cluster.reflector import FollowTiming
from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.node_lock_rules import parsed_lock
from agent.core.cell import Cell
from agent.core.event_notices import Notice
from agent.core.publishing.agent_status import AgentStatus, FollowedList
from agent.core.publishing.extended_resource_rules import Extended
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures
from agent.core.publishing.node_annotation_rules import Annotated
from agent.core.publishing.receipt_rules import OwedReceipt
from agent.scheduler_api.candidate import PodList
from agent.scheduler_api.scheduler import AnnotationFilter
from agent.schedulers.common.node_lock import LOCKS
from agent.testing.simapi import SimApiServer

NODE = "node-1"
(KEY,) = LOCKS
QUICK = FollowTiming(shortest=0.01, longest=0.1, refused=0.1)


@dataclass
class Here:
    """A door in use, and the cells behind it."""

    server: SimApiServer
    door: ApiConnection
    labels: Cell[Mapping[str, str] | None]
    pods: Cell[KnownPods]
    wanted: Cell[WantedFeatures | None]
    noted: list[str]
    reads: Cell[AnnotationFilter]
    scheduled: PodState

    def label(self, key: str) -> str | None:
        node = self.server.find("Node", NODE)
        assert node is not None
        found: str | None = node["metadata"]["labels"].get(key)
        return found

    def counted(self, name: str) -> float:
        """As the agent has counted by now: the server shows a write before its answer arrives."""
        return self.door.seen(AgentStatus("n", "v")).counters[name, ()]

    def events(self) -> list[Any]:
        return [it for it in self.server.objects if it["kind"] == "Event"]


@asynccontextmanager
async def opened(
    tmp_path: Path,
    follows_pods: bool = True,
    opening: Callable[[ApiAccess], Awaitable[Api]] = open_api,
    annotations: Cell[Annotated | None] | None = None,
    receipts: Cell[tuple[OwedReceipt, ...]] | None = None,
    extended: Cell[Extended | None] | None = None,
) -> AsyncIterator[Here]:
    async with SimApiServer() as server:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"pool": "train"}}}
        server.put_object(node)
        access = find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert access is not None
        labels: Cell[Mapping[str, str] | None] = Cell(None)
        candidates: Cell[KnownPods] = Cell(KnownPods())
        wanted: Cell[WantedFeatures | None] = Cell(None)
        noted: list[str] = []
        reads: Cell[AnnotationFilter] = Cell(READS)
        scheduled = PodState(candidates)
        way = ApiConnection(
            access,
            NODE,
            labels,
            pods=FollowedPods(candidates, reads) if follows_pods else None,
            pod_state=scheduled,
            records=ObjectRecords(features=ObjectRecord(note=noted.append)),
            options=ConnectionOptions("xpu-agent-x", QUICK, opening),
        )
        async with anyio.create_task_group() as group:
            group.start_soon(way.run, wanted, annotations, receipts, extended)
            yield Here(server, way, labels, candidates, wanted, noted, reads, scheduled)
            group.cancel_scope.cancel()


class Right:
    """To list pods, which is not given from the beginning."""

    def __init__(self) -> None:
        self.given = False
        self.refused = 0

    async def opened(self, access: ApiAccess) -> Api:
        client = await open_api(access)
        inner = client.get

        async def get(path: str, query: Mapping[str, str] | None = None) -> Object:
            if path == PODS and not self.given:
                self.refused += 1
                raise Forbidden(403, "Forbidden", "no right to list pods")
            return await inner(path, query)

        setattr(client, "get", get)  # noqa: B010
        return client


def pod(name: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
    }


async def test_annotations_of_vendors_are_written_to_the_node_and_a_refusal_is_told(tmp_path: Path) -> None:
    annotations: Cell[Annotated | None] = Cell(Annotated({"acme.com/devices": "1"}))

    def found(here: Here) -> Mapping[str, str]:
        node = here.server.find("Node", NODE)
        assert node is not None
        its: Mapping[str, str] = node["metadata"].get("annotations", {})
        return its

    async with opened(tmp_path, annotations=annotations) as here:
        await eventually(lambda: found(here).get("acme.com/devices") == "1")
        await eventually(lambda: here.counted("annotation_writes") == 1)

        here.server.forbid("patch", f"/api/v1/nodes/{NODE}")
        annotations.set(Annotated({"acme.com/devices": "2"}))
        await eventually(lambda: "403" in here.door.seen(AgentStatus("n", "v")).annotations_error)


async def test_extended_resources_of_vendors_are_written_to_the_nodes_status_and_a_refusal_is_told(
    tmp_path: Path,
) -> None:
    extended: Cell[Extended | None] = Cell(Extended({"acme.com/card-count": 8}))

    def found(here: Here) -> Mapping[str, Any]:
        node = here.server.find("Node", NODE)
        assert node is not None
        its: Mapping[str, Any] = node.get("status", {})
        return its

    async with opened(tmp_path, extended=extended) as here:
        counts = {"acme.com/card-count": "8"}
        await eventually(lambda: found(here) == {"capacity": counts, "allocatable": counts})
        await eventually(lambda: here.counted("extended_writes") == 1)

        here.server.forbid("patch", f"/api/v1/nodes/{NODE}/status")
        extended.set(Extended({"acme.com/card-count": 7}))
        await eventually(lambda: "403" in here.door.seen(AgentStatus("n", "v")).extended_error)
        seen = here.door.seen(AgentStatus("n", "v", extended_error="its plugin fails"))
        assert seen.extended_error.startswith("its plugin fails; ")
        assert not any("its plugin fails" in it for it in seen.troubles), "all that is served is well"


async def test_pods_tell_their_schedulers_that_they_have_their_devices_and_a_refusal_is_told(
    tmp_path: Path,
) -> None:
    receipts: Cell[tuple[OwedReceipt, ...]] = Cell(
        (OwedReceipt("uid-mine", "default", "mine", {"acme.com/given": "1"}),)
    )

    async with opened(tmp_path, receipts=receipts) as here:
        here.server.put_object(pod("mine", NODE))
        await eventually(lambda: here.counted("receipt_writes") == 1)
        receipts.set(())

        here.server.put_object(pod("other", NODE))
        here.server.forbid("patch", "/api/v1/namespaces/default/pods/other")
        receipts.set((OwedReceipt("uid-other", "default", "other", {"acme.com/given": "1"}),))

        await eventually(lambda: "403" in here.door.seen(AgentStatus("n", "v")).receipts_error)
        seen = here.door.seen(AgentStatus("n", "v", receipts_error="its dialect fails"))
        assert seen.receipts_error.startswith("its dialect fails; default/other: 403")
        assert seen.receipts_owed == 1


async def test_the_nodes_labels_and_its_pods_alone_come_in(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        here.server.put_object(pod("mine", NODE))
        here.server.put_object(pod("another-nodes", "node-2"))

        await eventually(lambda: here.labels.value and here.pods.value)

        assert here.labels.value == {"pool": "train"}
        assert [it.name for it in here.pods.value] == ["mine"]
        assert here.door.status.synced


async def test_a_schedulers_lock_comes_in_and_is_freed_once_it_is_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        held = "2026-11-20T21:34:09Z,default,web"
        metadata = {"name": NODE, "annotations": {KEY: held, "others": "word"}}
        here.server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        await eventually(lambda: here.scheduled.locks.annotations.value == {KEY: held})
        found = parsed_lock(KEY, held)
        assert found is not None

        here.scheduled.locks.over.set({found: "its pod has its devices"})

        await eventually(lambda: here.scheduled.locks.annotations.value == {})
        node = here.server.find("Node", NODE)
        assert node is not None
        assert node["metadata"]["annotations"] == {"others": "word"}
        await eventually(lambda: here.counted("locks_freed") == 1)


async def listed(here: Here) -> PodList | None:
    assert here.scheduled.ask is not None
    return await here.scheduled.ask()


async def test_the_pods_that_wait_are_listed_at_once_where_somebody_asks(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        await eventually(lambda: here.door.status.up)
        here.server.put_object({**pod("waits", NODE), "status": {"phase": "Pending"}})
        here.server.put_object({**pod("ran", NODE), "status": {"phase": "Running"}})
        here.server.put_object({**pod("ended", NODE), "status": {"phase": "Succeeded"}})
        here.server.put_object({**pod("failed", NODE), "status": {"phase": "Failed"}})
        here.server.put_object({**pod("another-nodes", "node-2"), "status": {"phase": "Pending"}})

        # Who ran before a boot is shown as Running, and asks anew.
        found = await listed(here)
        assert found is not None
        assert sorted(it.name for it in found.pods) == ["ran", "waits"]
        assert found.version >= max(it.version for it in found.pods) > 0


async def test_nobody_waits_for_a_list_of_pods_while_the_server_is_known_to_be_away(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        await eventually(lambda: here.door.status.up)
        await here.server.go_away()
        await eventually(lambda: not here.door.status.up)

        assert await listed(here) is None


async def test_a_server_that_is_known_to_be_away_is_not_asked_for_pods_though_it_may_be_back(
    tmp_path: Path,
) -> None:
    asked: list[Mapping[str, str]] = []

    async def opening(access: ApiAccess) -> Api:
        client = await open_api(access)
        inner = client.get

        async def get(path: str, query: Mapping[str, str] | None = None) -> Object:
            if "status.phase!=Failed" in (query or {}).get("fieldSelector", ""):
                asked.append(query or {})
            return await inner(path, query)

        setattr(client, "get", get)  # noqa: B010
        return client

    async with opened(tmp_path, opening=opening) as here:
        await eventually(lambda: here.door.status.up)
        await listed(here)
        known_up = len(asked)
        await here.server.go_away()
        await eventually(lambda: not here.door.status.up)

        await listed(here)

        assert (known_up, len(asked)) == (1, 1)


async def test_why_a_lock_stays_is_shown(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        held = "2026-11-20T21:34:09Z,default,web"
        metadata = {"name": NODE, "annotations": {KEY: held}}
        here.server.put_object({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        here.server.forbid("patch", f"/api/v1/nodes/{NODE}")
        found = parsed_lock(KEY, held)
        assert found is not None

        here.scheduled.locks.over.set({found: "its pod has its devices"})

        await eventually(lambda: here.door.seen(AgentStatus("n", "v")).locks_error)


async def test_labels_and_events_go_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        here.wanted.set(WantedFeatures("node", VendorLabels({"example.com/gpu.count": "4"})))
        here.door.events.add(Notice("DeviceUnhealthy", "card 3: xid-79"))

        await eventually(lambda: here.label("example.com/gpu.count") == "4")
        await eventually(here.events)

        (event,) = here.events()
        assert (event["reason"], event["reportingInstance"]) == ("DeviceUnhealthy", "xpu-agent-x")


async def test_where_a_node_feature_is_made_is_noted(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        here.wanted.set(WantedFeatures("nodeFeature", VendorLabels({"example.com/gpu.count": "4"}), "gpu"))

        await eventually(lambda: here.server.find("NodeFeature", f"xpu-agent-features-for-{NODE}", "gpu"))

        assert here.noted == ["gpu"]


async def test_without_a_cell_for_them_pods_are_not_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path, follows_pods=False) as here:
        await eventually(lambda: here.door.status.synced)

        assert set(here.door.status.followed) == {"nodes"}


async def test_the_annotations_that_a_dialect_reads_come_in_also_of_pods_that_were_here_before(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as here:
        mine = pod("mine", NODE)
        mine["metadata"]["annotations"] = {"acme.com/card": "3", "other.com/card": "4"}
        here.server.put_object(mine)
        await eventually(lambda: here.pods.value)
        assert here.pods.value[0].annotations == {}

        here.reads.set(AnnotationFilter((*READS.prefixes, "acme.com/")))

        await eventually(lambda: [it.annotations for it in here.pods.value] == [{"acme.com/card": "3"}])
        here.server.put_object(pod("next", NODE))
        await eventually(lambda: {it.name for it in here.pods.value} == {"mine", "next"})
        await eventually(lambda: here.door.status.synced)


async def test_while_other_annotations_are_read_the_pods_stay_though_the_server_is_away(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as here:
        here.server.put_object(pod("mine", NODE))
        await eventually(lambda: here.pods.value)
        await here.server.go_away()
        await eventually(lambda: here.door.status.error)

        here.reads.set(AnnotationFilter((*READS.prefixes, "acme.com/")))
        await eventually(lambda: not here.door.status.followed["pods"].synced)
        await eventually(lambda: here.door.status.followed["pods"].error)

        assert [it.name for it in here.pods.value] == ["mine"]


async def test_pods_that_may_not_be_read_are_said_once_and_keep_nothing_else_from_working(
    tmp_path: Path,
) -> None:
    right = Right()
    with capture_logs() as logs:
        async with opened(tmp_path, opening=right.opened) as here:
            here.server.put_object(pod("mine", NODE))
            await eventually(lambda: right.refused > 3 and here.labels.value)

            status = here.door.status
            assert status.followed["nodes"] == FollowedList(synced=True)
            assert (status.synced, status.followed["pods"].synced) == (False, False)
            assert status.up
            assert status.error == "pods: 403 Forbidden: no right to list pods"
            assert [it["list"] for it in logs if it["event"] == door.REFUSED] == ["pods"]

            right.given = True
            await eventually(lambda: here.pods.value and not here.door.status.error)

        assert [it["list"] for it in logs if it["event"] == door.REFUSED] == ["pods"]
        assert [it["list"] for it in logs if it["event"] == door.FOLLOWED] == ["pods"]


async def test_a_server_that_goes_away_is_said_once_of_each_list_and_so_is_its_return(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with opened(tmp_path) as here:
            await eventually(lambda: here.door.status.synced)
            await here.server.go_away()
            await eventually(lambda: all(it.error for it in here.door.status.followed.values()))
            assert not here.door.status.up
            await here.server.come_back()
            await eventually(lambda: sum(it["event"] == door.FOLLOWED for it in logs) == 2)
            await eventually(lambda: here.door.status.up)

    assert sorted(it["list"] for it in logs if it["event"] == door.AWAY) == ["nodes", "pods"]


async def test_a_server_that_a_rewritten_kubeconfig_names_is_shown(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        await eventually(lambda: here.door.status.synced)
        assert "//127.0.0.1:" in here.door.status.address
        rewritten = tmp_path / "rewritten"
        here.server.kubeconfig(rewritten)
        rewritten.write_text(rewritten.read_text().replace("//127.0.0.1:", "//localhost:"))
        rewritten.replace(tmp_path / "kubeconfig")
        await here.server.go_away()  # so that it is asked often

        await eventually(lambda: "//localhost:" in here.door.status.address)


async def test_while_the_server_is_away_what_was_seen_stays_and_what_was_told_follows(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        here.server.put_object(pod("mine", NODE))
        await eventually(lambda: here.labels.value and here.pods.value)
        await here.server.go_away()
        await eventually(lambda: here.door.status.error)

        here.wanted.set(WantedFeatures("node", VendorLabels({"example.com/gpu.count": "4"})))
        here.door.events.add(Notice("DeviceUnhealthy", "card 3: xid-79"))
        assert here.labels.value == {"pool": "train"}
        assert [it.name for it in here.pods.value] == ["mine"]
        await here.server.come_back()

        await eventually(lambda: here.label("example.com/gpu.count") == "4")
        await eventually(here.events)
        await eventually(lambda: not here.door.status.error)


async def test_what_waits_for_the_server_goes_out_once_its_lists_are_followed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cluster.event_writer.PAUSES", (3600.0, 3600.0))
    async with opened(tmp_path) as here:
        await eventually(lambda: here.door.status.synced)
        await here.server.go_away()
        await eventually(lambda: here.door.status.error)
        here.door.events.add(Notice("DeviceUnhealthy", "card 3: xid-79"))
        await eventually(lambda: here.door.events.counts["retried"])
        await here.server.come_back()

        await eventually(here.events)


async def test_a_way_that_can_not_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.cluster.api_connection.PAUSES", (0.01, 0.02))
    tries = 0

    async def opening(access: ApiAccess) -> Api:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ApiAway("the certificate cannot be used")
        return await open_api(access)

    way = ApiConnection(
        ApiAccess("http://127.0.0.1:1"),
        NODE,
        Cell(None),
        pods=FollowedPods(Cell(KnownPods()), Cell(READS)),
        options=ConnectionOptions(following=QUICK, open=opening),
    )
    assert (way.status.error, way.status.up) == ("not opened yet", False)
    async with anyio.create_task_group() as group:
        group.start_soon(way.run, Cell[WantedFeatures | None](None))
        await eventually(lambda: "127.0.0.1:1" in way.status.error and tries == 3)
        group.cancel_scope.cancel()
