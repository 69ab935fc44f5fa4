"""The scheduler that the tests play chooses what the real one chose, also from the Device that we write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from schedulers.koordinator.cards import report
from support import recorded_pods

from agent.core.model import DeviceStatus, Health, NodeSnapshot, VendorState, VendorStatus
from agent.scheduler_api.quantities import whole
from agent.schedulers.koordinator.device_object import device
from agent.vendor_api.agent import Device, State

from .manager import Manager
from .scheduler import ALLOCATED, BOUND, JOINT, LOCK, MINORS, Asking, Bound, Scheduler
from .wishes import CORE, RATIO, RDMA, SHARED, Unschedulable

SAID = json.loads(recorded_pods.FILE.read_text())
NODES = ("metax1", "nv1", "enf1")
#: What device plugins had on the recorded Nodes.
OF_PLUGINS = {
    "metax1": {"metax-tech.com/sgpu": 64},
    "nv1": {"nvidia.com/gpu": 8},
    "enf1": {"enflame.com/gcu": 8, "enflame.com/gcu-memory": 384},
}
#: Why the double refuses what the real one refused. It said nothing of the first and the fourth on the pod.
REFUSED = {
    "m-memonly": "gpu core resource is required",
    "m-full2": "Insufficient GPU Devices",
    "n-hint": "Insufficient Topology Scoped GPU Devices",
    "n-hami": "GPUIsolationProviderHAMICore not found on the node",
    "n-too-many": "Insufficient nvidia.com/gpu",
    "n-invalid": "invalid resource device requests",
}


def by_hand(name: str) -> dict[str, Any]:
    """The Device as it was written by hand for the recording."""
    its = SAID["nodes"][name]
    return {"metadata": {"labels": its["labels"]}, "spec": {"devices": its["devices"]}}


def ours(name: str) -> dict[str, Any]:
    """The Device that the agent writes of the same cards."""
    vendor = SAID["nodes"][name]["labels"]["node.koordinator.sh/gpu-vendor"]
    cards = [_status(vendor, it) for it in SAID["nodes"][name]["devices"]]
    found = report(NodeSnapshot((VendorStatus(vendor, VendorState.OPEN),), tuple(cards)))
    assert found is not None
    written = device(name, "uid", found, None, 1_700_000_000.0)
    assert written is not None
    return written


def _status(vendor: str, said: Mapping[str, Any]) -> DeviceStatus:
    topology = said["topology"]
    device = Device(
        said["id"],
        said["minor"],
        minor=said["minor"],
        pci=topology["busID"],
        numa=topology["nodeID"],
        memory=whole(said["resources"]["koordinator.sh/gpu-memory"]) or 0,
        attributes={"pcie-root": topology["pcieID"]},
    )
    return DeviceStatus(vendor, device, Health(State.HEALTHY), True)


def asking(case: Mapping[str, Any]) -> Asking:
    limits = tuple({k: v for k, v in it["limits"].items() if "/" in k} for it in case["containers"])
    return Asking(case["case"], limits, case["podAnnotations"], case["podLabels"])


def answers(name: str, its: Mapping[str, Any], scheduler: Scheduler) -> dict[str, Bound | str]:
    """What becomes of the recorded pods of a node, in their order: what is written, or why they wait."""
    manager = Manager()
    manager.sees(its)
    pods: list[Bound] = []
    found: dict[str, Bound | str] = {}
    for case in SAID["cases"]:
        if case["node"] != name:
            continue
        there = manager.resources | OF_PLUGINS[name]
        try:
            bound = scheduler.bind(asking(case), its, pods, allocatable=there, labels=manager.labels, now=1.5)
        except Unschedulable as exc:
            found[case["case"]] = str(exc)
        else:
            found[case["case"]] = bound
            pods.append(bound)
    return found


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("write", [by_hand, ours])
def test_the_recorded_pods_get_word_for_word_what_the_real_scheduler_wrote(name: str, write: Any) -> None:
    found = answers(name, write(name), Scheduler())

    for case in (it for it in SAID["cases"] if it["node"] == name):
        answer = found.pop(case["case"])
        if not case["scheduled"]:
            assert isinstance(answer, str), answer
            assert REFUSED[case["case"]] in answer
            continue
        assert isinstance(answer, Bound), f"{case['case']}: {answer}"
        written = case["written"]
        assert answer.annotations == written["annotations"] | {BOUND: "1500000000"}, case["case"]
        assert answer.labels == written["labels"]
        assert answer.locks.keys() == written["nodeLock"].keys()
    assert not found


@pytest.mark.parametrize("name", NODES)
def test_without_the_adaption_for_device_plugins_the_cards_alone_are_written(name: str) -> None:
    found = answers(name, ours(name), Scheduler(adapts=False))

    written = [it for it in found.values() if isinstance(it, Bound)]
    assert written
    for it in written:
        assert it.annotations.keys() == {"scheduling.koordinator.sh/device-allocated"}
        assert not it.locks


def test_pods_of_a_node_without_a_device_are_left_to_the_kubelet() -> None:
    bound = Scheduler().bind(
        Asking("a", ({"nvidia.com/gpu": "1"},)), None, [], allocatable={"nvidia.com/gpu": 1}
    )

    assert bound.annotations == {}


@pytest.mark.parametrize(("numa", "second"), [(True, "1,0"), (False, "1,2")])
def test_a_pod_is_kept_on_one_numa_node_by_what_our_device_says(numa: bool, second: str) -> None:
    its, manager = ours("metax1"), Manager()
    manager.sees(its)
    pods: list[Bound] = []

    for asked in ({CORE: "10", RATIO: "10"}, {SHARED: "2", CORE: "100", RATIO: "100"}):
        asking = Asking(f"pod-{len(pods)}", (asked,))
        pods.append(Scheduler(numa=numa).bind(asking, its, pods, allocatable=manager.resources))

    assert [it.annotations[MINORS] for it in pods] == ["0", second]


def port(minor: int, root: str) -> dict[str, Any]:
    """A network device of the node, as koordlet writes it."""
    address = f"0000:0{minor}:00.0"
    return {
        "type": "rdma",
        "id": address,
        "minor": minor,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": -1, "nodeID": minor, "pcieID": root, "busID": address},
    }


def test_cards_and_a_port_are_taken_together_by_the_pcie_root_that_our_device_says() -> None:
    its, manager = ours("metax1"), Manager()
    its["spec"]["devices"] += [port(0, "1"), port(1, "0")]
    manager.sees(its)
    joint = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
    asked = {CORE: "200", RATIO: "200", RDMA: "100"}

    pods: list[Bound] = []
    for name in ("first", "second"):
        there = manager.resources | {RDMA: 200}
        pods.append(Scheduler().bind(Asking(name, (asked,), joint), its, pods, allocatable=there))

    assert [minors(it) for it in pods] == [
        {"gpu": [0, 1], "rdma": [1]},
        {"gpu": [2, 3], "rdma": [0]},
    ]


def minors(pod: Bound) -> dict[str, list[int]]:
    said = json.loads(pod.annotations[ALLOCATED])
    return {type: [it["minor"] for it in parts] for type, parts in said.items()}


def test_a_metax_node_is_locked_for_the_pod_until_somebody_frees_it() -> None:
    its, manager = ours("metax1"), Manager()
    manager.sees(its)
    asked = {CORE: "100", RATIO: "100"}
    first = Scheduler().bind(Asking("first", (asked,)), its, [], allocatable=manager.resources, now=1e9)
    assert first.locks == {LOCK: "2001-09-09T01:46:40Z,default,first"}

    def second(**when: Any) -> Bound:
        return Scheduler().bind(
            Asking("second", (asked,)), its, [first], allocatable=manager.resources, **when
        )

    with pytest.raises(Unschedulable, match="locked"):
        second(locks=first.locks, now=1e9 + 299)
    assert second(locks=first.locks, now=1e9 + 301).locks
    assert second(now=1e9 + 1).locks
