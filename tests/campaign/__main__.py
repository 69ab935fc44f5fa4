"""`python -m campaign`: run a campaign of faults, print what holds, and write a report."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from scenarios.kubelets import Kind

from .faults import KINDS
from .fuzz import TARGETS, Unclear, fuzz
from .hardware import LAYOUTS
from .kubelets import kinds
from .orphans import adopt
from .report import markdown, stretches, write, write_stretches
from .run import CHAPTER, Plan, Struck, run
from .stretches import all_of


def main() -> int:
    known = kinds()
    options = _parser(known).parse_args()
    if options.list:
        print("\n".join(KINDS))
        return 0
    if wrong := _wrong(options, known):
        print(wrong, file=sys.stderr)
        return 2
    chosen = [known[name] for name in options.kubelet.split(",")]
    missing = [it.id for it in chosen if not it.is_built]
    if missing:
        print(
            f"not built: {', '.join(missing)}; run `make peers`, or name others with --kubelet",
            file=sys.stderr,
        )
        return 2
    try:
        tallies = [fuzz(it, options.fuzz, options.seed) for it in TARGETS if options.fuzz]
    except Unclear as exc:
        print(exc, file=sys.stderr)
        return 1
    adopt()
    command = f"python -m campaign {' '.join(sys.argv[1:])}"
    lived = _beside_koordinator(options, chosen[0], command) if options.koordinator else True
    if not (options.faults or options.fuzz):
        return 0 if lived else 1
    result = asyncio.run(run(_plan(options, chosen), _tell))
    print(f"\n{markdown(result, tallies, command)}")
    if options.report:
        write(result, tallies, command, Path(options.report))
    return 0 if lived and not result.violations else 1


def _beside_koordinator(options: argparse.Namespace, kubelet: Kind, command: str) -> bool:
    """Whether all held in the stretches beside Koordinator."""
    lived = asyncio.run(all_of(kubelet))
    print(f"\n{stretches(lived, command)}", flush=True)
    if options.report:
        write_stretches(lived, command, Path(options.report))
    return not any(it.violations for it in lived)


def _wrong(options: argparse.Namespace, known: Mapping[str, Kind]) -> str:
    """What of the options makes no sense; empty where all do."""
    strange = [it for it in options.kubelet.split(",") if it not in known]
    strange += [it for it in options.cards.split(",") if it not in LAYOUTS]
    if strange:
        return f"{strange[0]!r} is not known; there is {', '.join((*known, *LAYOUTS))}"
    if options.chapter < 1 or options.faults < 0 or options.fuzz < 0:
        return "--chapter begins at 1, --faults and --fuzz at 0"
    tried = options.faults or options.fuzz or options.koordinator
    return "" if tried else "neither faults nor hostile inputs: nothing would be tried"


def _plan(options: argparse.Namespace, chosen: list[Kind]) -> Plan:
    return Plan(
        options.seed,
        options.faults,
        chosen,
        options.cards.split(","),
        kinds=[KINDS[name] for name in options.only or KINDS],
        chapter=options.chapter,
        go_on=options.go_on,
    )


def _tell(struck: Struck) -> None:
    print(struck, flush=True)
    if struck.violations:
        print(struck.evidence, flush=True)


def _parser(known: Mapping[str, Kind]) -> argparse.ArgumentParser:
    built = ",".join(name for name, kind in known.items() if kind.is_built)
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument(
        "--kubelet", default=built, help=f"some of {', '.join(known)}, with commas; all that are built"
    )
    parser.add_argument(
        "--cards", default=",".join(LAYOUTS), help=f"some of {', '.join(LAYOUTS)}; all of them"
    )
    parser.add_argument(
        "--chapter", type=int, default=CHAPTER, help="faults on one node before the next begins"
    )
    parser.add_argument("--only", action="append", choices=KINDS, metavar="KIND", help="may be given again")
    parser.add_argument("--fuzz", type=int, default=0, help="hostile inputs of each kind, before the faults")
    parser.add_argument(
        "--koordinator", action="store_true", help="before the faults, ten minutes beside a koordlet"
    )
    parser.add_argument("--go-on", action="store_true", help="go on with a new node after a violation")
    parser.add_argument("--report", help="write REPORT.json, and into REPORT.md")
    parser.add_argument("--list", action="store_true", help="name the kinds of faults")
    return parser


if __name__ == "__main__":
    sys.exit(main())
