"""The knobs that make a simulated kubelet misbehave, and its life beyond plain restarts."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from grpclib.exceptions import GRPCError

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Capacity
from agent.testing.simkubelet.tasks import Tasks

from .conftest import Lab, offers, pod, until
from .plugin import TOY, ToyPlugin, devices


async def test_register_hangs_until_it_is_let_go(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = await lab.plugin(kubelet)
    kubelet.hang_register()
    registering = asyncio.create_task(plugin.register())
    await until(kubelet, lambda k: bool(k.journal.register_requests))
    await anyio.wait_all_tasks_blocked()
    assert not registering.done()
    kubelet.hang_register(False)
    await registering
    assert kubelet.journal.registrations[TOY] == 1


async def test_register_is_refused_in_any_words(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = await lab.plugin(kubelet)
    kubelet.refuse_registration("not today")
    with pytest.raises(GRPCError, match="not today"):
        await plugin.register()
    kubelet.refuse_registration(None)
    await plugin.register()


async def test_a_second_stream_feeds_the_same_devices(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    kubelet.open_second_stream(TOY)
    await until(kubelet, lambda k: k.journal.lists[TOY] == 2)
    plugin.publish(devices("ab"))
    await until(kubelet, lambda k: k.journal.lists[TOY] == 4)
    assert await kubelet.capacity() == {TOY: Capacity(2, 2)}


async def test_a_dropped_stream_looks_like_a_dead_plugin(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    kubelet.drop_stream(TOY)
    await offers(kubelet, 3, 0)
    with anyio.fail_after(30):
        await plugin.cancelled.wait()


async def test_a_list_that_breaks_off_is_not_taken_in(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    kubelet.cut_next_message(TOY)
    plugin.publish(devices("ab"))
    await offers(kubelet, 3, 0)
    with anyio.fail_after(30):
        await plugin.cancelled.wait()


async def test_an_allocate_whose_answer_breaks_off_fails_though_the_plugin_answered(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    kubelet.cut_next_message(TOY)
    assert "rpc error: code = Unavailable" in (await kubelet.admit(pod(1))).message
    assert len(plugin.of("Allocate")) == 1
    await offers(kubelet, 3, 0)


async def test_a_killed_kubelet_leaves_its_sockets_and_answers_nobody(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    await kubelet.kill()
    with anyio.fail_after(30):
        await plugin.cancelled.wait()
    assert plugin.socket.is_socket()
    assert (kubelet.plugin_dir / "kubelet.sock").is_socket()
    with pytest.raises(ConnectionRefusedError):
        await plugin.register()
    with pytest.raises(RuntimeError, match="the kubelet is down"):
        await kubelet.admit(pod(1))


async def test_a_kubelet_that_stops_in_order_takes_its_sockets_along(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    await kubelet.stop()
    assert not (kubelet.plugin_dir / "kubelet.sock").exists()
    assert not kubelet.pod_resources_socket.exists()
    assert plugin.socket.is_socket()
    await kubelet.start()
    with pytest.raises(RuntimeError, match="runs already"):
        await kubelet.start()


async def test_a_directory_made_anew_has_no_past(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    before = kubelet.plugin_dir.stat().st_ctime_ns
    await kubelet.recreate_directory()
    assert kubelet.plugin_dir.stat().st_ctime_ns != before
    assert await kubelet.capacity() == {}
    await plugin.serve()
    await plugin.register()
    await offers(kubelet, 3, 3)


async def test_a_kill_ends_an_allocate_that_hangs(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.holds["Allocate"] = asyncio.Event()
    admission = asyncio.create_task(kubelet.admit(pod(1)))
    await plugin.was_called("Allocate")
    await kubelet.restart()
    with anyio.fail_after(30):
        assert not (await admission).admitted


async def test_the_same_seed_chooses_the_same_devices(lab: Lab) -> None:
    chosen = []
    for _ in range(2):
        async with SimKubelet(lab.directory, seed=7) as kubelet, ToyPlugin(kubelet.plugin_dir) as plugin:
            plugin.publish(devices("abcdefgh"))
            await plugin.register()
            await offers(kubelet, 8, 8)
            one = pod(3)
            await kubelet.admit(one)
            chosen.append((await kubelet.devices(one.uid))["c0"][TOY])
            await kubelet.delete(one.uid)
    assert chosen[0] == chosen[1]


async def test_a_bug_in_a_task_of_the_kubelet_comes_out_at_its_end() -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    tasks = Tasks()
    await asyncio.gather(tasks.start(breaks()), return_exceptions=True)

    with pytest.raises(ExceptionGroup, match="the simulated kubelet has a bug"):
        await tasks.close()
    await tasks.close()  # it is said once


async def test_strange_releases_are_refused(lab: Lab) -> None:
    with pytest.raises(ValueError, match="'2' is no Kubernetes release"):
        await lab.kubelet(mode="2")


async def test_asking_for_a_pod_or_container_that_is_not_there_fails(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    with pytest.raises(LookupError, match="has no container"):
        await kubelet.run_options(one.uid, "nobody")
    with pytest.raises(LookupError, match="no pod with uid"):
        await kubelet.devices("nobody")
