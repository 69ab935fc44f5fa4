"""Lists of device IDs that the kubelet sends, decoded strictly and fast."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder

from .protobuf import BYTES, Malformed, chunks, read_field, text

#: Several times the IDs of the longest list; a request with more is not from a kubelet.
MAX_IDS = 1_000_000
#: Requests of this many bytes and more are decoded in a thread: some 5,000 IDs, half a millisecond of work.
LARGE_REQUEST = 256 * 1024

_FIRST, _SECOND = 1 << 3 | BYTES, 2 << 3 | BYTES
#: From this many bytes on, a message is decoded faster as MessagePack.
_LONG = 256
_STRINGS = Decoder(list[str])


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
    _check_number(ids for request in requests for ids in (request.available, request.required))
    return requests


def _read_request(data: bytes) -> PreferredRequest:
    available, required, size = _scan(data)
    return PreferredRequest(tuple(available), tuple(required), size)


def _check_number(lists: Iterable[Sized]) -> None:
    number = sum(map(len, lists))
    if number > MAX_IDS:
        raise Malformed(f"{number} device IDs, more than {MAX_IDS}")


def _scan(data: bytes) -> tuple[list[str], list[str], int]:
    """The strings of field 1, those of field 2, and the int32 of field 3: the form of all these messages."""
    first, at = _first_strings(data) if len(data) >= _LONG else ([], 0)
    second: list[str] = []
    number, end = 0, len(data)
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


def _first_strings(data: bytes) -> tuple[list[str], int]:
    r"""The strings of field 1 with which the message begins, and where they end: all of field 1, or none.

    In a fifth of the time of a loop, msgspec decodes them as MessagePack. The tag of field 1 is "\n", and a
    length follows. A str 8 of MessagePack is 0xd9 and a length, and a string of ten bytes can be a fixstr:
    0xaa for "\n\n". Only ASCII is decoded in this way, so that no other byte can be taken for these two. Each
    of them has to begin a string, or the number of strings is wrong: a "\n" inside of an ID is not accepted.
    """
    last = data.rfind(b"\n", 0, len(data) - 1)  # the last byte can be the number of field 3
    last -= data[last - 1 : last] == b"\n"  # a string of ten bytes
    end = last + 2 + data[last + 1]
    if last < 0 or not data[:end].isascii():
        return [], 0
    packed = data[:end].replace(b"\n", b"\xd9")
    number = packed.count(b"\xd9")
    strings = _unpack(packed, number)
    if strings is None:
        shorter = packed.replace(b"\xd9\xd9", b"\xaa")
        strings = _unpack(shorter, number - (len(packed) - len(shorter)))
    return ([], 0) if strings is None else (strings, end)


def _unpack(packed: bytes, number: int) -> list[str] | None:
    """The strings of a MessagePack array without its head; None where there are not `number` strings."""
    try:
        return _STRINGS.decode(b"\xdd" + number.to_bytes(4, "big") + packed)
    except (MsgspecError, UnicodeDecodeError):
        return None


def _int32(number: int) -> int:
    return (number & 0xFFFF_FFFF ^ 0x8000_0000) - 0x8000_0000
