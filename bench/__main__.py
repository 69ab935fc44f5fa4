"""The command line of the bench."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peers.process import PeerDown, PeerError
from rich.console import Console
from support.scripted_libraries import NoCompiler

from . import report
from .measures import ALL, Measurement
from .pace import Pace
from .rows import Row
from .subjects import KUBELET_DIR, Contest, Refused, Rival

progress = Console(stderr=True, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show, keep. Exit 1 where the check fails or a measurement could not be made."""
    args = _parser().parse_args(argv)
    try:
        rival = Rival(args.rival, args.rival_args, args.rival_dir) if args.rival else None
        chosen = [it for it in ALL if it.name in (args.rows or (it.name,))]
        pace = Pace(quick=args.quick, says=lambda text: progress.print(f"  [dim]{text}[/]"))
        rows, failures = asyncio.run(_measure(Contest(rival=rival), pace, chosen))
    except (Refused, NoCompiler) as exc:
        progress.print(f"bench: {exc}", markup=False)
        return 1
    name = rival.name if rival else ""
    results = report.document(rows, quick=args.quick, rival=name)
    path = report.write(results, args.output or "latest.json")
    if args.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")
    else:
        report.show(Console(width=None if sys.stdout.isatty() else 220), rows, name)
    progress.print(f"kept in {path}", markup=False)
    missed = [row for row in rows if row.failed]
    if args.check:
        for row in missed:
            progress.print(f"[red]{row.name}[/]: {row.ours:g} {row.unit}, target {row.target:g}")
    return 1 if failures or (args.check and missed) else 0


async def _measure(contest: Contest, pace: Pace, chosen: Sequence[Measurement]) -> tuple[list[Row], int]:
    """Make the measurements one after the other; one that cannot be made stops no other."""
    rows: list[Row] = []
    failures = 0
    for number, it in enumerate(chosen, 1):
        load = " ".join(map(str, report.loads()))
        progress.print(f"{number}/{len(chosen)} {it.name}: {it.title} (load average {load})", markup=False)
        began = time.monotonic()
        try:
            made = await it.measure(contest, pace)
        except (Refused, TimeoutError, PeerDown, PeerError) as exc:
            failures += 1
            progress.print(f"  not measured: {exc}", style="red", markup=False)
            continue
        for row in made:
            progress.print(f"  {row.name}: {report.sentence(row)}  {report.verdict(row)}")
        progress.print(f"  [dim]{time.monotonic() - began:.0f} s[/]")
        rows += made
    return rows, failures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the agent at the wires of the real peers."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit 1 where a target is missed: one that counts without slack, or another by more than half",
    )
    parser.add_argument("--quick", action="store_true", help="repeat less; figures scatter more")
    names = [it.name for it in ALL]
    parser.add_argument(
        "--rows", nargs="+", choices=names, metavar="NAME", help=f"these alone: {', '.join(names)}"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--output", metavar="FILE", help="keep the results under this name")
    parser.add_argument(
        "--rival", type=Path, metavar="BINARY", help="measure this device plugin in the same run, too"
    )
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


if __name__ == "__main__":
    sys.exit(main())
