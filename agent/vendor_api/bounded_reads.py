"""What others made, read up to a bound: memory goes by what is there, never by the bound."""

from __future__ import annotations

from collections.abc import Callable

#: Bytes asked for at once of what does not say its size, as files below /proc, or has grown since.
STEP = 64 * 1024


def by_size(read: Callable[[int], bytes | None], size: int, most: int) -> bytes | None:
    """What `read` gives, up to `most` bytes; None where there is nothing to read by now.

    `size` is what is there as far as is known. To ask for `most` at once would make room for all of it.
    """
    parts: list[bytes] = []
    left, ask = most, size + 1  # one more shows that there is no more
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
