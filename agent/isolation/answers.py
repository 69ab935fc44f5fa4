"""What a vendor's process may answer: strict types, and names that the rest of the agent can rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from agent.core.text import shorten
from agent.core.vendor import Device, HealthEvent, Link, Partition, Usage

T = TypeVar("T")

UUID_LIMIT = 128  # characters; it becomes part of every device ID


class WrongAnswer(ValueError):
    """Raised when an answer has the wrong shape, or a value that nothing can work with."""


def decode(method: str, raw: bytes) -> Any:
    """The answer to a call as the contract's own values."""
    return _DECODERS[method](raw)


def devices(raw: bytes) -> tuple[Device, ...]:
    found = _typed(raw, tuple[Device, ...])
    for number, device in enumerate(found):
        _check_device(f"device {number} ({shorten(device.uuid)})", device)
    _check_distinct(found)
    return found


def events(raw: bytes) -> tuple[HealthEvent, ...]:
    return _typed(raw, tuple[HealthEvent, ...])


def links(raw: bytes) -> tuple[Link, ...]:
    found = _typed(raw, tuple[Link, ...])
    for link in found:
        _check_counts(f"link to {shorten(link.peer)}", {"lanes": link.lanes})
    return found


def usage(raw: bytes) -> tuple[Usage, ...]:
    found = _typed(raw, tuple[Usage, ...])
    for one in found:
        where = f"usage of {shorten(one.uuid)}"
        _check_counts(where, {"memory_used": one.memory_used})
        if one.utilization is not None and not 0 <= one.utilization <= 1:
            raise WrongAnswer(f"{where}: utilization: {one.utilization:g} is not between 0 and 1")
    return found


def partitions(raw: bytes) -> tuple[Partition, ...]:
    return _typed(raw, tuple[Partition, ...])


def _nothing(raw: bytes) -> None:
    return None


def uuid_trouble(uuid: str) -> str:
    """Why this can not be the uuid of a device; empty when it can."""
    if not uuid:
        return "is empty"
    if len(uuid) > UUID_LIMIT:
        return f"has {len(uuid)} characters, at most {UUID_LIMIT} work"
    if not (uuid.isascii() and uuid.isprintable()):
        return "has characters that are not printable ASCII"
    bad = next((part for part in (" ", ",", "::") if part in uuid), None)
    return f"contains {bad!r}, which parts device IDs" if bad else ""


def _check_device(where: str, device: Device) -> None:
    trouble = uuid_trouble(device.uuid)
    if trouble:
        raise WrongAnswer(f"{where}: uuid: {trouble}")
    if device.numa is not None and device.numa < 0:
        raise WrongAnswer(f"{where}: numa: {device.numa} is no NUMA node; None says that it is not known")
    _check_counts(where, {"index": device.index, "minor": device.minor, "memory": device.memory})


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


def _typed(raw: bytes, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise WrongAnswer(shorten(str(exc), 300)) from exc


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "discover": devices,
    "links": links,
    "prepare": partitions,
    "partitions": partitions,
    "release": _nothing,
    "usage": usage,
    "health_events": events,
    "close": _nothing,
    "open": lambda raw: _typed(raw, tuple[str, ...]),
}
