"""Shows the rows to people and writes them down for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .rows import Row

RESULTS = Path(__file__).parent / "results"


def document(subject: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The results with what they depend on; no name of the machine."""
    return {
        "subject": subject,
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "rows": [row.as_json() for row in rows],
    }


def cpu_model() -> str:
    """What the kernel calls the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def write(results: dict[str, Any], name: str) -> Path:
    """Keep the results."""
    path = RESULTS / name
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


def show(console: Console, subject: str, rows: Sequence[Row]) -> None:
    """One line per row: figure, spread, target, verdict, reference."""
    table = Table(title=f"{subject}, median of runs")
    table.add_column("measure")
    table.add_column("figure", justify="right")
    table.add_column("runs", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    table.add_column("reference", style="dim")
    table.add_column("note", style="dim")
    for row in rows:
        table.add_row(
            f"{row.name}, {row.unit}",
            number(row.ours),
            f"{len(row.runs)}: {number(min(row.runs))}-{number(max(row.runs))}",
            "-" if row.target is None else f"<= {number(row.target)}",
            verdict(row),
            row.reference,
            row.note,
        )
    console.print(table)


def verdict(row: Row) -> str:
    """Pass or miss, in the colours of a traffic light; yellow is a miss that the check lets pass."""
    if row.met is None:
        return ""
    if row.met:
        return "[green]pass[/]"
    return "[red]miss[/]" if row.failed else "[yellow]miss[/]"


def number(value: float) -> str:
    """Three digits that say something."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
