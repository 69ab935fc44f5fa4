"""The version of the installed distribution, read once and only when needed."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    try:
        return metadata.version("xpu-agent")
    except metadata.PackageNotFoundError:
        return "0+unknown"
