"""`plugins`: the vendors that are found."""

from __future__ import annotations

import argparse

from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("plugins", help="vendors found, from where, and why one was left out")
    parser.add_argument("--json", action="store_true", help="one JSON list")
    parser.set_defaults(verb=plugins, unheard=0)


def plugins(args: argparse.Namespace) -> int:
    """`xpu-agent plugins`: loads every vendor's plugin, and no vendor's library."""
    from agent.daemon import vendor_plugins as found

    rows = [
        {
            "name": it.name,
            "origin": it.origin,
            "version": it.version,
            "resource": it.vendor.resource if it.vendor else None,
            "reason": it.reason,
        }
        for it in found.load({}, None)
    ]
    if args.json:
        import json

        print(json.dumps(rows, indent=2))
        return 0
    from agent.host.terminal import show_table

    show_table("vendors", rows)
    return 0
