"""What stands between a kubelet and an agent, and breaks."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError
from peers.faults import LISTER, FaultyPodResources, second_stream
from peers.plugin import TinyPlugin, call, texts
from support.waiting import eventually

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Capacity, Container, Pod

TOY = "example.com/toy"


@pytest.fixture
async def kubelet() -> AsyncIterator[SimKubelet]:
    # Not tmp_path: its long names leave no room for a socket's.
    with tempfile.TemporaryDirectory(prefix="faults-") as path:
        async with SimKubelet(Path(path)) as kubelet:
            yield kubelet


@pytest.fixture
async def faulty(kubelet: SimKubelet) -> AsyncIterator[FaultyPodResources]:
    socket = kubelet.pod_resources_socket
    async with FaultyPodResources(socket, socket.with_name("faulty.sock")) as faulty:
        yield faulty


@pytest.fixture
async def plugin(kubelet: SimKubelet) -> AsyncIterator[TinyPlugin]:
    async with TinyPlugin(kubelet.plugin_dir) as plugin:
        await plugin.publish({"a": "Healthy", "b": "Unhealthy"})
        await plugin.register()
        await kubelet.wait(lambda it: it.counts() == {TOY: Capacity(2, 1)})
        yield plugin


async def names(faulty: FaultyPodResources) -> list[bytes]:
    return [texts(pod, 1)[0] for pod in texts(await call(faulty.served, LISTER + "List"), 1)]


async def test_without_a_fault_the_kubelet_answers(kubelet: SimKubelet, faulty: FaultyPodResources) -> None:
    await kubelet.admit(Pod("one", (Container({}),)))
    assert await names(faulty) == [b"one"]


async def test_a_socket_that_went_away_comes_back(faulty: FaultyPodResources) -> None:
    await faulty.go_away()
    with pytest.raises(FileNotFoundError):
        await names(faulty)
    await faulty.come_back()
    assert await names(faulty) == []


async def test_going_away_cuts_who_waits(faulty: FaultyPodResources) -> None:
    faulty.stall()
    waiting = asyncio.create_task(names(faulty))
    await eventually(lambda: faulty.calls)
    await faulty.go_away()
    with pytest.raises(StreamTerminatedError):
        await waiting


async def test_a_stalled_call_is_answered_when_it_flows(faulty: FaultyPodResources) -> None:
    faulty.stall()
    waiting = asyncio.create_task(names(faulty))
    await eventually(lambda: faulty.calls)
    assert not waiting.done()
    faulty.flow()
    assert await waiting == []


async def test_a_slow_answer_is_worth_no_wait(faulty: FaultyPodResources) -> None:
    faulty.delay = 3600.0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(names(faulty), 0.05)


async def test_a_limited_call_is_refused_in_the_kubelets_words(faulty: FaultyPodResources) -> None:
    faulty.limit()
    with pytest.raises(GRPCError, match="rejected by rate limit"):
        await names(faulty)


async def test_a_kubelet_that_is_down_is_unavailable(kubelet: SimKubelet, faulty: FaultyPodResources) -> None:
    await kubelet.stop()
    with pytest.raises(GRPCError, match="UNAVAILABLE"):
        await names(faulty)


async def test_healing_undoes_every_fault(faulty: FaultyPodResources) -> None:
    faulty.delay = 3600.0
    faulty.stall()
    faulty.limit()
    await faulty.go_away()
    await faulty.heal()
    assert await names(faulty) == []


async def test_a_second_stream_tells_every_list_and_ends_alone(
    kubelet: SimKubelet, plugin: TinyPlugin
) -> None:
    async with second_stream(plugin.directory / plugin.endpoint) as lists:
        assert await anext(lists) == {"a": "Healthy", "b": "Unhealthy"}
        await plugin.publish({"a": "Healthy"})
        assert await anext(lists) == {"a": "Healthy"}
    await plugin.publish({"b": "Healthy", "c": "Healthy"})
    await kubelet.wait(lambda it: it.counts() == {TOY: Capacity(2, 2)})


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_comes_while_it_goes_away_is_cut_off(
    faulty: FaultyPodResources, turns: int
) -> None:
    with socket.socket(socket.AF_UNIX) as late:
        late.settimeout(30)
        late.connect(str(faulty.served))
        for _ in range(turns):
            await asyncio.sleep(0)
        await faulty.go_away()

        with suppress(ConnectionResetError):  # it was never taken in
            while late.recv(1 << 16):
                pass
