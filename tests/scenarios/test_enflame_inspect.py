"""What GCUShare's users read of a node: their manual's four pods, from the scheduler's word to the JSON."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio.to_thread
import pytest
from support.short_places import SHORT_PLACE

from agent.cli import main
from agent.http import serving
from agent.http.admin_client import ask
from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_ENFLAME
from .enflame import DRS, GB, GCU, MEMORY, S60, SHARED, Enflame
from .node import Node, confirmed, one, released

pytestmark = ONLY_ENFLAME
PATH = "/gcushare-scheduler/inspect"


@dataclass(frozen=True)
class Told:
    """A pod of the manual: when it was made (Unix, and as written), its units, and their card."""

    pod: Pod
    created: float
    written: str
    units: int
    card: int


def manuals(n: int, uid: str, created: float, written: str, units: int, card: int) -> Told:
    pod = Pod(f"gcushare-pod-{n}", (Container({MEMORY: units}, "pod-gcu-example"),), "kube-system", uid)
    return Told(pod, created, written, units, card)


PODS = (
    manuals(1, "2713cdab-6ec7-40be-a0e6-bf144efb0098", 1662450043.0, "2022-09-06T07:40:43Z", 4, 0),
    manuals(2, "62b070a4-0c77-4371-adfa-b20b17e90657", 1662452889.0, "2022-09-06T08:28:09Z", 8, 0),
    manuals(3, "b2b0701d-9664-4763-a1eb-5892579bcb7a", 1662453232.0, "2022-09-06T08:33:52Z", 12, 1),
)


def document(*pods: Told, cards: int = 8, name: str = "node") -> dict[str, Any]:
    """As the manual prints it."""
    devices = [_device(card, [it for it in pods if it.card == card]) for card in range(cards)]
    used = sum(it.units for it in pods)
    total = {"totalGCU": 16 * cards, "usedGCU": used, "availableGCU": 16 * cards - used}
    return {"nodes": [{"name": name, **total, "devices": devices}]}


def _device(card: int, pods: list[Told]) -> dict[str, Any]:
    used = sum(it.units for it in pods)
    its = [
        {
            "name": it.pod.name,
            "namespace": it.pod.namespace,
            "uid": it.pod.uid,
            "createTime": it.written,
            "usedGCU": it.units,
        }
        for it in pods
    ]
    return {"id": card, "totalGCU": 16, "usedGCU": used, "availableGCU": 16 - used, "pods": its}


@pytest.fixture
def enflame(node: Node) -> Enflame:
    assert isinstance(node.cards, Enflame)
    return node.cards


async def served(node: Node, dialect: str, counted: Mapping[str, tuple[int, int]], **settings: Any) -> None:
    assert isinstance(node.cards, Enflame)
    node.cards.dialect, node.cards.more = dialect, settings
    node.configure()
    await node.start()
    await node.counts(counted)


def reserves(node: Node, it: Told) -> None:
    """Its scheduler has bound the pod, and says on which card."""
    node.shows_one(
        it.pod,
        it.created,
        {
            "enflame.com/gcu-device-id": str(it.card),
            "enflame.com/gcu-device-memory": "16",
            "enflame.com/gcu-device-memory-request": str(it.units),
            "enflame.com/gcu-device-assigned": "false",
            "enflame.com/gcu-device-assign-time": str(int(it.created * 1_000_000_000)),
        },
    )


class Doors:
    """Who asks: the verb, over the admin socket, and programs on loopback."""

    def __init__(self, root: Path, port: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._root = root
        self._port = port
        self._capsys = capsys

    async def everywhere(self, name: str = "node") -> Any:
        """What all of them are told, which is one thing."""
        told = [await self.by_verb()]
        for target in (PATH, f"{PATH}/{name}"):
            told += [await self.by_port(target), await self.by_socket(target)]
        assert told == [(200, told[0][1])] * 5
        return told[0][1]

    async def by_verb(self, format: str = "gcushare") -> tuple[int, Any]:
        verb = ["inspect", "--format", format, "--state-dir", str(self._root)]
        assert await anyio.to_thread.run_sync(main, verb) == 0
        lines = self._capsys.readouterr().out.splitlines()  # among them the log of the agent in this process
        return 200, json.loads(next(it for it in reversed(lines) if it.startswith(("{", "["))))

    async def by_port(self, target: str) -> tuple[int, Any]:
        status, body = await anyio.to_thread.run_sync(get, self._port, target)
        return status, json.loads(body)

    async def by_socket(self, target: str) -> tuple[int, Any]:
        socket = self._root / "agent.sock"
        status, body = await anyio.to_thread.run_sync(ask, socket, "GET", target)
        return status, json.loads(body)


def get(where: str, target: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(where, timeout=30)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
async def doors(node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        "agent.http.answer_cache.KEPT_SECONDS", 0.0
    )  # the port shows what was so a second ago, else
    with TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as name:
        root = Path(name)  # the path of a socket is short
        async with (
            serving(lambda: node.view, str(root / "agent.sock")),
            serving(lambda: node.view, "127.0.0.1:0") as port,
        ):
            yield Doors(root, port, capsys)


@pytest.mark.parametrize("count", [8])
async def test_the_four_pods_of_gcushares_manual_give_its_document_at_every_door(
    node: Node, enflame: Enflame, doors: Doors
) -> None:
    enflame.sized(*[16 * GB] * 8)
    await served(node, "gcushare-v1", {MEMORY: (128, 128)})
    assert await doors.everywhere() == document()

    for n, it in enumerate(PODS):
        reserves(node, it)
        await node.admit_pod(it.pod)
        assert await node.cards_of(it.pod, "pod-gcu-example") == {
            enflame.uuids[enflame.minors.index(it.card)]
        }
        told = await doors.everywhere()
        assert json.dumps(told) == json.dumps(document(*PODS[: n + 1]))

    refused = await node.refused("gcushare-pod-4", {MEMORY: 20})
    assert "insufficient GCU Memory in one gcu device" in refused.message
    assert await doors.everywhere() == document(*PODS)
    await node.until(lambda it: confirmed(it, PODS[0].pod))
    await node.kubelet.delete(PODS[0].pod.uid)
    node.forgets(PODS[0].pod)
    await node.until(lambda it: released(it, PODS[0].pod))
    assert await doors.everywhere() == document(*PODS[1:])


@pytest.mark.parametrize("count", [8])
async def test_b22_a_pod_that_is_reserved_and_not_allocated_counts_and_breaks_nothing(
    node: Node, enflame: Enflame, doors: Doors
) -> None:
    enflame.sized(*[16 * GB] * 8)
    await served(node, "gcushare-v1", {MEMORY: (128, 128)})
    first, second, _ = PODS

    reserves(node, first)
    assert await doors.everywhere() == document(first)
    reserves(node, second)
    await node.admit_pod(second.pod)

    assert await doors.everywhere() == document(first, second)
    node.shows(one("mad", MEMORY), **{"enflame.com/gcu-device-id": "nonsense"})
    assert await doors.everywhere() == document(first, second)
    node.forgets(first.pod)
    assert await doors.everywhere() == document(second)


@pytest.mark.parametrize("count", [2])
async def test_a_card_that_is_given_out_whole_is_no_units_of_memory(
    node: Node, enflame: Enflame, doors: Doors
) -> None:
    enflame.sized(*[16 * GB] * 2)
    await served(node, "gcushare-v1", {GCU: (2, 2), MEMORY: (32, 32)})

    whole = await node.admit("whole", {GCU: 1})
    minor = enflame.minors[enflame.uuids.index(next(iter(await node.cards_of(whole))))]

    told = (await doors.everywhere())["nodes"][0]
    assert [it["id"] for it in told["devices"]] == [1 - minor]
    assert (told["totalGCU"], told["availableGCU"]) == (16, 16)


async def test_another_node_is_no_gcushare_node_here(node: Node, enflame: Enflame, doors: Doors) -> None:
    await served(node, "gcushare-v1", {GCU: (4, 4)})

    nobody = (404, {"error": "node: other is not the gcushare node"})
    assert await doors.by_port(f"{PATH}/other") == nobody
    assert await doors.by_socket(f"{PATH}/other") == nobody


async def test_who_can_be_reached_by_others_shows_it_to_nobody(node: Node, enflame: Enflame) -> None:
    await served(node, "gcushare-v1", {GCU: (4, 4)})

    async with serving(lambda: node.view, "0.0.0.0:0") as port:
        for target in (PATH, f"{PATH}/node", "/inspect/gcushare"):
            status, said = await anyio.to_thread.run_sync(get, port.replace("0.0.0.0", "127.0.0.1"), target)
            assert (status, said) == (404, f"{target} is served on loopback and on the admin socket only\n")


async def test_slices_are_shown_as_gcushares_fourth_generation_does(
    node: Node, enflame: Enflame, doors: Doors
) -> None:
    enflame.sized(*[S60] * 4)
    await served(node, "gcushare-v4", {GCU: (4, 4), SHARED: (24, 24), DRS: (24, 24)})
    shared = Pod("shared", (Container({SHARED: 2}),), uid="uid-shared")
    drs = Pod("drs", (Container({DRS: 3}),), uid="uid-drs")
    said = {
        "enflame.com/gcu-assigned-time": "1778573037904666832",
        "enflame.com/gcu-assigned": "false",
    }
    node.shows_one(
        shared,
        1778573037.0,
        {**said, "enflame.com/gcu-assigned-minor": "1", "enflame.com/gcu-request-size": "2"},
    )
    record = {"allocated": False, "request": 3, "profileID": "1", "profileName": "3g.20gb"}
    node.shows_one(
        drs,
        1778573038.0,
        {
            **said,
            "enflame.com/gcu-assigned-minor": "2",
            "enflame.com/gcu-assigned-index": "0",
            "enflame.com/gcu-request-size": "3",
            "assigned-containers": json.dumps({"main": record}),
        },
    )

    # Reserved, which is an error of the whole node there.
    _, [first] = await doors.by_port(PATH)
    assert [*first["devices"]] == ["0", "1", "3"]
    assert first["devices"]["1"] == {
        "virt": "Shared",
        **{"totalGCU": 6, "usedGCU": 2, "availableGCU": 4},
        "pods": [
            {
                "name": "shared",
                "namespace": "default",
                "uid": "uid-shared",
                "creationTimestamp": "2026-05-12T08:03:57Z",
                "usedGCU": 2,
                "phase": "Pending",
                "containers": {"main": {"allocated": False, "request": 2}},
            }
        ],
    }
    await node.admit_pod(shared)
    await node.admit_pod(drs)

    _, sliced = await doors.by_socket(f"{PATH}/node?drs=true")
    [made] = enflame.slices
    pod = sliced["devices"]["2"]["pods"][0]
    assert pod["containers"]["main"] == {
        **record,
        "allocated": True,
        "instanceID": str(made.id),
        "instanceUUID": made.uuid,
    }
    assert await doors.by_verb("gcushare-drs") == (200, [sliced])
    assert (sliced["totalGCU"], sliced["usedGCU"]) == (18, 3)
    assert (await doors.by_port(PATH))[1][0]["devices"]["1"]["pods"][0]["containers"]["main"]["allocated"]
