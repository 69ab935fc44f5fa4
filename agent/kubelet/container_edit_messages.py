"""The kubelet's ContainerAllocateResponse: how what a container gets is written, and read back."""

from __future__ import annotations

from collections.abc import Iterable

from agent.vendor_api.agent import ContainerEdits, DeviceNode, Mount

from .protobuf import delimited, fields


def response(edits: ContainerEdits) -> bytes:
    """Written by hand, as the device list is: every Allocate waits for it, and it is five times as fast."""
    mounts = (
        _text(1, it.path) + _text(2, it.host_path) + (b"\x18\x01" if it.read_only else b"")
        for it in edits.mounts
    )
    nodes = (
        _text(1, it.path) + _text(2, it.host_path) + _text(3, it.permissions) for it in edits.device_nodes
    )
    return b"".join(
        (
            *(delimited(1, _pair(*it)) for it in edits.env.items()),
            *(delimited(2, it) for it in mounts),
            *(delimited(3, it) for it in nodes),
            *(delimited(4, _pair(*it)) for it in edits.annotations.items()),
            *(delimited(5, _text(1, name)) for name in edits.cdi_devices),
        )
    )


def _pair(key: str, value: str) -> bytes:
    """The entry of a map has both its fields, empty ones too."""
    return delimited(1, key.encode()) + delimited(2, value.encode())


def _text(field: int, value: str) -> bytes:
    return delimited(field, value.encode()) if value else b""


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
