"""`python -m planted`: run the planted faults, or draw functions in which to plant more."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from .copies import Unsound
from .fault import ROOT, Fault, faults
from .rooms import drawn
from .run import Outcome, Verdict, run


def main() -> int:
    options = _parser().parse_args()
    if options.verb == "draw":
        for function in drawn(options.tree, options.seed, options.count):
            print(f"{function.file}  {function.name}  ({function.lines} lines)")
        return 0
    known = {fault.name: fault for fault in faults()}
    if strange := [name for name in options.names if name not in known]:
        near = get_close_matches(strange[0], known, 3, 0.5)
        remedy = f"; near: {', '.join(near)}" if near else ""
        print(f"{strange[0]!r} is not listed in tests/planted/faults{remedy}", file=sys.stderr)
        return 2
    return _run(options.tree, [known[name] for name in options.names] or [*known.values()], options.jobs)


def _run(tree: Path, chosen: Sequence[Fault], jobs: int) -> int:
    began = time.monotonic()
    try:
        outcomes = run(tree, chosen, jobs, lambda line: print(line, flush=True))
    except Unsound as exc:
        print(exc, file=sys.stderr)
        return 2
    print(f"\n{_summary(outcomes)}; {time.monotonic() - began:.0f} s")
    return 0 if all(outcome.verdict is Verdict.CAUGHT for outcome in outcomes) else 1


def _summary(outcomes: Sequence[Outcome]) -> str:
    lines = [str(outcome) for outcome in outcomes if outcome.verdict is not Verdict.CAUGHT]
    counts = (f"{sum(outcome.verdict is one for outcome in outcomes)} {one.lower()}" for one in Verdict)
    return "\n".join([*lines, f"{len(outcomes)} faults: {', '.join(counts)}"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    doing = verbs.add_parser("run", help="plant each fault, and see whether its tests catch it")
    doing.add_argument("names", nargs="*", metavar="NAME", help="faults; all where none is named")
    doing.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="faults at once")
    drawing = verbs.add_parser("draw", help="print functions to plant faults in")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, required=True)
    for verb in (doing, drawing):
        verb.add_argument("--tree", type=Path, default=ROOT, help="of which sources and tests are taken")
    return parser


if __name__ == "__main__":
    sys.exit(main())
