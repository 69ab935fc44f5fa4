"""What schedulers read on a pod once it has its devices: soon after, and after whatever came between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest

from agent.testing.node_kubelet import Container, Pod
from agent.testing.simapi import SimApiServer
from agent.vendors.simulated.agent.claims import ANNOTATION, GIVEN

from .node import PATIENCE, Node, one, whole
from .process import AgentProcess

XPU = "example.com/xpu"


@pytest.fixture
async def api(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimApiServer]:
    async with SimApiServer() as api:
        api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(api.kubeconfig(node.root / "kubeconfig")))
        yield api


def bound(api: SimApiServer, pod: Pod, *promised: str) -> Pod:
    """The pod as a scheduler binds it: with a promise to each of these containers."""
    said: dict[str, object] = {name: {} for name in promised}
    containers = [
        {
            "name": it.name,
            "image": "i",
            "resources": {"limits": {key: str(n) for key, n in it.limits.items()}},
        }
        for it in pod.containers
    ]
    api.put_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": {ANNOTATION: json.dumps(said)} if said else {},
            },
            "spec": {"nodeName": "node", "containers": containers},
        }
    )
    return pod


def given(api: SimApiServer, pod: Pod) -> Mapping[str, Mapping[str, list[str]]]:
    """What the pod tells its scheduler."""
    found = api.find("Pod", pod.name, pod.namespace)
    told: Any = json.loads(found["metadata"].get("annotations", {}).get(GIVEN, "{}")) if found else {}
    its: Mapping[str, Mapping[str, list[str]]] = told
    return its


async def told(api: SimApiServer, pod: Pod, *containers: str) -> None:
    """Wait until the pod tells of these containers."""
    with anyio.fail_after(PATIENCE):
        await api.wait(lambda it: given(it, pod).keys() == {*containers})


async def started(node: Node, process: AgentProcess) -> None:
    """Run an agent whose simulated scheduler reads receipts, until it follows the pods."""
    node.configure(whole(XPU))
    document = json.loads(node.config.read_text())
    document["vendors"]["simulated"]["settings"]["receipts"] = True
    node.write(json.dumps(document, default=list))
    await process.start()
    await process.until(lambda it: it["ready"] and it["apiServer"] and it["apiServer"]["synced"])
    await node.counts({XPU: (4, 4)})


async def test_a_pod_with_its_devices_says_so_and_one_without_a_promise_says_nothing(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    promised, other = bound(api, one("promised", XPU), "main"), bound(api, one("other", XPU, 2))
    await started(node, process)

    await node.admit_pod(other)
    await node.admit_pod(promised)

    await told(api, promised, "main")
    assert given(api, promised) == {"main": {XPU: sorted(await node.cards_of(promised))}}
    assert given(api, other) == {}


async def test_each_container_of_a_pod_is_told_of_with_its_cards(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    containers = (Container({XPU: 1}, "one"), Container({XPU: 2}, "two"))
    pod = bound(api, Pod("pair", containers), "one", "two")
    await started(node, process)

    await node.admit_pod(pod)

    await told(api, pod, "one", "two")
    for name in ("one", "two"):
        assert {*given(api, pod)[name][XPU]} == await node.cards_of(pod, name)


async def test_an_allocate_does_not_wait_for_an_api_server_that_hangs_and_the_pod_says_so_later(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    pod = bound(api, one("web", XPU), "main")
    await started(node, process)
    api.hang()

    await node.admit_pod(pod)  # a kubelet of the tests gives up after seconds
    await process.until(lambda it: it["receipts"]["owed"] == 1)
    assert given(api, pod) == {}
    api.hang(False)

    await told(api, pod, "main")


async def test_who_is_killed_between_its_answer_and_its_word_says_it_once_it_is_back(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    pod = bound(api, one("web", XPU), "main")
    await started(node, process)
    await api.go_away()
    await node.admit_pod(pod)
    await process.until(lambda it: it["receipts"]["owed"] == 1)
    await process.kill()

    await api.come_back()
    await process.start()

    await told(api, pod, "main")


async def test_a_refusal_is_shown_keeps_nobody_from_being_served_and_ends_with_the_right(
    node: Node, process: AgentProcess, api: SimApiServer
) -> None:
    pod = bound(api, one("web", XPU), "main")
    await started(node, process)
    api.forbid("patch", "/api/v1/pods")

    await node.admit_pod(pod)

    shown = await process.until(lambda it: it["receipts"]["error"])
    assert "403" in shown["receipts"]["error"]
    assert shown["ready"]
    api.permit("patch", "/api/v1/pods")
    await told(api, pod, "main")
    await process.until(lambda it: it["receipts"] == {"error": "", "owed": 0})

    def patches() -> list[str]:
        return [it.path for it in api.requests if it.verb == "patch" and "/pods/" in it.path]

    before = patches()
    await node.admit("another", {XPU: 1})
    marked = bound(api, one("marked", XPU, 2), "main")
    await node.admit_pod(marked)
    await told(api, marked, "main")
    await process.until(lambda it: it["receipts"] == {"error": "", "owed": 0})
    assert [it for it in patches() if not it.endswith("/pods/marked")] == before
