"""The kubelet's ContainerAllocateResponse: how what a container gets is written, and read back."""

from __future__ import annotations

from collections.abc import Iterable

from agent.core.vendor import ContainerEdits, DeviceNode, Mount

from .pb.deviceplugin import v1beta1 as pb
from .wire import fields


def response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=dict(edits.env),
        mounts=[
            pb.Mount(container_path=mount.path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=node.path, host_path=node.host_path, permissions=node.permissions)
            for node in edits.device_nodes
        ],
        annotations=dict(edits.annotations),
        cdi_devices=[pb.CdiDevice(name=name) for name in edits.cdi_devices],
    )


def edits(data: bytes) -> ContainerEdits:
    """Read a ContainerAllocateResponse, any plugin's; up to 1.33 its texts may be no UTF-8."""
    parts: dict[int, list[bytes]] = {number: [] for number in range(1, 6)}
    for number, value in fields(data):
        if number in parts and isinstance(value, bytes):
            parts[number].append(value)
    return ContainerEdits(
        env=_pairs(parts[1]),
        mounts=tuple(_mount(one) for one in parts[2]),
        device_nodes=tuple(_node(one) for one in parts[3]),
        annotations=_pairs(parts[4]),
        cdi_devices=tuple(_texts(one).get(1, "") for one in parts[5]),
    )


def _pairs(entries: Iterable[bytes]) -> dict[str, str]:
    found = map(_texts, entries)
    return {entry.get(1, ""): entry.get(2, "") for entry in found}


def _texts(data: bytes) -> dict[int, str]:
    return {
        number: value.decode("utf-8", errors="replace")
        for number, value in fields(data)
        if isinstance(value, bytes)
    }


def _mount(data: bytes) -> Mount:
    texts = _texts(data)
    read_only = any(number == 3 and bool(value) for number, value in fields(data) if isinstance(value, int))
    return Mount(path=texts.get(1, ""), host_path=texts.get(2, ""), read_only=read_only)


def _node(data: bytes) -> DeviceNode:
    texts = _texts(data)
    return DeviceNode(path=texts.get(1, ""), host_path=texts.get(2, ""), permissions=texts.get(3, ""))
