"""PodResources: what it shows, what it hides, and when it refuses."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import anyio
import betterproto2
import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from agent.kubelet.pb.podresources import v1 as pb
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Pod

from .conftest import Lab, offers, pod
from .plugin import TOY, device

Reply = TypeVar("Reply", bound=betterproto2.Message)
Entry = tuple[str, tuple[int, ...] | None]


async def call(kubelet: SimKubelet, name: str, request: Any, reply: type[Reply], times: int = 1) -> list[Any]:
    """Make calls at once; errors are among the answers."""
    async with Channel(path=str(kubelet.pod_resources_socket)) as channel:
        method = UnaryUnaryMethod[Any, Reply](channel, f"/v1.PodResourcesLister/{name}", type(request), reply)
        return await asyncio.gather(*[method(request) for _ in range(times)], return_exceptions=True)


async def listed(kubelet: SimKubelet) -> list[pb.PodResources]:
    (reply,) = await call(kubelet, "List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)
    assert isinstance(reply, pb.ListPodResourcesResponse)
    return reply.pod_resources


async def allocatable(kubelet: SimKubelet) -> list[Entry]:
    request, reply = pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
    (answer,) = await call(kubelet, "GetAllocatableResources", request, reply)
    return entries(answer.devices)


async def got(kubelet: SimKubelet, name: str, namespace: str = "default") -> Any:
    request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
    (answer,) = await call(kubelet, "Get", request, pb.GetPodResourcesResponse)
    return answer


def entries(found: list[pb.ContainerDevices]) -> list[Entry]:
    assert all(len(one.device_ids) == 1 for one in found)
    nodes = [tuple(node.id for node in one.topology.nodes) if one.topology else None for one in found]
    return sorted(
        zip((one.device_ids[0] for one in found), nodes, strict=True), key=lambda e: (e[0], e[1] or ())
    )


def containers(found: pb.PodResources) -> dict[str, list[str]]:
    return {one.name: [id for id, _ in entries(one.devices)] for one in found.containers}


async def test_each_device_has_an_entry_per_numa_node(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("x")
    plugin.publish([device("a"), device("b", "Healthy", 0, 1), device("c", "Healthy", 1)])
    await offers(kubelet, 3, 3)
    await kubelet.admit(pod(3))
    (one,) = await listed(kubelet)
    expected = [("a", None), ("b", (0,)), ("b", (1,)), ("c", (1,))]
    assert entries(one.containers[0].devices) == expected
    assert {entry.resource_name for entry in one.containers[0].devices} == {TOY}
    assert await allocatable(kubelet) == expected


async def test_init_containers_are_hidden_and_sidecars_are_not(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    await kubelet.admit(pod(1, init=1, sidecar=1))
    (one,) = await listed(kubelet)
    assert list(containers(one)) == ["sidecar", "c0"]


async def test_pods_without_devices_are_listed_too(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a")
    await kubelet.admit(Pod("plain", (), namespace="other"))
    (one,) = await listed(kubelet)
    assert (one.name, one.namespace, one.containers) == ("plain", "other", [])


async def test_allocatable_are_all_healthy_devices_free_or_not(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("x")
    plugin.publish([device("a"), device("b", "Unhealthy"), device("c")])
    await offers(kubelet, 3, 2)
    await kubelet.admit(pod(1))
    assert await allocatable(kubelet) == [("a", None), ("c", None)]


async def test_a_device_with_an_empty_topology_vanishes_from_the_allocatable(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("x")
    plugin.publish([device("a"), device("b", topology=True)])
    await offers(kubelet, 2, 2)
    assert await allocatable(kubelet) == [("a", None)]


async def test_allocatable_is_empty_after_a_restart_and_holdings_are_not(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a")
    await kubelet.admit(pod(1))
    await kubelet.restart()
    assert await allocatable(kubelet) == []
    (one,) = await listed(kubelet)
    assert containers(one) == {"c0": ["a"]}


async def test_listing_frees_what_gone_pods_held(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    await kubelet.delete(one.uid)
    kubelet.sources_ready = False
    assert not (await kubelet.admit(pod(1))).admitted
    kubelet.sources_ready = True
    assert await listed(kubelet) == []
    kubelet.sources_ready = False
    assert (await kubelet.admit(pod(1))).admitted


@pytest.mark.parametrize(("mode", "shown"), [("1.34", []), ("1.33", ["done"])])
async def test_finished_pods_are_listed_before_1_34_only(lab: Lab, mode: str, shown: list[str]) -> None:
    kubelet, _ = await lab.pair("a", mode=mode)
    one = pod(1, name="done")
    await kubelet.admit(one)
    await kubelet.finish(one.uid)
    assert [found.name for found in await listed(kubelet)] == shown


async def test_an_old_kubelet_can_be_patched_to_list_active_pods_alone(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a", mode="1.31", active_pods_only=True)
    one = pod(1)
    await kubelet.admit(one)
    await kubelet.finish(one.uid)
    assert await listed(kubelet) == []


async def test_get_knows_pods_by_name(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a")
    await kubelet.admit(pod(1))
    assert containers((await got(kubelet, "pod")).pod_resources) == {"c0": ["a"]}
    missing = await got(kubelet, "nobody", "there")
    assert isinstance(missing, GRPCError)
    assert (missing.status, missing.message) == (
        Status.UNKNOWN,
        "pod nobody in namespace there not found",
    )


async def test_get_is_disabled_before_1_34(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a", mode="1.33")
    disabled = await got(kubelet, "pod")
    assert isinstance(disabled, GRPCError)
    assert (disabled.status, disabled.message) == (Status.UNKNOWN, "PodResources API Get method disabled")


async def test_calls_over_the_burst_are_rejected(lab: Lab) -> None:
    kubelet = await lab.kubelet(clock=lambda: 0.0)
    request, reply = pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse
    answers = await call(kubelet, "List", request, reply, times=15)
    errors = [answer for answer in answers if isinstance(answer, GRPCError)]
    assert len(errors) == 5
    assert {(error.status, error.message) for error in errors} == {
        (Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
    }


async def test_it_can_answer_late(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    kubelet.pod_resources_delay = 3600
    with pytest.raises(TimeoutError), anyio.fail_after(0.05):
        await listed(kubelet)
