"""Lists of device IDs that the kubelet sends, decoded strictly and fast."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from .protobuf import BYTES, Malformed, chunks, read_field, text

#: Several times the IDs of the longest list; a request with more is not from a kubelet.
MAX_IDS = 1_000_000

_FIRST, _SECOND = 1 << 3 | BYTES, 2 << 3 | BYTES


class PreferredRequest(Struct, frozen=True):
    """One ContainerPreferredAllocationRequest."""

    available: tuple[str, ...]
    required: tuple[str, ...]
    size: int


def allocate_request(data: bytes) -> tuple[tuple[str, ...], ...]:
    """The requested IDs of each container of an AllocateRequest."""
    containers = tuple(tuple(_scan(container)[0]) for container in chunks(data, 1))
    _check_number(containers)
    return containers


def pre_start_request(data: bytes) -> tuple[str, ...]:
    """The IDs of a PreStartContainerRequest."""
    ids = tuple(_scan(data)[0])
    _check_number((ids,))
    return ids


def preferred_request(data: bytes) -> tuple[PreferredRequest, ...]:
    """The request of each container of a PreferredAllocationRequest."""
    requests = tuple(_read_request(container) for container in chunks(data, 1))
    _check_number([request.available + request.required for request in requests])
    return requests


def _read_request(data: bytes) -> PreferredRequest:
    available, required, size = _scan(data)
    return PreferredRequest(tuple(available), tuple(required), size)


def _check_number(lists: Sequence[Sequence[str]]) -> None:
    number = sum(map(len, lists))
    if number > MAX_IDS:
        raise Malformed(f"{number} device IDs, more than {MAX_IDS}")


def _scan(data: bytes) -> tuple[list[str], list[str], int]:
    """The strings of field 1, those of field 2, and the int32 of field 3: the form of all these messages.

    Short strings, as IDs are, take a fast path: 58,000 are read in some 20 ms.
    """
    first: list[str] = []
    second: list[str] = []
    number, at, end = 0, 0, len(data)
    while at < end:
        tag, size = data[at], data[at + 1] if at + 1 < end else 0x80
        stop = at + 2 + size
        if size < 0x80 and stop <= end and tag in (_FIRST, _SECOND):
            (first if tag == _FIRST else second).append(text(data[at + 2 : stop]))
            at = stop
            continue
        field, value, at = read_field(data, at)
        if isinstance(value, int):
            number = _int32(value) if field == 3 else number
        elif field in (1, 2) and tag & 7 == BYTES:  # any other type is an unknown field
            (first if field == 1 else second).append(text(value))
    return first, second, number


def _int32(number: int) -> int:
    return (number & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000
