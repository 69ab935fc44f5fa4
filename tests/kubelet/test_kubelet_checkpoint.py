"""The kubelet's checkpoint: read as real kubelets write it, and never believed when it is broken."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from agent.kubelet.container_edit_messages import response
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint, checksum, fnv1a, parse, prove
from agent.vendor_api.agent import ContainerEdits

# Written by the device managers of Kubernetes 1.32.2 and 1.36.3, two NUMA nodes, one device without.
RECORDED_1_32 = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"uid-2","ContainerName":"main","ResourceName":"example.com/gpu",'
    b'"DeviceIDs":{"0":["a::2"]},"AllocResp":"CgsKA0lEUxIEYTo6Mg=="},{"PodUID":"uid-1","ContainerName":"main",'
    b'"ResourceName":"example.com/gpu","DeviceIDs":{"0":["a::0","a::1"]},"AllocResp":"ChAKA0lEUxIJYTo6MSxhOjow"},'
    b'{"PodUID":"uid-1","ContainerName":"two","ResourceName":"example.com/gpu","DeviceIDs":{"1":["b::1"]},'
    b'"AllocResp":"CgsKA0lEUxIEYjo6MQ=="}],"RegisteredDevices":{"example.com/gpu":["a::0","a::1","a::2","b::0",'
    b'"b::1","c"]}},"Checksum":941412974}'
)
RECORDED_1_36 = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"uid-1","ContainerName":"main","ResourceName":"example.com/gpu",'
    b'"DeviceIDs":{"0":["a::2"],"1":["b::0"]},"AllocResp":"ChAKA0lEUxIJYjo6MCxhOjoy"},{"PodUID":"uid-1",'
    b'"ContainerName":"two","ResourceName":"example.com/gpu","DeviceIDs":{"-1":["c"]},"AllocResp":'
    b'"CggKA0lEUxIBYw=="},{"PodUID":"uid-2","ContainerName":"main","ResourceName":"example.com/gpu","DeviceIDs":'
    b'{"0":["a::0"]},"AllocResp":"CgsKA0lEUxIEYTo6MA=="}],"RegisteredDevices":{"example.com/gpu":["a::0","a::1",'
    b'"a::2","b::0","b::1","c"]}},"Checksum":1772914107}'
)


def written(data: Any, *, flat: bool = False) -> bytes:
    return json.dumps({"Data": data, "Checksum": checksum(data, flat=flat)}).encode()


def entry(ids: Any, answer: str | None = None) -> dict[str, Any]:
    return {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": "r",
        "DeviceIDs": ids,
        "AllocResp": answer,
    }


@pytest.mark.parametrize("raw", [RECORDED_1_32, RECORDED_1_36], ids=["1.32", "1.36"])
def test_a_file_of_a_real_kubelet_is_verified(raw: bytes) -> None:
    prove(raw)
    found = parse(raw)

    assert len(found.entries) == 3
    assert found.registered == {"example.com/gpu": ("a::0", "a::1", "a::2", "b::0", "b::1", "c")}


def test_an_entry_says_who_holds_what_and_what_was_answered() -> None:
    assert parse(RECORDED_1_36).entries[0] == CheckpointEntry(
        pod_uid="uid-1",
        container="main",
        resource="example.com/gpu",
        ids=("a::2", "b::0"),
        edits=ContainerEdits(env={"IDS": "b::0,a::2"}),
    )


def test_our_mark_comes_back_beside_the_pods_uid() -> None:
    mark = response(ContainerEdits(annotations={"xpu-agent.io/allocation": "abc"}))
    data = {"PodDeviceEntries": [entry({"0": ["a"]}, base64.b64encode(bytes(mark)).decode())]}

    (found,) = parse(written(data)).entries

    assert found.edits.annotations == {"xpu-agent.io/allocation": "abc"}


def test_the_checksum_is_over_what_go_prints() -> None:
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": "U",
                "ContainerName": "C",
                "ResourceName": "R",
                "DeviceIDs": {"10": ["x"], "2": ["b", "a"], "-1": ["c"], "3": None},
                "AllocResp": "CgYK",
            }
        ],
        "RegisteredDevices": {"k2": [], "k1": ["a", "b"], "k3": None},
    }
    printed = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{PodUID:(string)U "
        "ContainerName:(string)C ResourceName:(string)R DeviceIDs:(checkpoint.DevicesPerNUMA)"
        "map[-1:[c] 2:[b a] 3:<nil> 10:[x]] AllocResp:([]uint8)[10 6 10]}] "
        "RegisteredDevices:(map[string][]string)map[k1:[a b] k2:[] k3:<nil>]}"
    )

    assert checksum(data) == fnv1a(printed.encode())


def test_fnv_1a_gives_its_published_values() -> None:
    assert (fnv1a(b""), fnv1a(b"a"), fnv1a(b"foobar")) == (0x811C9DC5, 0xE40C292C, 0xBF9CF968)


def test_nothing_allocated_and_nothing_registered_is_an_empty_checkpoint() -> None:
    assert parse(written({"PodDeviceEntries": None, "RegisteredDevices": None})) == KubeletCheckpoint()
    assert parse(written({"PodDeviceEntries": [], "RegisteredDevices": {}})) == KubeletCheckpoint()


def test_the_flat_list_of_up_to_1_19_is_read() -> None:
    data = {"PodDeviceEntries": [entry(["b", "a"])], "RegisteredDevices": {"r": ["a", "b"]}}

    prove(written(data, flat=True))
    assert parse(written(data, flat=True)).entries[0].ids == ("b", "a")


def test_a_device_on_two_numa_nodes_is_one_device() -> None:
    data = {"PodDeviceEntries": [entry({"0": ["a"], "1": ["a", "b"]})]}

    assert parse(written(data)).entries[0].ids == ("a", "b")


def test_nulls_are_read_as_nothing() -> None:
    data = {"PodDeviceEntries": [entry(None), entry({"0": None})], "RegisteredDevices": {"r": None}}

    found = parse(written(data))

    assert [one.ids for one in found.entries] == [(), ()]
    assert found.registered == {"r": ()}
