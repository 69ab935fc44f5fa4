"""Protocol buffers as bytes: the parts of the hand-written codecs for frequent messages.

Decoding is stricter than betterproto2: a message that ends early and text that is no UTF-8 are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import anyio.to_thread

from .kubelet_errors import Undecodable

T = TypeVar("T")

_SHORT = [bytes([number]) for number in range(0x80)]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Messages of this many bytes and more are decoded in a thread: half a millisecond of work.
LARGE_BYTES = 64 * 1024


class Malformed(ValueError):
    """Raised by a decoder; `decode` turns it into Undecodable with the name of the message."""


def varint(number: int) -> bytes:
    """Encode an integer; a negative one takes ten bytes, as for every int32 and int64."""
    if 0 <= number <= 0x7F:  # nearly all numbers
        return _SHORT[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(field: int, payload: bytes) -> bytes:
    """A field of type bytes: a string, message or map entry."""
    return varint(field << 3 | BYTES) + varint(len(payload)) + payload


def delimited_size(size: int) -> int:
    """The length of `delimited` for a payload of `size` bytes, for field numbers below 16."""
    return 1 + len(varint(size)) + size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at position `at`, and the position after it."""
    number = shift = 0
    while shift < 70:
        if at >= len(data):
            raise Malformed("ends inside a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise Malformed("a number of more than ten bytes")


def read_field(data: bytes, at: int) -> tuple[int, int | bytes, int]:
    """The field at position `at`: its number, its value (an int or bytes), and the position after it."""
    tag, at = read_varint(data, at)
    if not 0 < tag >> 3 < 1 << 29:
        raise Malformed(f"field number {tag >> 3}")
    value, at = _value(data, at, tag & 7)
    return tag >> 3, value, at


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """All fields, each with number and value, in order."""
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if 8 <= tag < 0x80 and tag & 7 == BYTES and at + 2 < end:
            # Nearly all fields: of type bytes, with a length of one or two bytes. Read without a call.
            size, start = data[at + 1], at + 2
            if size >= 0x80:
                size, start = size & 0x7F | data[start] << 7, at + 3
            if data[start - 1] < 0x80 and size <= end - start:
                at = start + size
                yield tag >> 3, data[start:at]
                continue
        number, value, at = read_field(data, at)
        yield number, value


def _value(data: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == VARINT:
        return read_varint(data, at)
    start, end = _span(data, at, kind)
    return data[start:end], end


def _span(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Start and end of a value that is no number."""
    if kind == BYTES:
        size, at = read_varint(data, at)
    elif kind in (FIXED32, FIXED64):
        size = 4 if kind == FIXED32 else 8
    else:
        raise Malformed(f"wire type {kind}")
    if size > len(data) - at:
        raise Malformed(f"ends early: {size} bytes announced, {len(data) - at} left")
    return at, at + size


def chunks(data: bytes, field: int) -> Iterator[bytes]:
    """The values of one field of type bytes, in order; other fields are skipped."""
    for number, value in fields(data):
        if number == field and isinstance(value, bytes):
            yield value


def text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise Malformed(f"text that is no UTF-8: {exc.reason}") from exc


def decode(what: str, decoder: Callable[[bytes], T], data: bytes) -> T:
    """Decode a message at once.

    Raises:
        Undecodable: The bytes are no message of this kind.
    """
    try:
        return decoder(data)
    except Malformed as exc:
        raise Undecodable(what, str(exc)) from exc


async def decoded(what: str, decoder: Callable[[bytes], T], data: bytes, large: int = LARGE_BYTES) -> T:
    """Decode a message; one of `large` bytes or more in a thread, so that the event loop stays free."""
    if len(data) < large:
        return decode(what, decoder, data)
    return await anyio.to_thread.run_sync(decode, what, decoder, data, abandon_on_cancel=True)
