"""The vendor's library misbehaves, is late, or is one of two: pods and the other vendor do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.model import VendorState
from agent.http.inspect_builder import inspect_document
from agent.http.metrics import metrics
from agent.isolation import agent_memory_limit, descendants
from agent.testing.node_kubelet import Capacity
from agent.vendor_api.agent import Signs
from agent.vendors.nvidia import plugin
from agent.vendors.nvidia.shared import library_places

from .cards import Cards, Nvidia, Simulated
from .conftest import NVIDIA_OR_SIMULATED, ONLY_NVIDIA
from .node import Node, confirmed, in_use, shared, vendor_is, whole

XPU = "example.com/xpu"
GPU = "nvidia.com/gpu"


@NVIDIA_OR_SIMULATED
async def test_a_library_that_segfaults_is_noticed_by_nobody_else(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    before = await node.admit("before", {XPU: 1})

    node.cards.segfault()
    view = await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.FAILED))
    during = await node.admit("during", {XPU: 1})

    assert "SIGSEGV" in view.troubles[0]
    assert await node.kubelet.capacity() == {XPU: Capacity(4, 4)}
    node.cards.behave()
    await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.OPEN) and not it.troubles)
    assert not await node.cards_of(before) & await node.cards_of(during)
    assert node.streams(XPU) == 1


@NVIDIA_OR_SIMULATED
async def test_a_library_that_hangs_holds_up_no_pod(node: Node) -> None:
    node.gives_up(discover=1.0)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    node.cards.hang()
    view = await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.FAILED))
    await node.admit("during", {XPU: 1})

    assert "did not return within" in view.troubles[0]
    assert await node.kubelet.capacity() == {XPU: Capacity(4, 4)}
    node.cards.behave()
    await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.OPEN) and not it.troubles)
    assert node.streams(XPU) == 1


async def test_a_library_that_leaks_is_replaced_and_no_pod_notices(node: Node) -> None:
    limited = {"enabled": True, **node.cards.settings, "memoryLimit": "128MiB", "resources": [whole(XPU)]}
    node.configure(simulated=limited)
    await node.start()
    await node.counts({XPU: (4, 4)})
    before = await node.admit("before", {XPU: 1})

    simulated(node).scenario.leak(32 << 20)
    view = await node.until(lambda it: vendor_is(it, "simulated", VendorState.FAILED))
    during = await node.admit("during", {XPU: 1})

    assert "MiB of memory, vendors.simulated.memoryLimit is 128 MiB" in view.troubles[0]
    simulated(node).scenario.leak(0)
    await node.until(lambda it: vendor_is(it, "simulated", VendorState.OPEN) and not it.troubles)
    assert await node.kubelet.capacity() == {XPU: Capacity(4, 4)}
    assert not await node.cards_of(before) & await node.cards_of(during)
    assert node.streams(XPU) == 1


async def test_a_library_that_leaks_in_a_container_with_a_limit_leaves_room_for_the_agent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_memory_limit, "memory_limit", lambda: 512 << 20)
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    simulated(node).scenario.leak(32 << 20)
    view = await node.until(lambda it: vendor_is(it, "simulated", VendorState.FAILED))

    assert "its part of the container's limit of 512 MiB is" in view.troubles[0]
    assert 0 < view.processes["simulated"].memory_limit < 256 << 20


async def test_what_libraries_left_behind_under_a_killed_agent_is_ended_when_the_next_one_starts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(descendants, "end_of_the_dead", lambda: looked.append("looked"))

    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    assert looked == ["looked"]


@ONLY_NVIDIA
async def test_a_library_that_crashes_on_and_on_is_given_rest_and_the_reason_is_said(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    node.cards.segfault()
    view = await node.until(lambda it: it.processes["nvidia"].breaker == "open")

    assert "failed 5 times within 60 s (last: killed by SIGSEGV)" in view.troubles[0]
    assert view.processes["nvidia"].restarts >= 5
    assert {it.name: it.breaker for it in inspect_document(view).vendors}["nvidia"] == "open"
    assert b'xpu_agent_vendor_breaker_open{vendor="nvidia"} 1.0' in metrics(view).body
    node.cards.behave()
    await node.until(lambda it: it.processes["nvidia"].breaker == "closed" and not it.troubles)
    await node.admit("after", {XPU: 1})


async def test_a_library_that_answers_nonsense_is_started_anew(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})

    simulated(node).scenario.garbage()

    view = await node.until(lambda it: vendor_is(it, "simulated", VendorState.FAILED))
    assert "discover answered wrongly" in view.troubles[0]
    await node.until(lambda it: vendor_is(it, "simulated", VendorState.OPEN))
    assert await node.kubelet.capacity() == {XPU: Capacity(4, 4)}


@NVIDIA_OR_SIMULATED
async def test_a_driver_that_comes_late_is_served_without_a_restart(node: Node) -> None:
    node.cards.unload()
    await node.start(whole(XPU))
    view = await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.UNAVAILABLE))
    assert "driver-not-loaded" in view.troubles[0]
    assert await node.kubelet.capacity() == {}

    node.cards.load()

    await node.counts({XPU: (4, 4)})
    await node.until(lambda it: not it.troubles)
    await node.admit("one", {XPU: 1})


async def test_a_driver_that_is_installed_late_is_served_without_a_restart_and_no_process_waits_for_it(
    node: Node, gpus: Nvidia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of our own is the agent's sign: the machine of the test may have the library itself."""
    monkeypatch.setattr(library_places, "SONAME", "libnvidia-ml-late.so.1")
    monkeypatch.setattr(plugin, "Signs", lambda *given, **more: Signs())
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    node.configure(whole(XPU), nvidia={"enabled": "auto"})
    await node.start()
    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: vendor_is(it, "nvidia", VendorState.UNAVAILABLE))
    [said] = (it.reason for it in view.snapshot.vendors if it.name == "nvidia")
    assert said.startswith("library-not-found: here is none of libnvidia-ml-late.so.1, ")
    assert (view.processes["nvidia"].pid, view.troubles) == (None, ())

    for name in ("libnvidia-ml.so.1", "libnvidia-ml-late.so.1"):
        (tmp_path / name).symlink_to(gpus.settings["library"])

    await node.counts({XPU: (4, 4), GPU: (2, 2)})
    await node.admit("one", {GPU: 1})


@NVIDIA_OR_SIMULATED
async def test_a_driver_that_goes_leaves_pods_and_the_kubelets_list_alone(node: Node) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})

    node.cards.unload()
    await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.UNAVAILABLE))

    assert await node.kubelet.capacity() == {XPU: Capacity(4, 4)}  # for as long as patience lasts
    assert set((await node.kubelet.health(pod.uid)).values()) == {"Healthy"}
    node.cards.load()
    await node.until(lambda it: vendor_is(it, node.cards.vendor, VendorState.OPEN))
    assert node.streams(XPU) == 1


@pytest.fixture
def gpus(root: Path, monkeypatch: pytest.MonkeyPatch) -> Nvidia:
    """NVIDIA's cards, beside the simulated ones."""
    gpus = Nvidia(root, 2)
    for name, value in gpus.environment.items():
        monkeypatch.setenv(name, value)
    return gpus


def beside(gpus: Cards) -> dict[str, object]:
    return {"enabled": True, **gpus.settings, "resources": [shared(GPU, 10)]}


async def test_two_vendors_are_served_by_one_agent(node: Node, gpus: Nvidia) -> None:
    node.configure(whole(XPU), nvidia=beside(gpus))
    await node.start()
    await node.counts({XPU: (4, 4), GPU: (20, 20)})

    pod = await node.admit("both", {XPU: 1, GPU: 1})

    env = (await node.kubelet.run_options(pod.uid, "main")).env
    assert env["XPU_VISIBLE_DEVICES"] in node.cards.uuids
    assert env["NVIDIA_VISIBLE_DEVICES"] in gpus.uuids
    view = await node.until(lambda it: len(in_use(it)) == 2 and confirmed(it, pod))
    assert {it.vendor for it in in_use(view)} == {"simulated", "nvidia"}


async def test_one_vendors_trouble_is_not_the_others(node: Node, gpus: Nvidia) -> None:
    node.configure(whole(XPU), nvidia=beside(gpus))
    await node.start()
    await node.counts({XPU: (4, 4), GPU: (20, 20)})

    gpus.segfault()
    view = await node.until(lambda it: vendor_is(it, "nvidia", VendorState.FAILED))
    await node.fail(0)
    await node.counts({XPU: (4, 3), GPU: (20, 20)})

    assert vendor_is(view, "simulated", VendorState.OPEN)
    await node.admit("both", {XPU: 1, GPU: 1})
    gpus.behave()
    await node.until(lambda it: not it.troubles)


async def test_a_vendor_that_is_broken_hides_no_other(node: Node, gpus: Nvidia) -> None:
    node.configure(whole(XPU), nvidia={"enabled": True, "library": "/nonexistent/libnvidia-ml.so.1"})

    await node.start()

    await node.counts({XPU: (4, 4)})
    view = await node.until(lambda it: vendor_is(it, "nvidia", VendorState.UNAVAILABLE))
    assert any("/nonexistent/libnvidia-ml.so.1" in it for it in view.troubles)
    await node.admit("one", {XPU: 1})


def simulated(node: Node) -> Simulated:
    assert isinstance(node.cards, Simulated)
    return node.cards
