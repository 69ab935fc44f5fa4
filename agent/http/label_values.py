"""The values of labels of metrics, bounded and encodable."""

from __future__ import annotations

import zlib

#: Characters of a label's value, because Prometheus stores each value.
MAX_LABEL_LENGTH = 128


def label_value(text: str) -> str:
    """A label's value, bounded. A lone surrogate is escaped, because UTF-8 cannot encode it."""
    value = text.encode("utf-8", "backslashreplace").decode()
    if len(value) <= MAX_LABEL_LENGTH:
        return value
    # Two values with the same beginning must stay different.
    return f"{value[: MAX_LABEL_LENGTH - 9]}…{zlib.crc32(value.encode()):08x}"
