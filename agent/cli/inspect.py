"""`inspect`: shows what the running agent knows."""

from __future__ import annotations

import argparse

from .common_arguments import admin_socket, state_dir
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("inspect", help="what the running agent knows")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="the document as JSON")
    output.add_argument("--format", metavar="NAME", help="in the format of a vendor's own tool, as JSON")
    state_dir(parser)
    parser.set_defaults(verb=inspect, on_broken_pipe=0)


def inspect(args: argparse.Namespace) -> int:
    """`xpu-agent inspect`: tables and a tree for people; `xpu-agent inspect --json` is for programs."""
    from agent.cli.inspect_tables import show
    from agent.cli.tool_format_request import in_format
    from agent.http.admin_client import fetch, fetch_document

    if args.format is not None:
        print(in_format(admin_socket(args), args.format), end="")
        return 0
    if args.json:
        print(fetch(admin_socket(args)).decode("utf-8", "replace"))
    else:
        show(fetch_document(admin_socket(args)))
    return 0
