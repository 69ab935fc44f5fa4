"""The checkpoint file: the kubelet's own bytes, its checksum, and when it is written."""

from __future__ import annotations

import json

import pytest

from agent.testing.node_kubelet import Capacity
from agent.testing.simkubelet.checkpoint_bytes import Checkpoint, Corrupt, decode, encode

from .conftest import Lab, offers, pod
from .plugin import TOY, device, devices

#: Written by the device managers of Kubernetes 1.36.3 and 1.32.2.
REAL = [
    (
        r'{"Data":{"PodDeviceEntries":[{"PodUID":"1d9c","ContainerName":"main","ResourceName":"example.com/toy",'
        r'"DeviceIDs":{"-1":["c"],"0":["b"],"1":["b"]},"AllocResp":"CgYKAUESATEiBwoBbhICw6k="},'
        r'{"PodUID":"77fe","ContainerName":"m\u003c\u0026\u003en","ResourceName":"example.com/toy",'
        r'"DeviceIDs":{"0":["a"]},"AllocResp":""}],"RegisteredDevices":{"example.com/toy":["a","b","c"]}},'
        r'"Checksum":3062839366}'
    ),
    (
        r'{"Data":{"PodDeviceEntries":[{"PodUID":"1d9c","ContainerName":"main","ResourceName":"example.com/toy",'
        r'"DeviceIDs":{"-1":["c"],"0":["a"]},"AllocResp":"CgYKAUESATEiBwoBbhICw6k="},'
        r'{"PodUID":"77fe","ContainerName":"m\u003c\u0026\u003en","ResourceName":"example.com/toy",'
        r'"DeviceIDs":{"0":["b"],"1":["b"]},"AllocResp":""}],"RegisteredDevices":{"example.com/toy":["a","b","c"]}},'
        r'"Checksum":2692996918}'
    ),
]


@pytest.mark.parametrize("raw", REAL)
def test_a_real_checkpoint_is_read_and_written_byte_by_byte(raw: str) -> None:
    assert encode(decode(raw.encode())).decode() == raw


def test_an_empty_checkpoint_has_no_entries_at_all() -> None:
    document = json.loads(encode(Checkpoint()))
    assert document["Data"] == {"PodDeviceEntries": None, "RegisteredDevices": {}}


@pytest.mark.parametrize("raw", [REAL[0].replace("1d9c", "1d9d"), REAL[0][:-3], "", "[]", "{}", "null"])
def test_a_spoilt_checkpoint_is_corrupt(raw: str) -> None:
    with pytest.raises(Corrupt):
        decode(raw.encode())


async def test_it_is_written_with_every_list_and_every_allocation(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    plugin.publish([device("a", "Healthy", 0, 1), device("b"), device("c", "Unhealthy")])
    await offers(kubelet, 3, 2)
    saved = decode(kubelet.checkpoint.read_bytes())
    assert saved.registered == {TOY: ["a", "b"]}
    (held,) = saved.holdings
    assert (held.pod, held.container, held.resource, held.by_node) == (one.uid, "c0", TOY, {-1: ["a"]})
    assert held.answer.envs == {"DEVICES": "a"}


async def test_it_is_on_disk_when_the_pod_is_admitted(lab: Lab) -> None:
    kubelet, _ = await lab.pair("ab")
    one = pod(1, init=1)
    await kubelet.admit(one)
    saved = decode(kubelet.checkpoint.read_bytes())
    assert [(held.pod, held.container) for held in saved.holdings] == [(one.uid, "init"), (one.uid, "c0")]


async def test_a_device_on_two_nodes_stands_under_both(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab")
    plugin.publish([device("b", "Healthy", 0, 1)])
    await offers(kubelet, 1, 1)
    await kubelet.admit(pod(1))
    (held,) = decode(kubelet.checkpoint.read_bytes()).holdings
    assert held.by_node == {0: ["b"], 1: ["b"]}


async def test_it_goes_stale_when_a_stream_ends_and_when_pods_go(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    one = pod(1)
    await kubelet.admit(one)
    before = kubelet.checkpoint.read_bytes()
    await kubelet.delete(one.uid)
    plugin.end_streams()
    await offers(kubelet, 1, 0)
    assert kubelet.checkpoint.read_bytes() == before


async def test_only_its_owner_reads_it_and_it_is_replaced_whole(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    before = kubelet.checkpoint.stat()
    plugin.publish(devices("ab"))
    await offers(kubelet, 2, 2)
    after = kubelet.checkpoint.stat()
    assert after.st_mode & 0o777 == 0o600
    assert (before.st_ino, before.st_ctime_ns) != (after.st_ino, after.st_ctime_ns)
    assert {path.name for path in kubelet.plugin_dir.iterdir()} == {
        "kubelet.sock",
        "kubelet_internal_checkpoint",
        plugin.endpoint,
    }


async def test_a_corrupt_one_is_an_empty_one(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab")
    one = pod(2)
    await kubelet.admit(one)
    await kubelet.kill()
    kubelet.checkpoint.write_text(REAL[0].replace("1d9c", "1d9d"))
    await kubelet.start()
    assert await kubelet.capacity() == {}
    assert await kubelet.devices(one.uid) == {"c0": {}}
    await plugin.serve()
    await plugin.register()
    await offers(kubelet, 2, 2)
    assert await kubelet.capacity() == {TOY: Capacity(2, 2)}
