"""`inspect`: what the running agent knows."""

from __future__ import annotations

import argparse

from .arguments import admin_socket, state_dir
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("inspect", help="what the running agent knows")
    parser.add_argument("--json", action="store_true", help="the document as JSON")
    state_dir(parser)
    parser.set_defaults(verb=inspect, unheard=0)


def inspect(args: argparse.Namespace) -> int:
    """`xpu-agent inspect`: tables and a tree for people, JSON for programs."""
    import msgspec

    from agent.admin import fetch
    from agent.inspect import show

    body = fetch(admin_socket(args))
    if args.json:
        print(body.decode())
    else:
        show(msgspec.json.decode(body))
    return 0
