"""The peers themselves: what they show of the kubelet is what other tests build on."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from agent.testing.node_kubelet import Admission, Capacity, Container, NodeKubelet, Pod

from .plugin import TinyPlugin, call, texts
from .process import PeerDown, PeerError, state_of
from .real import GoClient, RealKubelet

TOY = "example.com/toy"
HEALTHY = {"a": "Healthy", "b": "Healthy", "c": "Healthy"}


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not tmp_path: its long names leave no room for a socket's.
    with tempfile.TemporaryDirectory(prefix="peer-") as path:
        yield Path(path)


@pytest.fixture
async def kubelet(binary: Path, directory: Path) -> AsyncIterator[RealKubelet]:
    async with RealKubelet(binary, directory) as kubelet:
        yield kubelet


@pytest.fixture
async def plugin(kubelet: RealKubelet) -> AsyncIterator[TinyPlugin]:
    async with TinyPlugin(kubelet.plugin_dir) as plugin:
        await plugin.publish(HEALTHY)
        await plugin.register()
        await offers(kubelet, 3, 3)
        yield plugin


async def offers(kubelet: RealKubelet, capacity: int, allocatable: int) -> None:
    await kubelet.until(lambda counts: counts.get(TOY) == Capacity(capacity, allocatable))


def pod(*limits: int, init: int = 0) -> Pod:
    containers = [Container({TOY: count}, name=f"c{place}") for place, count in enumerate(limits)]
    if init:
        containers.insert(0, Container({TOY: init}, name="init", init=True))
    return Pod("pod", tuple(containers))


async def test_is_a_node_kubelet(kubelet: RealKubelet) -> None:
    node: NodeKubelet = kubelet
    assert await node.capacity() == {}
    assert (node.plugin_dir / "kubelet.sock").is_socket()
    assert node.pod_resources_socket.is_socket()


async def test_an_admitted_pod_holds_devices_and_gets_what_the_plugin_answered(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    wanted = pod(2)
    assert await kubelet.admit(wanted) == Admission(True)
    assert await kubelet.devices(wanted.uid) == {"c0": {TOY: frozenset("ab")}}
    assert plugin.allocated == [["a", "b"]]

    options = await kubelet.run_options(wanted.uid, "c0")
    assert options.env == {"DEVICES": "a,b"}
    assert options.annotations.items() >= {"toy": "yes"}.items()
    assert options.devices == (("/dev/null", "/dev/toy", "rw"),)
    assert options.mounts == (("/etc", "/toy", True),)
    assert options.cdi_devices == ("example.com/toy=0",)
    assert plugin.pre_started == [["a", "b"]]

    entries = json.loads(kubelet.checkpoint.read_text())["Data"]["PodDeviceEntries"]
    assert [(entry["PodUID"], entry["ResourceName"]) for entry in entries] == [(wanted.uid, TOY)]


async def test_the_kubelet_counts_and_times_its_allocate_calls(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    before = await kubelet.allocations(TOY)
    assert (await kubelet.admit(pod(1))).admitted
    after = await kubelet.allocations(TOY)
    assert after["calls"] - before["calls"] == 1
    assert after["seconds"] > before["seconds"]
    assert await kubelet.allocations("example.com/other") == {"calls": 0, "seconds": 0}


async def test_an_init_containers_devices_are_used_again(kubelet: RealKubelet, plugin: TinyPlugin) -> None:
    wanted = pod(1, 2, init=2)
    assert (await kubelet.admit(wanted)).admitted
    held = await kubelet.devices(wanted.uid)
    assert held["c0"][TOY] < held["init"][TOY]
    assert held["c0"][TOY] | held["c1"][TOY] == frozenset("abc")


async def test_refusals_come_in_the_kubelets_words(kubelet: RealKubelet, plugin: TinyPlugin) -> None:
    refused = await kubelet.admit(pod(4))
    assert refused.reason == "UnexpectedAdmissionError"
    assert "requested number of devices unavailable for example.com/toy. Requested: 4, Available: 3" in (
        refused.message
    )
    plugin.refuse = "no such device"
    refused = await kubelet.admit(pod(1))
    assert "rpc error: code = InvalidArgument desc = no such device" in refused.message


async def test_a_deleted_pods_devices_are_free_for_the_next(kubelet: RealKubelet, plugin: TinyPlugin) -> None:
    first, second = pod(3), pod(3)
    assert (await kubelet.admit(first)).admitted
    assert not (await kubelet.admit(second)).admitted
    await kubelet.delete(first.uid)
    assert (await kubelet.admit(second)).admitted
    with pytest.raises(PeerError, match="no pod with uid"):
        await kubelet.devices(first.uid)


async def test_health_of_a_held_device(kubelet: RealKubelet, plugin: TinyPlugin) -> None:
    wanted = pod(1)
    assert (await kubelet.admit(wanted)).admitted
    await plugin.publish({**HEALTHY, "a": "Unhealthy"})
    await offers(kubelet, 3, 2)
    assert await kubelet.health(wanted.uid) == {"a": "Unhealthy"}


@pytest.mark.parametrize("in_process", [False, True])
async def test_pods_and_checkpoint_outlast_a_restart(
    kubelet: RealKubelet, plugin: TinyPlugin, in_process: bool
) -> None:
    wanted = pod(2)
    assert (await kubelet.admit(wanted)).admitted
    socket = kubelet.plugin_dir / plugin.endpoint
    restart = kubelet.restart_in_process if in_process else kubelet.restart
    await restart(readmit=True)
    assert kubelet.refused == {}
    await plugin.streams_ended.wait()
    assert not socket.exists()
    assert await kubelet.capacity() == {TOY: Capacity(0, 0)}

    await plugin.serve()
    await plugin.register()
    await offers(kubelet, 3, 3)
    assert await kubelet.devices(wanted.uid) == {"c0": {TOY: frozenset("ab")}}
    assert (await kubelet.run_options(wanted.uid, "c0")).env == {"DEVICES": "a,b"}
    assert not (await kubelet.admit(pod(2))).admitted


async def test_a_restart_takes_no_pod_back_whose_init_container_holds_devices(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    wanted = pod(1, init=1)
    assert (await kubelet.admit(wanted)).admitted
    await kubelet.restart(readmit=True)
    assert "no healthy devices present; cannot allocate unhealthy devices" in (
        kubelet.refused[wanted.uid].message
    )


async def test_a_list_over_4_mib_costs_the_plugin_its_connection(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    await plugin.publish({f"{number:060}": "Healthy" for number in range(62_000)})
    await plugin.streams_ended.wait()
    await offers(kubelet, 3, 0)


async def test_numa_policy(binary: Path, directory: Path) -> None:
    async with (
        RealKubelet(binary, directory, numa=2, policy="single-numa-node") as kubelet,
        TinyPlugin(kubelet.plugin_dir) as plugin,
    ):
        await plugin.publish(HEALTHY, {"a": 0, "b": 1, "c": 1})
        await plugin.register()
        await offers(kubelet, 3, 3)
        refused = await kubelet.admit(pod(3))
        assert refused.reason == "TopologyAffinityError"
        aligned = pod(2)
        assert (await kubelet.admit(aligned)).admitted
        assert await kubelet.devices(aligned.uid) == {"c0": {TOY: frozenset("bc")}}


async def test_pod_resources_lists_the_pods_and_limits_the_rate(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    assert (await kubelet.admit(pod(1))).admitted
    listing = "/v1.PodResourcesLister/List"
    (entry,) = texts(await call(kubelet.pod_resources_socket, listing), 1)
    (container,) = texts(entry, 3)
    (devices,) = texts(container, 2)
    assert (texts(entry, 1), texts(devices, 1), texts(devices, 2)) == ([b"pod"], [TOY.encode()], [b"a"])

    refused: list[GRPCError] = []
    while not refused:  # a slow machine may not ask fast enough
        calls = [call(kubelet.pod_resources_socket, listing) for _ in range(200)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, GRPCError)]
    assert {error.message for error in refused} == {"rejected by rate limit"}


async def test_a_plugin_in_the_registry_directory_is_found(kubelet: RealKubelet) -> None:
    async with TinyPlugin(kubelet.registry_dir) as plugin:
        await plugin.publish(HEALTHY)
        assert await plugin.notified.get() == b"\x08\x01"
        await offers(kubelet, 3, 3)
        await kubelet.restart()
        assert await plugin.notified.get() == b"\x08\x01"
        await offers(kubelet, 3, 3)


async def test_a_hanging_allocate_holds_up_admission_and_no_more(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    plugin.hold.clear()
    first = asyncio.create_task(kubelet.admit(pod(1)))
    second = asyncio.create_task(kubelet.admit(pod(1)))
    await plugin.held.wait()
    assert await kubelet.capacity() == {TOY: Capacity(3, 3)}
    assert not first.done()
    assert not second.done()
    plugin.hold.set()
    assert [(await task).admitted for task in (first, second)] == [True, True]


async def test_registrations_are_checked(kubelet: RealKubelet) -> None:
    async with TinyPlugin(kubelet.plugin_dir, "gpu") as plugin:
        with pytest.raises(GRPCError, match='the ResourceName "gpu" is invalid'):
            await plugin.register()
        with pytest.raises(GRPCError, match='requested API version "v1" is not supported'):
            await plugin.register("v1")


async def test_a_list_that_nobody_reads_is_cut_in_its_middle(
    kubelet: RealKubelet, plugin: TinyPlugin
) -> None:
    await kubelet.freeze()
    await plugin.publish({f"{number:060}": "Healthy" for number in range(10_000)})
    assert not plugin.streams_ended.is_set()
    await kubelet.kill()
    await plugin.streams_ended.wait()


async def test_a_frozen_kubelet_goes_on_where_it_was(kubelet: RealKubelet, plugin: TinyPlugin) -> None:
    await kubelet.freeze()
    assert state_of(kubelet.pid) == "T"
    await plugin.publish({"a": "Healthy"})
    asking = asyncio.create_task(kubelet.capacity())
    kubelet.thaw()
    await asking
    await offers(kubelet, 1, 1)


async def test_a_dead_peer_is_told_apart_from_an_error(kubelet: RealKubelet) -> None:
    await kubelet.kill()
    with pytest.raises(PeerDown, match="exit status -9"):
        await kubelet.capacity()


async def test_the_client_times_what_a_plugin_does(binary: Path, directory: Path) -> None:
    async with GoClient(binary, directory) as client, TinyPlugin(client.plugin_dir) as plugin:
        await plugin.publish(HEALTHY)
        await plugin.register()
        registered = await client.next(lambda event: event["event"] == "register")
        first = await client.next(lambda event: event["event"] == "list")
        assert registered["t_ns"] < first["t_ns"]
        assert (first["resource"], first["devices"], first["unhealthy"]) == (TOY, 3, 0)

        await plugin.publish({**HEALTHY, "b": "Unhealthy"})
        second = await client.next(lambda event: event["event"] == "list")
        assert (second["devices"], second["unhealthy"]) == (3, 1)
        assert await client.ids(TOY) == {**HEALTHY, "b": "Unhealthy"}

        calls = await client.allocate(TOY, ["a"], n=20)
        assert (calls.calls, calls.errors) == (20, 0)
        assert 0 < calls.p50_us <= calls.p90_us <= calls.p99_us <= calls.max_us
        assert calls.first[0]["envs"] == {"DEVICES": "a"}
        assert (await client.preferred(TOY, ["a", "b", "c"], [], 2)).first == ["a", "b"]

        plugin.refuse = "no"
        failed = await client.allocate(TOY, ["a"], n=2)
        assert (failed.errors, failed.error) == (2, "rpc error: code = InvalidArgument desc = no")

        await client.restart()
        await client.next(lambda event: event["event"] == "end")
        await client.next(lambda event: event["event"] == "ready")
        await plugin.streams_ended.wait()
        await plugin.serve()
        await plugin.register()
        assert (await client.next(lambda event: event["event"] == "list"))["devices"] == 3

        await plugin.publish({f"{number:060}": "Healthy" for number in range(62_000)})
        end = await client.next(lambda event: event["event"] == "end")
        assert "grpc: received message larger than max" in end["error"]
