"""Container edits as the kubelet's ContainerAllocateResponse: encode and decode."""

from __future__ import annotations

from collections.abc import Iterable

from agent.vendor_api.agent import ContainerEdits, DeviceNode, Mount

from .protobuf import delimited, fields


def response(edits: ContainerEdits) -> bytes:
    """Encode by hand, five times as fast as betterproto2: every Allocate waits for this message."""
    mounts = (
        _text(1, mount.path) + _text(2, mount.host_path) + (b"\x18\x01" if mount.read_only else b"")
        for mount in edits.mounts
    )
    nodes = (
        _text(1, node.path) + _text(2, node.host_path) + _text(3, node.permissions)
        for node in edits.device_nodes
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
    """A map entry; unlike other messages it always has both fields, empty ones too."""
    return delimited(1, key.encode()) + delimited(2, value.encode())


def _text(field: int, value: str) -> bytes:
    return delimited(field, value.encode()) if value else b""


def edits(data: bytes) -> ContainerEdits:
    """Decode a ContainerAllocateResponse of any plugin; up to 1.33 its texts may be invalid UTF-8."""
    parts: dict[int, list[bytes]] = {number: [] for number in range(1, 6)}
    for number, value in fields(data):
        if number in parts and isinstance(value, bytes):
            parts[number].append(value)
    return ContainerEdits(
        env=_pairs(parts[1]),
        mounts=tuple(_mount(part) for part in parts[2]),
        device_nodes=tuple(_node(part) for part in parts[3]),
        annotations=_pairs(parts[4]),
        cdi_devices=tuple(_texts(part).get(1, "") for part in parts[5]),
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
