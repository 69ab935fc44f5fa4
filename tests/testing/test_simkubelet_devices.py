"""What the kubelet counts, when a plugin speaks, falls silent, or the kubelet starts anew."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Admission, Capacity, NodeKubelet

from .conftest import Lab, dial_shortly, offers, pod, until
from .plugin import TOY, device, devices


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_is_a_node_kubelet(lab: Lab) -> None:
    node: NodeKubelet = await lab.kubelet()
    assert await node.capacity() == {}
    assert (node.plugin_dir / "kubelet.sock").is_socket()
    assert node.pod_resources_socket.is_socket()


async def test_every_list_replaces_the_one_before(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.publish(devices("d"))
    await offers(kubelet, 1, 1)


async def test_an_empty_list_leaves_the_plugin_connected(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.publish([])
    await offers(kubelet, 0, 0)
    plugin.publish(devices("a"))
    await offers(kubelet, 1, 1)


@pytest.mark.parametrize("health", ["Unhealthy", "healthy", "HEALTHY", ""])
async def test_any_health_but_healthy_is_unhealthy(lab: Lab, health: str) -> None:
    kubelet, plugin = await lab.pair("a")
    plugin.publish([device("a", health), device("b")])
    await offers(kubelet, 2, 1)


async def test_ids_listed_twice_count_once(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    plugin.publish(devices("aabb"))
    await offers(kubelet, 2, 2)


async def test_an_id_listed_twice_with_different_health_counts_twice(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    plugin.publish([device("a"), device("b"), device("b", "Unhealthy")])
    await offers(kubelet, 3, 2)


async def test_allocated_devices_stay_allocatable(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    assert (await kubelet.admit(pod(2))).admitted
    assert await kubelet.capacity() == {TOY: Capacity(3, 3)}


async def test_the_end_of_the_stream_makes_every_device_unhealthy(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.end_streams()
    await offers(kubelet, 3, 0)
    refused = await kubelet.admit(pod(1))
    assert refused == Admission(
        False,
        "UnexpectedAdmissionError",
        "Allocate failed due to no healthy devices present; "
        f"cannot allocate unhealthy devices {TOY}, which is unexpected",
    )


async def test_a_plugin_that_dies_makes_every_device_unhealthy(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    await plugin.close()
    await offers(kubelet, 3, 0)


async def test_a_resource_is_forgotten_when_its_grace_is_over(lab: Lab) -> None:
    clock = Clock()
    kubelet, plugin = await lab.pair("abc", clock=clock)
    plugin.end_streams()
    await offers(kubelet, 3, 0)
    clock.now += 300
    assert await kubelet.capacity() == {TOY: Capacity(3, 0)}
    clock.now += 1
    assert await kubelet.capacity() == {}


async def test_pods_get_no_devices_of_a_forgotten_resource_and_are_admitted(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc", grace=0.0)
    plugin.end_streams()
    await until(kubelet, lambda k: not k.counts())
    one = pod(2)
    assert await kubelet.admit(one) == Admission(True)
    assert await kubelet.devices(one.uid) == {"c0": {}}


async def test_a_forgotten_resource_comes_back_with_its_plugin(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc", grace=0.0)
    plugin.end_streams()
    await until(kubelet, lambda k: not k.counts())
    await plugin.serve()
    await plugin.register()
    await offers(kubelet, 3, 3)


async def test_a_restart_cancels_streams_wipes_sockets_and_binds_anew(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    before = (kubelet.plugin_dir / "kubelet.sock").stat()
    await kubelet.restart()
    with anyio.fail_after(30):
        await plugin.cancelled.wait()
    after = (kubelet.plugin_dir / "kubelet.sock").stat()
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    assert not plugin.socket.exists()


async def test_a_restart_keeps_resources_at_zero_until_their_plugins_return(lab: Lab) -> None:
    clock = Clock()
    kubelet, plugin = await lab.pair("abc", clock=clock)
    await kubelet.restart()
    assert await kubelet.capacity() == {TOY: Capacity(0, 0)}
    refused = await kubelet.admit(pod(1))
    assert "no healthy devices present" in refused.message
    await plugin.serve()
    await plugin.register()
    await offers(kubelet, 3, 3)


async def test_a_plugin_that_stays_away_after_a_restart_is_forgotten(lab: Lab) -> None:
    clock = Clock()
    kubelet, _ = await lab.pair("abc", clock=clock)
    await kubelet.restart()
    clock.now += 301
    assert await kubelet.capacity() == {}


async def test_registering_the_wiped_socket_again_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    kubelet, plugin = await lab.pair("abc")
    await kubelet.restart()
    dial_shortly(monkeypatch)
    with pytest.raises(Exception, match="failed to dial device plugin"):
        await plugin.register()


async def test_pods_and_checkpoint_outlast_a_restart(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    kept = pod(2)
    assert await kubelet.admit(kept) == Admission(True)
    held = (await kubelet.devices(kept.uid))["c0"][TOY]
    await kubelet.restart()
    await plugin.serve()
    plugin.publish(devices("abcd"))
    await plugin.register()
    await offers(kubelet, 4, 4)
    assert (await kubelet.devices(kept.uid))["c0"][TOY] == held
    assert (await kubelet.run_options(kept.uid, "c0")).env == {"DEVICES": ",".join(sorted(held))}
    assert "Requested: 4, Available: 2" in (await kubelet.admit(pod(4))).message


def furnish(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "state.json").write_text("{}")
    (directory / "folder").mkdir()
    (directory / "link").symlink_to("/nowhere")
    (directory / "kubelet_internal_checkpoint").write_text("no checkpoint")


async def left_after_start(lab: Lab, mode: str) -> set[str]:
    furnish(SimKubelet(lab.directory).plugin_dir)
    kubelet = await lab.kubelet(mode=mode)
    return set(os.listdir(kubelet.plugin_dir)) - {"kubelet.sock"}


@pytest.mark.parametrize("mode", ["1.33", "1.36", "1.37"])
async def test_a_start_wipes_sockets_alone(lab: Lab, mode: str) -> None:
    kept = {"state.json", "folder", "link", "kubelet_internal_checkpoint"}
    assert await left_after_start(lab, mode) == kept


@pytest.mark.parametrize("mode", ["1.25", "1.32"])
async def test_a_start_before_1_33_wipes_every_file_but_the_checkpoint(lab: Lab, mode: str) -> None:
    assert await left_after_start(lab, mode) == {"folder", "kubelet_internal_checkpoint"}


async def test_an_old_kubelet_leaves_a_deprecation_file(lab: Lab) -> None:
    assert await left_after_start(lab, "1.20") == {"folder", "kubelet_internal_checkpoint", "DEPRECATION"}


async def test_health_of_a_held_device_follows_its_list(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    plugin.publish([device("a", "Unhealthy")])
    await offers(kubelet, 1, 0)
    assert await kubelet.health(one.uid) == {"a": "Unhealthy"}
    assert kubelet.journal.status_updates == [frozenset({one.uid})]


async def test_a_held_device_that_vanished_is_reported_healthy_and_nobody_is_told(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    plugin.publish([device("a", "Unhealthy")])
    await offers(kubelet, 1, 0)
    plugin.publish([])
    await offers(kubelet, 0, 0)
    assert await kubelet.health(one.uid) == {"a": "Healthy"}
    assert len(kubelet.journal.status_updates) == 1


async def test_the_end_of_the_stream_leaves_the_reported_health_as_it_was(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    plugin.end_streams()
    await offers(kubelet, 1, 0)
    assert await kubelet.health(one.uid) == {"a": "Healthy"}


async def test_devices_of_init_containers_have_no_reported_health(lab: Lab) -> None:
    kubelet, _ = await lab.pair("ab")
    one = pod(init=1, sidecar=1)
    assert (await kubelet.admit(one)).admitted
    assert await kubelet.health(one.uid) == {}


async def test_health_flips_update_no_status_before_1_36(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a", mode="1.35")
    await kubelet.admit(pod(1))
    plugin.publish([device("a", "Unhealthy")])
    await offers(kubelet, 1, 0)
    assert kubelet.journal.status_updates == []
