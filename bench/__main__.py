"""The command line of the bench."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from support.scripted_libraries import NoCompiler

from . import report
from .measures import ALL, Measurement
from .rows import Row
from .subjects import KUBELET_DIR, Ours, Refused, Rival, Subject

progress = Console(stderr=True, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show, keep. Exit 1 where the check fails or a measurement could not be made."""
    args = _parser().parse_args(argv)
    try:
        subject: Subject = Rival(args.rival, args.rival_args, args.rival_dir) if args.rival else Ours()
        chosen = [it for it in ALL if it.name in (args.only or (it.name,))]
        rows, failures = asyncio.run(_measure(subject, chosen))
    except (Refused, NoCompiler) as exc:
        progress.print(f"bench: {exc}", markup=False)
        return 1
    results = report.document(subject.name, rows)
    path = report.write(results, args.output or ("latest-rival.json" if args.rival else "latest.json"))
    if args.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
    else:
        width = None if sys.stdout.isatty() else 200
        report.show(Console(width=width), subject.name, rows)
    progress.print(f"kept in {path}", markup=False)
    missed = [row for row in rows if row.failed]
    if args.check:
        for row in missed:
            progress.print(f"[red]{row.name}[/]: {row.ours:g} {row.unit}, target {row.target:g}")
    return 1 if failures or (args.check and missed) else 0


async def _measure(subject: Subject, chosen: Sequence[Measurement]) -> tuple[list[Row], int]:
    """Make the measurements one after the other; one that cannot be made stops no other."""
    rows: list[Row] = []
    failures = 0
    for it in chosen:
        if subject.is_rival and not it.any_plugin:
            continue
        progress.print(f"{it.name}: {it.title}", markup=False)
        began = time.monotonic()
        try:
            made = await it.measure(subject)
        except (Refused, TimeoutError) as exc:
            failures += 1
            progress.print(f"  not measured: {exc}", style="red", markup=False)
            continue
        for row in made:
            progress.print(f"  {row.name}: {report.number(row.ours)} {row.unit}  {report.verdict(row)}")
        progress.print(f"  [dim]{time.monotonic() - began:.0f} s[/]")
        rows += made
    return rows, failures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the agent at the wires of the real peers."
    )
    parser.add_argument(
        "--check", action="store_true", help="exit 1 where a target is missed by more than half"
    )
    parser.add_argument(
        "--only", action="append", choices=[it.name for it in ALL], metavar="NAME", help=_names()
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--output", metavar="FILE", help="keep the results under this name")
    parser.add_argument("--rival", type=Path, metavar="BINARY", help="measure this device plugin instead")
    parser.add_argument(
        "--rival-dir",
        type=Path,
        default=KUBELET_DIR,
        metavar="D",
        help=f"where it looks for a kubelet ({KUBELET_DIR})",
    )
    parser.add_argument(
        "--rival-args", nargs=argparse.REMAINDER, default=[], metavar="...", help="its arguments; comes last"
    )
    return parser


def _names() -> str:
    return f"one measurement, may be repeated: {', '.join(it.name for it in ALL)}"


if __name__ == "__main__":
    sys.exit(main())
