"""Reads files of other programs up to a bound, with memory for the content and not for the bound."""

from __future__ import annotations

from collections.abc import Callable

#: Bytes of one read where the size is not known, as of files below /proc, or where the file has grown.
STEP = 64 * 1024


def by_size(read: Callable[[int], bytes | None], size: int, most: int) -> bytes | None:
    """The bytes that `read` returns, up to `most`; None where there is nothing to read yet.

    `read` takes a number of bytes. `size` is the size as far as it is known: a read of `most` bytes at once
    would allocate all of them.
    """
    parts: list[bytes] = []
    left, ask = most, size + 1  # one byte more shows the end
    while left > 0:
        part = read(min(left, max(ask, STEP)))
        if part is None and not parts:
            return None
        if not part:
            break
        parts.append(part)
        left -= len(part)
        ask = STEP
    return b"".join(parts)
