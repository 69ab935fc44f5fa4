"""Checks what a vendor's process answers: strict types, and texts that the agent can use safely."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from agent.vendor_api.agent import Device, Fault, HealthEvent, Link, Partition
from agent.vendor_api.text import printable, shorten

T = TypeVar("T")

UUID_LIMIT = 128  # characters; it becomes part of every device ID
#: More than any node has; a longer list is a mistake, and would hold up the agent.
DEVICES, LINKS, EVENTS, SLICES = 1024, 256, 1024, 8192
#: Events for all devices in one message; each counts as an event of every device.
BROADCASTS = 16
#: Characters of texts for logs, metrics, the checkpoint and the kubelet; longer ones are cut.
REASON_LIMIT, MESSAGE_LIMIT, MODEL_LIMIT = 64, 512, 128
#: Characters or entries above which an answer is refused, because a part of such a value would be wrong.
NAME_LIMIT, PATHS, ATTRIBUTES = 256, 64, 64
#: Counters of a device, and the characters of a counter's name; they are logged with a fault.
COUNTERS, COUNTER_LIMIT = 16, 64
#: CDI specs of one vendor: their number, the form of their names, and their characters in all.
SPECS, SPEC_NAME, SPEC_SIZE = 16, re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json"), 4 << 20


class WrongAnswer(ValueError):
    """Raised when an answer has the wrong type, or a value that cannot be used."""


class OpenedBackend(msgspec.Struct, frozen=True):
    """What a process says of its backend once the library is open."""

    #: The optional methods that the vendor implements.
    methods: frozenset[str]
    #: Whether the library takes the calls of one thread alone.
    one_caller: bool = False


def decode(method: str, raw: bytes) -> Any:
    """Decode the answer to a call into values of the contract (`vendor_api.backend`)."""
    return _DECODERS[method](raw)


def devices(raw: bytes) -> tuple[Device, ...]:
    found = _several(raw, Device, DEVICES, "devices")
    for number, device in enumerate(found):
        _check_device(f"device {number} ({shorten(device.uuid)})", device)
    _check_distinct(found)
    return tuple(replace(it, model=clean(it.model, MODEL_LIMIT), fault=_bounded(it.fault)) for it in found)


def events(raw: bytes) -> tuple[HealthEvent, ...]:
    found = _several(raw, HealthEvent, EVENTS, "events")
    for event in found:
        if event.uuid is not None:
            _check_uuid("event", event.uuid)
    if sum(event.uuid is None for event in found) > BROADCASTS:
        raise WrongAnswer(f"more than {BROADCASTS} events for all devices at once")
    return tuple(replace(event, fault=_bounded(event.fault)) for event in found)


def links(raw: bytes) -> tuple[Link, ...]:
    found = _several(raw, Link, LINKS, "links")
    _check_links("", found)
    return found


def partitions(raw: bytes) -> tuple[Partition, ...]:
    found = _several(raw, Partition, SLICES, "partitions")
    for partition in found:
        where = f"partition {shorten(partition.id)}"
        texts = {"id": partition.id, "uuid": partition.uuid, "allocation": partition.allocation or ""}
        for name, text in texts.items():
            _check_length(f"{where}: {name}", text)
    return found


def cdi(raw: bytes) -> Mapping[str, str]:
    specs = decoded(raw, dict[str, str])
    _check_amount("CDI specs", specs, SPECS)
    for name, text in specs.items():
        if not SPEC_NAME.fullmatch(name):
            raise WrongAnswer(
                f"the CDI spec {shorten(name)!r}: a name such as vendor.com-class.json is needed"
            )
        try:
            msgspec.json.decode(text or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise WrongAnswer(f"the CDI spec {name}: no JSON object: {shorten(str(exc))}") from exc
    if sum(map(len, specs.values())) > SPEC_SIZE:
        raise WrongAnswer(f"CDI specs of more than {SPEC_SIZE} characters")
    return specs


def _nothing(raw: bytes) -> None:
    return None


def clean(text: str, limit: int) -> str:
    """Free text of a library: printable, and at most `limit` characters."""
    shown = printable(text[:limit])
    return shown if len(shown) <= limit and len(text) <= limit else f"{shown[: limit - 1]}…"


def _bounded(fault: Fault | None) -> Fault | None:
    if fault is None:
        return None
    return replace(
        fault,
        reason=clean(fault.reason, REASON_LIMIT),
        message=clean(fault.message, MESSAGE_LIMIT),
        cleared_by=tuple(dict.fromkeys(fault.cleared_by)),
    )


def uuid_trouble(uuid: str) -> str:
    """Why the text cannot be the UUID of a device; empty if it can."""
    if not uuid:
        return "is empty"
    if len(uuid) > UUID_LIMIT:
        return f"has {len(uuid)} characters, at most {UUID_LIMIT} work"
    if not (uuid.isascii() and uuid.isprintable()):
        return "has characters that are not printable ASCII"
    bad = next((part for part in (" ", ",", "::") if part in uuid), None)
    return f"contains {bad!r}, which parts device IDs" if bad else ""


def _check_uuid(where: str, uuid: str) -> None:
    trouble = uuid_trouble(uuid)
    if trouble:
        raise WrongAnswer(f"{where}: uuid: {trouble}")


def _check_device(where: str, device: Device) -> None:
    _check_uuid(where, device.uuid)
    if device.numa is not None and device.numa < 0:
        raise WrongAnswer(f"{where}: numa: {device.numa} is no NUMA node; None says that it is not known")
    counts = {"index": device.index, "minor": device.minor, "slice": device.slice, "memory": device.memory}
    _check_counts(where, counts)
    _check_parent(where, device)
    _check_amount(f"{where}: paths", device.paths, PATHS)
    _check_amount(f"{where}: attributes", device.attributes, ATTRIBUTES)
    _check_amount(f"{where}: links", device.links, LINKS)
    _check_length(f"{where}: pci", device.pci or "")
    for path in device.paths:
        _check_length(f"{where}: path {shorten(path)}", path)
    for key, value in device.attributes.items():
        _check_length(f"{where}: attribute {shorten(key)}", max(key, value, key=len))
    _check_links(f"{where}: ", device.links)
    _check_amount(f"{where}: counters", device.counters, COUNTERS)
    for name in device.counters:
        _check_length(f"{where}: counter {shorten(name)}", name, COUNTER_LIMIT)
    _check_counts(f"{where}: counters", device.counters)


def _check_parent(where: str, device: Device) -> None:
    if (device.parent is None) != (device.slice is None):
        raise WrongAnswer(f"{where}: parent and slice go together: {device.parent!r}, {device.slice!r}")
    if device.parent is not None:
        _check_uuid(f"{where}: parent", device.parent)
        if device.parent == device.uuid:
            raise WrongAnswer(f"{where}: parent: it cannot be its own slice")


def _check_links(where: str, found: Sequence[Link]) -> None:
    for link in found:
        _check_uuid(f"{where}link", link.peer)
        _check_counts(f"{where}link to {shorten(link.peer)}", {"lanes": link.lanes})


def _check_amount(where: str, found: Sized, limit: int) -> None:
    if len(found) > limit:
        raise WrongAnswer(f"{where}: there are {len(found)}, at most {limit} work")


def _check_length(where: str, text: str, limit: int = NAME_LIMIT) -> None:
    if len(text) > limit:
        raise WrongAnswer(f"{where}: has {len(text)} characters, at most {limit} work")


def _check_counts(where: str, values: Mapping[str, int | None]) -> None:
    for name, value in values.items():
        if value is not None and not 0 <= value < 1 << 63:
            raise WrongAnswer(f"{where}: {name}: {shorten(str(value))} is not between 0 and 2^63")


def _check_distinct(found: Sequence[Device]) -> None:
    first: dict[str, int] = {}
    for number, device in enumerate(found):
        other = first.setdefault(device.uuid, number)
        if other != number:
            raise WrongAnswer(f"device {number} ({device.uuid}): uuid: device {other} has the same one")


def _several(raw: bytes, kind: type[T], limit: int, what: str) -> tuple[T, ...]:
    """Decode a list of bounded length; the entries are counted before any of them is decoded."""
    count = len(decoded(raw, list[msgspec.Raw]))
    if count > limit:
        raise WrongAnswer(f"there are {count} {what}, at most {limit} work")
    return decoded(raw, tuple[kind, ...])  # type: ignore[valid-type]


def decoded(raw: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise WrongAnswer(shorten(str(exc), 300)) from exc


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "discover": devices,
    "links": links,
    "prepare": partitions,
    "partitions": partitions,
    "release": _nothing,
    "sample": bytes,  # `sample_answers` decodes these, which only an agent that samples loads
    "start_sampling": _nothing,
    "cdi": cdi,
    "health_events": events,
    "close": _nothing,
    "open": lambda raw: decoded(raw, OpenedBackend),
}
