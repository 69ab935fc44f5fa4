"""The bytes of `kubelet_internal_checkpoint`. Its checksum is over the text that Go's spew prints."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.kubelet.pb.deviceplugin.v1beta1 import ContainerAllocateResponse

from .holdings import Holding

FILE = "kubelet_internal_checkpoint"
FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193


class Corrupt(Exception):
    """Raised when a file does not match its checksum, or is no checkpoint."""

    def __init__(self) -> None:
        super().__init__("checkpoint is corrupted")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    holdings: Sequence[Holding] = ()
    #: The healthy IDs by resource when the file was written.
    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> bytes:
    data = _data(checkpoint)
    return _go_json({"Data": data, "Checksum": checksum(data)})


def decode(raw: bytes) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        Corrupt: The checksum is wrong, or the file is cut short.
    """
    try:
        document = json.loads(raw)
        data = document["Data"]
        if document["Checksum"] != checksum(data):
            raise Corrupt
        entries = [_holding(entry) for entry in data["PodDeviceEntries"] or ()]
        return Checkpoint(entries, data["RegisteredDevices"] or {})
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Corrupt from exc


def write(directory: Path, raw: bytes) -> None:
    """Replace the file in one step, by a rename of a hidden temporary file."""
    handle, temporary = tempfile.mkstemp(prefix=".", dir=directory)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
    os.rename(temporary, directory / FILE)


def checksum(data: Mapping[str, Any]) -> int:
    """FNV-1a, 32 bit, over what spew prints for the Go structure."""
    value = FNV_OFFSET
    for byte in _spew(data).encode():
        value = (value ^ byte) * FNV_PRIME & 0xFFFF_FFFF
    return value


def _data(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "PodDeviceEntries": [_entry(holding) for holding in checkpoint.holdings] or None,
        "RegisteredDevices": {name: list(ids) for name, ids in sorted(checkpoint.registered.items())},
    }


def _entry(holding: Holding) -> dict[str, Any]:
    return {
        "PodUID": holding.pod,
        "ContainerName": holding.container,
        "ResourceName": holding.resource,
        "DeviceIDs": dict(sorted((str(node), ids) for node, ids in holding.by_node.items())),
        "AllocResp": base64.b64encode(bytes(holding.answer)).decode(),
    }


def _holding(entry: Mapping[str, Any]) -> Holding:
    return Holding(
        pod=entry["PodUID"],
        container=entry["ContainerName"],
        resource=entry["ResourceName"],
        by_node={int(node): list(ids) for node, ids in (entry["DeviceIDs"] or {}).items()},
        answer=ContainerAllocateResponse.parse(base64.b64decode(entry["AllocResp"] or "")),
    )


def _go_json(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def _spew(data: Mapping[str, Any]) -> str:
    entries, registered = data["PodDeviceEntries"], data["RegisteredDevices"]
    printed = "<nil>" if entries is None else _list(_spew_entry(entry) for entry in entries)
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){printed} "
        f"RegisteredDevices:(map[string][]string){_map(registered)}}}"
    )


def _spew_entry(entry: Mapping[str, Any]) -> str:
    devices = entry["DeviceIDs"]
    by_number = devices and {node: devices[node] for node in sorted(devices, key=int)}
    answer = entry["AllocResp"]
    octets = "<nil>" if answer is None else _list(str(byte) for byte in base64.b64decode(answer))
    return (
        f"{{PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA){_map(by_number)} AllocResp:([]uint8){octets}}}"
    )


def _map(values: Mapping[str, Sequence[str] | None] | None) -> str:
    if values is None:
        return "<nil>"
    lists = {key: "<nil>" if ids is None else _list(ids) for key, ids in values.items()}
    return f"map{_list(f'{key}:{ids}' for key, ids in lists.items())}"


def _list(items: Iterable[str]) -> str:
    return f"[{' '.join(items)}]"
