"""The kubelet's own checkpoint, kubelet_internal_checkpoint: read and verified, never written.

The file names the device IDs of each container of each pod (by UID), and has the agent's whole answer to each
Allocate. There are two formats: IDs by NUMA node (from 1.20 on), and a flat list of IDs (before). The
checksum is over Go's rendering of the values. The content of the file is enough to repeat that rendering.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from agent.vendor_api.agent import ContainerEdits

from .container_edit_messages import edits
from .kubelet_errors import Undecodable
from .protobuf import decode

#: What bytes that are no checkpoint cause here. The kubelet itself starts without a record then.
WRONG = (ValueError, TypeError, KeyError, RecursionError, Undecodable)


class CheckpointEntry(Struct, frozen=True):
    """The devices of one resource that one container has, and the Allocate answer for them."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    edits: ContainerEdits = field(default_factory=ContainerEdits)


class KubeletCheckpoint(Struct, frozen=True):
    """The file's content. May be stale: pods that are gone stay until the kubelet writes again."""

    entries: tuple[CheckpointEntry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))


def parse(raw: bytes) -> KubeletCheckpoint:
    """Decode the bytes of the file, without its checksum.

    Raises:
        ValueError: A value is wrong. Wrong bytes cause the other errors of `WRONG`, too.
    """
    content, entries, _ = _parts(raw)
    return KubeletCheckpoint(
        tuple(map(parse_entry, entries)), parse_registered(content.get("RegisteredDevices"))
    )


def prove(raw: bytes) -> None:
    """Verify the checksum. For a node with 500 pods that takes 40 ms of Python.

    Raises:
        ValueError: The checksum is wrong. Wrong bytes cause the other errors of `WRONG`, too.
    """
    content, entries, wanted = _parts(raw)
    right = checksum(content, flat=_is_flat(entries))
    if wanted != right:
        raise ValueError(f"its checksum is {wanted}, its content makes {right}")


def _parts(raw: bytes) -> tuple[dict[str, Any], list[dict[str, Any]], Any]:
    """The content, its entries, and the checksum of the file."""
    document = _table(json.loads(raw), "the file")
    content = _table(document.get("Data"), "Data")
    entries = [_table(entry, "an entry") for entry in content.get("PodDeviceEntries") or ()]
    return content, entries, document.get("Checksum")


def _is_flat(entries: Iterable[Mapping[str, Any]]) -> bool:
    return any(isinstance(entry.get("DeviceIDs"), list) for entry in entries)


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return value


def parse_registered(value: Any) -> Mapping[str, tuple[str, ...]]:
    """The lists of RegisteredDevices; errors as in `parse`."""
    lists = _table(value or {}, "RegisteredDevices")
    return MappingProxyType({name: _strings(ids) for name, ids in lists.items()})


def parse_entry(value: Any) -> CheckpointEntry:
    """One of PodDeviceEntries; errors as in `parse`."""
    table = _table(value, "an entry")
    return CheckpointEntry(
        pod_uid=_string(table, "PodUID"),
        container=_string(table, "ContainerName"),
        resource=_string(table, "ResourceName"),
        ids=_ids(table.get("DeviceIDs")),
        edits=decode("AllocResp", edits, _answer(table.get("AllocResp")) or b""),
    )


def _string(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    value.encode()  # refuses half a surrogate pair, which could not be written again
    return value


def _strings(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of IDs holds something else")
    "".join(value).encode()
    return tuple(value)


def _ids(value: Any) -> tuple[str, ...]:
    """All IDs, each once; a device on two NUMA nodes is listed under both."""
    lists: Iterable[Any] = value.values() if isinstance(value, dict) else (value,)
    return tuple(dict.fromkeys(device_id for ids in lists for device_id in _strings(ids)))


def _answer(value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as exc:
        raise ValueError(f"AllocResp is no base64: {exc}") from exc


def checksum(content: Mapping[str, Any], *, flat: bool = False) -> int:
    """FNV-1a (32 bit) over the values as Go's spew prints them with `%#v` and sorted keys.

    The names of Go's types are part of the print. `flat` is the format up to 1.19, hashed under today's type
    names, as kubelets that read both formats do (checkpointv1.go).
    """
    return fnv1a(_render(content, flat).encode())


def fnv1a(data: bytes) -> int:
    number = 0x811C9DC5
    for byte in data:
        number = (number ^ byte) * 0x01000193 & 0xFFFF_FFFF
    return number


def _render(content: Mapping[str, Any], flat: bool) -> str:
    entries = content.get("PodDeviceEntries")
    return (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        + _listed(entries, lambda entry: _rendered_entry(entry, flat))
        + f" RegisteredDevices:(map[string][]string){_mapped(content.get('RegisteredDevices'), str)}}}"
    )


def _rendered_entry(entry: Mapping[str, Any], flat: bool) -> str:
    texts = (f"{key}:(string){_string(entry, key)}" for key in ("PodUID", "ContainerName", "ResourceName"))
    ids = entry.get("DeviceIDs")
    printed = f"([]string){_listed(ids, str)}" if flat else f"(checkpoint.DevicesPerNUMA){_mapped(ids, int)}"
    answer = _listed(_answer(entry.get("AllocResp")), str)
    return f"{{{' '.join(texts)} DeviceIDs:{printed} AllocResp:([]uint8){answer}}}"


def _listed(values: Iterable[Any] | None, word: Callable[[Any], str]) -> str:
    return "<nil>" if values is None else f"[{' '.join(map(word, values))}]"


def _mapped(lists: Mapping[str, Any] | None, order: Callable[[str], Any]) -> str:
    if lists is None:
        return "<nil>"
    pairs = (f"{name}:{_listed(lists[name], str)}" for name in sorted(lists, key=order))
    return f"map[{' '.join(pairs)}]"
