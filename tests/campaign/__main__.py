"""`python -m campaign`: run a campaign of faults, print what holds, and write a report."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from .faults import KINDS
from .hardware import LAYOUTS
from .kubelets import kinds
from .report import markdown, text
from .run import CHAPTER, Plan, Struck, run


def main() -> int:
    known = kinds()
    options = _parser(list(known)).parse_args()
    if options.list:
        print("\n".join(KINDS))
        return 0
    chosen = [known[name] for name in options.kubelet.split(",")]
    missing = [it.id for it in chosen if not it.is_built]
    if missing:
        print(
            f"not built: {', '.join(missing)}; run `make peers`, or name others with --kubelet",
            file=sys.stderr,
        )
        return 2
    plan = Plan(
        options.seed,
        options.faults,
        chosen,
        options.cards.split(","),
        only=options.only or (),
        chapter=options.chapter,
        go_on=options.go_on,
    )
    result = asyncio.run(run(plan, _tell))
    command = f"python -m campaign {' '.join(sys.argv[1:])}"
    page = markdown(result, command)
    print(f"\n{page}")
    if options.report:
        Path(f"{options.report}.md").write_text(f"{page}\n")
        Path(f"{options.report}.json").write_text(f"{text(result, command)}\n")
    return 1 if result.violations else 0


def _tell(struck: Struck) -> None:
    print(struck, flush=True)
    if struck.violations:
        print(struck.evidence, flush=True)


def _parser(known: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument(
        "--kubelet", default="sim-1.36", help=f"one or more of {', '.join(known)}, with commas"
    )
    parser.add_argument("--cards", default="sliced", help=f"one or more of {', '.join(LAYOUTS)}, with commas")
    parser.add_argument(
        "--chapter", type=int, default=CHAPTER, help="faults on one node before the next begins"
    )
    parser.add_argument("--only", action="append", help="this kind of fault alone; may be given again")
    parser.add_argument("--go-on", action="store_true", help="go on with a new node after a violation")
    parser.add_argument("--report", help="write REPORT.md and REPORT.json")
    parser.add_argument("--list", action="store_true", help="name the kinds of faults")
    return parser


if __name__ == "__main__":
    sys.exit(main())
