"""What docs/koordinator.md promises: its examples on a node with an API server and cards."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from cluster.koordlets import from_files
from played_koordinator.amounts import amounts
from played_koordinator.scheduler import BOUND
from support.waiting import eventually

from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer

from .cards import Simulated
from .conftest import ONLY_NVIDIA
from .metax import SGPU, MetaX
from .node import PATIENCE, Node
from .process import AgentProcess

pytestmark = ONLY_NVIDIA

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"
SHARED, GPU = "nvidia.com/gpu.shared", "nvidia.com/gpu"
#: Of the card's memory, bytes.
HALF = str(81559 << 19)
#: The scheduler binds one pod after the other.
_BOUND = itertools.count(step=1_000_000)
CORE, RATIO, COUNT = (f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory-ratio", "gpu.shared"))


@pytest.fixture
async def api(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimApiServer]:
    async with SimApiServer() as api:
        api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(api.kubeconfig(node.root / "kubeconfig")))
        yield api


def configure(node: Node, example: str) -> None:
    """The example's config as it stands, in the directories of the test and on its library."""
    values = yaml.safe_load((EXAMPLES / example / "values.yaml").read_text())
    wanted = yaml.safe_load(values["config"]["map"]["default"])
    node.configure()
    document = json.loads(node.config.read_text())
    infos = node.root / "infos"
    infos.mkdir()
    mine, its = document["vendors"][node.cards.vendor], wanted["vendors"][node.cards.vendor]
    settings = {**its.get("settings", {}), **mine["settings"]}
    document["vendors"][node.cards.vendor] = {**mine, **its, "settings": settings}
    document["report"] = {"deviceInfosDir": str(infos), **wanted["report"]}
    node.write(json.dumps(document))


def bound(api: SimApiServer, node: Node, pod: Pod, *cards: int, percent: int = 100) -> Pod:
    """The pod as koord-scheduler binds it to these cards."""
    resources = {
        CORE: str(percent),
        RATIO: str(percent),
        "koordinator.sh/gpu-memory": f"{81559 * 1024 * percent // 100}Ki",
    }
    gpu = [{"minor": it, "id": node.cards.uuids[it], "resources": resources} for it in cards]
    put(
        api,
        pod,
        "koord-scheduler",
        {ALLOCATED: json.dumps({"gpu": gpu}), BOUND: str(1795210468 * 10**9 + next(_BOUND))},
    )
    return pod


def put(api: SimApiServer, pod: Pod, scheduler: str, annotations: Mapping[str, str]) -> None:
    containers = [
        {"name": it.name, "resources": {"limits": {name: str(count) for name, count in it.limits.items()}}}
        for it in pod.containers
    ]
    metadata = {
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "annotations": dict(annotations),
    }
    api.put_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"nodeName": "node", "schedulerName": scheduler, "containers": containers},
            "status": {"phase": "Pending"},
        }
    )


def asking(name: str, **limits: int) -> Pod:
    return Pod(name, (Container(limits),))


def of_example(example: str) -> Pod:
    said = yaml.safe_load((EXAMPLES / example / "pod.yaml").read_text())
    [container] = said["spec"]["containers"]
    return Pod(said["metadata"]["name"], (Container(container["resources"]["limits"], container["name"]),))


async def hears(process: AgentProcess) -> None:
    """Wait until the agent hears of pods; one that has just begun serves what the kubelet chose."""
    await process.until(lambda it: it["apiServer"] and it["apiServer"]["synced"])


async def environment(node: Node, pod: Pod) -> Mapping[str, str]:
    return (await node.kubelet.run_options(pod.uid, pod.containers[0].name)).env


def cards(node: Node, *indices: int) -> set[str]:
    return {node.cards.uuids[it] for it in indices}


async def test_without_koordlet_the_device_is_kept_and_a_pod_gets_the_chosen_card(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-device")
    pod = bound(api, node, of_example("koordinator-device"), 2)
    await process.start()
    await hears(process)
    await node.counts({GPU: (4, 4)})

    await node.admit_pod(pod)

    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: it.find("Device", "node"))

    assert await node.cards_of(pod) == cards(node, 2)
    shown = await process.until(lambda it: it["report"]["cards"] and it["allocations"])
    assert (shown["report"]["mode"], shown["report"]["vendor"]) == ("device", "nvidia")
    device: Any = api.find("Device", "node")
    assert device["metadata"]["labels"].keys() >= {
        "node.koordinator.sh/gpu-vendor",
        "node.koordinator.sh/gpu-model",
        "node.koordinator.sh/gpu-driver-version",
    }


async def test_beside_koordlet_a_file_is_kept_and_a_pod_gets_the_chosen_cards(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-feed")
    pod = bound(api, node, of_example("koordinator-feed"), 1, 3)
    await process.start()
    await hears(process)
    await node.counts({GPU: (4, 4)})

    await node.admit_pod(pod)

    await eventually(lambda: len(from_files(node.root / "infos") or ()) == 4, PATIENCE)

    assert await node.cards_of(pod) == cards(node, 1, 3)
    assert api.find("Device", "node") is None


@pytest.mark.vendors.with_args(Simulated)
async def test_without_hardware_the_whole_way_is_the_same(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-simulated")
    pod = bound(api, node, of_example("koordinator-simulated"), 1)
    await process.start()
    await hears(process)
    await node.counts({"xpu-agent.io/simulated": (4, 4)})

    await node.admit_pod(pod)

    assert await node.cards_of(pod) == cards(node, 1)
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: it.find("Device", "node"))
    device: Any = api.find("Device", "node")
    assert [it["health"] for it in device["spec"]["devices"]] == [True] * 4


@pytest.mark.vendors.with_args(MetaX)
async def test_a_slice_of_a_metax_card_is_what_the_scheduler_chose_and_nobody_else_gets_one(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    assert isinstance(node.cards, MetaX)
    node.cards.mode = "sgpu"
    configure(node, "koordinator-metax")
    said = yaml.safe_load((EXAMPLES / "koordinator-metax/pod.yaml").read_text())
    limits = amounts({it: str(much) for it, much in limits_of(said).items()})
    pod, past = Pod(said["metadata"]["name"], (Container(limits),)), asking("past", **{SGPU: 1})
    resources = {CORE: "10", "koordinator.sh/gpu-memory": "1Gi", RATIO: "1"}
    gpu = [{"minor": 2, "id": node.cards.uuids[2], "resources": resources}]
    chosen = {ALLOCATED: json.dumps({"gpu": gpu}), BOUND: "1795210468000000000"}
    put(api, pod, "koord-scheduler", {**said["metadata"]["annotations"], **chosen})
    put(api, past, "default-scheduler", {})
    await process.start()
    await hears(process)
    await node.counts({SGPU: (64, 64)})

    await node.admit_pod(pod)
    verdict = await node.kubelet.admit(past)

    [made] = node.cards.slices
    assert (made.slot, made.compute, made.vram, node.cards.policy(2)) == (2, 10, 1024, "fixed-share")
    assert "no scheduler has chosen a card for this pod" in verdict.message


def limits_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    [container] = pod["spec"]["containers"]
    limits: Mapping[str, Any] = container["resources"]["limits"]
    return limits


async def test_shares_are_held_to_the_scheduler_s_percent_and_whole_cards_to_nothing(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-shares")
    half = bound(api, node, of_example("koordinator-shares"), 3, percent=50)
    halves = asking("halves", **{COUNT: 2, CORE: 100, RATIO: 100, SHARED: 2})
    bound(api, node, halves, 0, 1, percent=50)
    whole = bound(api, node, asking("whole", **{CORE: 100, RATIO: 100, SHARED: 1}), 2)
    await process.start()
    await hears(process)
    await node.counts({SHARED: (400, 400)})

    for pod in (half, halves, whole):
        await node.admit_pod(pod)

    told = [await environment(node, pod) for pod in (half, halves, whole)]
    assert [set(it["NVIDIA_VISIBLE_DEVICES"].split(",")) for it in told] == [
        cards(node, 3),
        cards(node, 0, 1),
        cards(node, 2),
    ]
    assert [it.get("CUDA_DEVICE_SM_LIMIT") for it in told] == ["50", "50", None]
    assert [it.get("CUDA_DEVICE_MEMORY_LIMIT") for it in told] == [HALF, HALF, None]
    assert [it.get("LD_PRELOAD") for it in told] == ["/usr/local/vgpu/libvgpu.so"] * 2 + [None]


async def test_a_pod_that_went_past_the_scheduler_gets_no_share_and_reads_why(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-shares")
    pod = asking("past", **{SHARED: 1})
    put(api, pod, "default-scheduler", {})
    await process.start()
    await hears(process)
    await node.counts({SHARED: (400, 400)})

    verdict = await node.kubelet.admit(pod)

    assert not verdict.admitted
    assert "no scheduler has chosen a card for this pod" in verdict.message


async def test_where_two_resources_have_the_cards_a_choice_in_the_other_one_is_refused(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-device")
    document = json.loads(node.config.read_text())
    document["vendors"]["nvidia"]["resources"] = [
        {"name": GPU, "devices": [0, 1], "placement": "auto"},
        {
            "name": SHARED,
            "devices": [2, 3],
            "placement": "auto",
            "sharing": {"kind": "replicas", "replicas": 100},
        },
    ]
    node.write(json.dumps(document))
    whole = bound(api, node, asking("whole", **{GPU: 1}), 3)
    share = bound(api, node, asking("share", **{CORE: 50, RATIO: 50, SHARED: 1}), 0, percent=50)
    await process.start()
    await hears(process)
    await node.counts({GPU: (2, 2), SHARED: (200, 200)})

    verdicts = [await node.kubelet.admit(pod) for pod in (whole, share)]

    assert not any(it.admitted for it in verdicts)
    assert all("claims are on other cards" in it.message for it in verdicts)


async def test_time_slicing_under_the_name_of_whole_cards_is_not_told_as_cards(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    configure(node, "koordinator-device")
    document = json.loads(node.config.read_text())
    its = document["vendors"]["nvidia"]
    del its["resources"]
    its["settings"]["timeSlicing"] = {"resources": [{"name": GPU, "replicas": 4}]}
    node.write(json.dumps(document))
    await process.start()
    await node.counts({GPU: (16, 16)})

    shown = await process.until(lambda it: it["report"]["error"])

    assert f"{GPU} counts replicas" in shown["report"]["error"]
    assert not shown["ready"]
    assert api.find("Device", "node") is None
