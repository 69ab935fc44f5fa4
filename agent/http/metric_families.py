"""Metrics as text, for pages with more series than the objects of Prometheus' client are quick enough for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agent.http.label_values import MAX_LABEL_LENGTH, label_value

#: Nearly all values: they need neither an escape nor a bound.
_PLAIN = re.compile(rf"[a-zA-Z0-9 ._:/=,-]{{0,{MAX_LABEL_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with its series: labels as `labels` writes them, and the value."""

    name: str
    help: str
    series: Sequence[tuple[str, float]]
    type: Literal["gauge", "counter"] = "gauge"


def labels(names: tuple[str, ...], values: Iterable[str]) -> str:
    """Labels as a page writes them, without the braces."""
    return _template(names) % tuple(map(_escaped, values))


@lru_cache(maxsize=64)
def _template(names: tuple[str, ...]) -> str:
    return ",".join(f'{name}="%s"' for name in names)


def page(families: Iterable[MetricFamily]) -> bytes:
    """The families in Prometheus' text format 0.0.4; a family without series is left out."""
    lines: list[str] = []
    for family in families:
        if family.series:
            name = family.name
            lines += (f"# HELP {name} {family.help}\n", f"# TYPE {name} {family.type}\n")
            lines += [f"{name}{{{named}}} {value}\n" for named, value in family.series if named]
            lines += [f"{name} {value}\n" for named, value in family.series if not named]
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return label_value(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
