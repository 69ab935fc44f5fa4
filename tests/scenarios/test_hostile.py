"""Calls that no kubelet makes, straight to our socket: each is refused by name, and nothing else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from peers.faults import second_stream

from agent.core.model import AllocationState
from agent.kubelet.kubelet_errors import KubeletError, KubeletRefused
from agent.kubelet.protobuf import delimited
from agent.kubelet.rpc import call
from agent.testing.node_kubelet import Capacity

from .node import PATIENCE, Node, confirmed, in_use, shared

XPU = "example.com/xpu"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
PREFERRED = "/v1beta1.DevicePlugin/GetPreferredAllocation"


@pytest.fixture
async def served(node: Node) -> Node:
    """A node that is registered, with a pod that must not notice anything."""
    await node.start(shared(XPU, 2))
    await node.counts({XPU: (8, 8)})
    bystander = await node.admit("bystander", {XPU: 1})
    await node.until(lambda it: confirmed(it, bystander) and in_use(it)[0].life)
    return node


def socket(node: Node) -> Path:
    (path,) = node.kubelet.plugin_dir.glob("xpu-*.sock")
    return path


def request(*containers: Sequence[str]) -> bytes:
    """An AllocateRequest."""
    return b"".join(
        delimited(1, b"".join(delimited(1, device_id.encode()) for device_id in ids)) for ids in containers
    )


HOSTILE = {
    "an unknown ID": (request(["GPU-of-somebody-else"]), "unknown device: GPU-of-somebody-else"),
    "an ID of a replica that there is not": (
        request(["SIM-00000000-0000-4000-8000-000000000000::2"]),
        "unknown device: SIM-00000000-0000-4000-8000-000000000000::2",
    ),
    "an ID that only looks right": (
        request(["SIM-00000000-0000-4000-8000-000000000000::01"]),
        "unknown device",
    ),
    "the empty ID": (request([""]), "unknown device"),
    "no ID": (request([]), "it names no device"),
    "no container": (b"", "it names no container"),
    "a good container and a bad one": (
        request(["SIM-00000000-0000-4000-8000-000000000000::0"], ["nobody"]),
        "unknown device: nobody",
    ),
    "100,000 IDs": (request([f"GPU-{n:036}" for n in range(100_000)]), "unknown device"),
    "control characters": (request(["\x1b[2Jgpu\r\n\x00"]), r"unknown device: \x1b[2Jgpu\r\n\x00"),
    "a line of log of its own": (request(['x\n{"level": "error"}']), r"unknown device: x\n{"),
    "an ID of a megabyte": (request(["x" * (1 << 20)]), "(1048576 characters)"),
    "no protobuf": (b"\xff\xfe\xfd garbage", "AllocateRequest"),
    "a string that is no UTF-8": (delimited(1, delimited(1, b"\xff\xff")), "AllocateRequest"),
    "a length that lies": (b"\x0a\x7f\x0a\x01a", "AllocateRequest"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_allocate_is_refused_by_name_and_changes_nothing(served: Node, name: str) -> None:
    message, words = HOSTILE[name]
    before = in_use(served.view)

    with pytest.raises(KubeletRefused) as refusal:
        await call(socket(served), ALLOCATE, message, timeout=PATIENCE)

    assert words in refusal.value.text
    assert len(refusal.value.text) < 1000
    assert refusal.value.text.isprintable()
    assert in_use(served.view) == before
    assert await served.kubelet.capacity() == {XPU: Capacity(8, 8)}
    assert served.streams(XPU) == 1
    await served.admit("next", {XPU: 1})


async def test_an_id_of_a_sick_card_is_refused_with_what_the_card_has(served: Node) -> None:
    await served.fail(3)
    await served.counts({XPU: (8, 6)})
    sick = request([f"{served.cards.uuids[3]}::0"])

    with pytest.raises(KubeletRefused, match=f"{served.cards.uuids[3]}::0 is unhealthy: xid-79"):
        await call(socket(served), ALLOCATE, sick, timeout=PATIENCE)

    assert len(in_use(served.view)) == 1


async def test_an_allocation_that_the_kubelet_never_took_is_released(served: Node) -> None:
    good = request([f"{served.cards.uuids[3]}::1"])

    await call(socket(served), ALLOCATE, good, timeout=PATIENCE)

    assert len(served.view.allocations) == 2
    view = await served.until(lambda it: len(in_use(it)) == 1)
    (over,) = [it for it in view.allocations if it.state is AllocationState.RELEASED]
    assert (over.reason, over.owner) == ("never used", None)


async def test_hundreds_of_hostile_calls_at_once_hold_up_no_pod(served: Node) -> None:
    bad = request(["nobody"])
    calls = [asyncio.create_task(call(socket(served), ALLOCATE, bad, timeout=PATIENCE)) for _ in range(300)]

    await served.admit("meanwhile", {XPU: 1})

    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(it, KubeletError) for it in answers)  # some found the queue full


async def test_a_preferred_allocation_of_nonsense_is_answered_with_no_preference(served: Node) -> None:
    for message in (
        b"\xff\xff",
        delimited(1, b"\x18\x05"),
        delimited(1, delimited(1, b"nobody") + b"\x18\x02"),
    ):
        answer = await call(socket(served), PREFERRED, message, timeout=PATIENCE)
        assert b"nobody" not in answer

    await served.admit("next", {XPU: 2})


async def test_a_stranger_that_asks_for_the_list_is_refused_and_the_kubelet_keeps_its_own(
    served: Node,
) -> None:
    for _ in range(2):
        with pytest.raises(GRPCError, match="one is served at a time") as refusal:
            async with second_stream(socket(served)) as lists:
                await anext(lists)
        assert refusal.value.status is Status.ALREADY_EXISTS

    await served.fail(3)
    await served.counts({XPU: (8, 6)})
    assert served.streams(XPU) == 1
    await served.admit("next", {XPU: 1})


async def test_hundreds_of_connections_that_nobody_closes_hold_up_no_pod(served: Node) -> None:
    held = [await asyncio.open_unix_connection(str(socket(served))) for _ in range(300)]

    await served.admit("meanwhile", {XPU: 1})

    assert served.streams(XPU) == 1
    assert await served.kubelet.capacity() == {XPU: Capacity(8, 8)}
    for _, writer in held:
        writer.close()


async def test_a_kubelet_that_restarts_amid_strangers_has_its_list_again(served: Node) -> None:
    held = [await asyncio.open_unix_connection(str(socket(served))) for _ in range(100)]

    await served.kubelet.restart()

    await served.counts({XPU: (8, 8)})
    await served.admit("next", {XPU: 1})
    for _, writer in held:
        writer.close()


async def test_an_unknown_method_is_refused(served: Node) -> None:
    with pytest.raises(KubeletError):
        await call(socket(served), "/v1beta1.DevicePlugin/Destroy", b"", timeout=PATIENCE)

    await served.admit("next", {XPU: 1})


async def test_a_client_that_speaks_no_grpc_harms_nobody(served: Node) -> None:
    for noise in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"\x00" * 9,
    ):
        reader, writer = await asyncio.open_unix_connection(str(socket(served)))
        writer.write(noise)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE):
            await reader.read()
        writer.close()
        await writer.wait_closed()

    await served.admit("next", {XPU: 1})
    assert served.streams(XPU) == 1


async def test_clients_that_hang_up_in_the_middle_leave_whole_allocations_or_none(served: Node) -> None:
    good = request(["SIM-00000000-0000-4000-8000-000000000003::1"])
    for turns in range(40):  # of the loop, so that some have not connected and some have their answer
        asking = asyncio.create_task(call(socket(served), ALLOCATE, good, timeout=PATIENCE))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    await served.admit("next", {XPU: 1})

    # Those that the kubelet never took may be released by now.
    assert all(it.state is not AllocationState.INTENT and it.devices for it in served.view.allocations)
    assert served.streams(XPU) == 1
