"""`top`: shows what each container uses of each card, again and again."""

from __future__ import annotations

import argparse

from agent.core.errors import UsageError

from .common_arguments import admin_socket, state_dir
from .parser import Verbs

#: The shortest and the longest time between two pictures, in seconds.
_INTERVALS = (0.5, 60.0)


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("top", help="what each container uses of each card, live")
    parser.add_argument("--once", action="store_true", help="one picture, as on a pipe")
    parser.add_argument("--json", action="store_true", help="the document of use as JSON, once")
    parser.add_argument(
        "--interval",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help=f"time between two pictures, from {_INTERVALS[0]:g} to {_INTERVALS[1]:g} (default: 2)",
    )
    parser.add_argument(
        "--sort",
        choices=["card", "memory", "utilization", "idle"],
        default="card",
        help="the order of containers (default: card)",
    )
    state_dir(parser)
    parser.set_defaults(verb=top, on_broken_pipe=0)


def top(args: argparse.Namespace) -> int:
    """`xpu-agent top`: a live table on a terminal, one table elsewhere; `--json` is for programs."""
    shortest, longest = _INTERVALS
    if not shortest <= args.interval <= longest:
        raise UsageError(f"--interval: {args.interval:g} is not between {shortest:g} and {longest:g} seconds")
    socket = admin_socket(args)
    if args.json:
        from agent.cli.top_picture import fetch_use

        print(fetch_use(socket).decode("utf-8", "replace"), end="")
        return 0
    from agent.cli.top_screen import show_once, watch

    if args.once or not watch(socket, args.sort, args.interval):
        show_once(socket, args.sort)
    return 0
