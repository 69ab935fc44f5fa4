"""Processes that register with the simulated driver: each writes a small JSON file into one directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import ProcessUsage


def registered(directory: Path) -> Iterator[ProcessUsage]:
    """The processes that registered and still run, as a driver forgets those that have ended.

    A file holds one object: the fields of `ProcessUsage`. What is half written, or no such object, is left
    out until the next sample.
    """
    for path in sorted(directory.glob("*.json")):
        try:
            process = process_usage(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if Path(f"/proc/{process.pid}").exists():
            yield process


def process_usage(raw: dict[str, Any]) -> ProcessUsage:
    """The JSON value of one process. Raises KeyError, TypeError or AttributeError: it is no process."""
    return ProcessUsage(raw["uuid"], raw["pid"], raw.get("memory"), raw.get("utilization"))
