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
#: The run whose figures docs/benchmarks.md shows.
REFERENCE = RESULTS / "reference-run.json"
NOT_GIVEN = "not given"


def document(rows: Sequence[Row], *, quick: bool, rival: str = "") -> dict[str, Any]:
    """The results with what they depend on; no name of the machine."""
    return {
        "subject": "xpu-agent",
        "rival": rival or NOT_GIVEN,
        "date": datetime.now(UTC).date().isoformat(),
        "quick": quick,
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
        **machine(),
        "load": loads()[1],
        "rows": [row.as_json() for row in rows],
    }


def machine() -> dict[str, Any]:
    """The processor and how many cores of it there are."""
    return {"cpu": cpu_model(), "cores": os.cpu_count()}


def is_machine_of_the_table() -> bool:
    """Whether this is such a machine as that of the published table."""
    try:
        published = json.loads(REFERENCE.read_text())
    except (OSError, ValueError):
        return False
    return all(published.get(key) == value for key, value in machine().items())


def loads() -> tuple[float, float, float]:
    """The load average of 1, 5 and 15 minutes."""
    one, five, fifteen = os.getloadavg()
    return round(one, 1), round(five, 1), round(fifteen, 1)


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


def show(console: Console, rows: Sequence[Row], rival: str = "") -> None:
    """One line per row: figures, target, verdict, spread, reference."""
    table = Table(title=f"xpu-agent, median of runs; load average {' '.join(map(str, loads()))}")
    table.add_column("measure")
    table.add_column("ours", justify="right")
    table.add_column("spike", justify="right")
    table.add_column(rival or "NVIDIA", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    table.add_column("runs", justify="right")
    table.add_column("reference", style="dim")
    table.add_column("note", style="dim")
    for row in rows:
        table.add_row(
            f"{row.name}, {row.unit}",
            number(row.ours),
            optional(row.spike, "-"),
            optional(row.rival, "-" if rival else NOT_GIVEN),
            target(row),
            verdict(row),
            f"{len(row.runs)}: {number(min(row.runs))}-{number(max(row.runs))}",
            row.reference,
            row.note,
        )
    console.print(table)


def sentence(row: Row) -> str:
    """The figures of a row in one line."""
    others = (("spike", row.spike), ("rival", row.rival))
    known = [f"{name} {number(value)}" for name, value in others if value is not None]
    figures = ", ".join([f"{number(row.ours)} {row.unit}", *known])
    return figures if row.target is None else f"{figures}, target {target(row)}"


def target(row: Row) -> str:
    """The target, with what sets it."""
    if row.target is None:
        return "-"
    return f"<= {number(row.target)}" + (f" ({row.bound})" if row.bound else "")


def verdict(row: Row) -> str:
    """Pass or miss, in the colours of a traffic light; yellow is a miss that the check lets pass."""
    if row.met is None:
        return ""
    if row.met:
        return "[green]pass[/]"
    return "[red]miss[/]" if row.failed else "[yellow]miss[/]"


def optional(value: float | None, otherwise: str) -> str:
    """The number, or what stands for none."""
    return otherwise if value is None else number(value)


def number(value: float) -> str:
    """Three digits that say something."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
