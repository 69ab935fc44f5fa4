"""Metrics as text, for pages with more series than the objects of Prometheus' client are quick enough for."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

#: Characters of a label's value, because Prometheus stores each value.
MAX_LABEL_LENGTH = 128
#: Nearly all values: they need neither an escape nor a bound.
_PLAIN = re.compile(rf"[a-zA-Z0-9 ._:/=,-]{{0,{MAX_LABEL_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with its series: labels as `labels` writes them, and the value.

    `help` is one line. A family without series is left out of the page.
    """

    name: str
    help: str
    series: Sequence[tuple[str, float]]
    type: Literal["gauge", "counter"] = "gauge"


def labels(names: tuple[str, ...], values: Iterable[str]) -> str:
    """Labels as a page writes them, without the braces."""
    return _template(names) % tuple(map(_escaped, values))


def bounded_value(text: str) -> str:
    """A label's value, bounded. A lone surrogate is escaped, because UTF-8 cannot encode it."""
    value = text.encode("utf-8", "backslashreplace").decode()
    if len(value) <= MAX_LABEL_LENGTH:
        return value
    # Two values with the same beginning must stay different.
    return f"{value[: MAX_LABEL_LENGTH - 9]}…{zlib.crc32(value.encode()):08x}"


@lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> str:
    return ",".join(f'{name}="%s"' for name in names)


def _escaped(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return bounded_value(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
