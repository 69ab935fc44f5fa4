"""The units of other exporters: whole percent, MiB, MHz, millijoules. None stays None."""

from __future__ import annotations


def percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(ratio * 100)


def mib(count: int | None) -> int | None:
    """Bytes in whole MiB."""
    return None if count is None else count >> 20


def mhz(hertz: float | None) -> int | None:
    return None if hertz is None else round(hertz / 1_000_000)


def millijoules(joules: float | None) -> int | None:
    return None if joules is None else round(joules * 1000)
