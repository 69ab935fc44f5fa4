"""`plugins`: the vendors and schedulers that are found."""

from __future__ import annotations

import argparse
from typing import Any

from .parser import Verbs


def add(verbs: Verbs) -> None:
    words = "vendors and schedulers found, from where, and why one was left out"
    parser = verbs.add_parser("plugins", help=words)
    parser.add_argument("--json", action="store_true", help="one JSON list")
    parser.set_defaults(verb=plugins, unheard=0)


def plugins(args: argparse.Namespace) -> int:
    """`xpu-agent plugins`: loads every plugin of a vendor or a scheduler, and no vendor's library."""
    vendors, schedulers = _vendors(), _schedulers()
    if args.json:
        import json

        rows = [*vendors, *({"kind": "scheduler", **it} for it in schedulers)]
        print(json.dumps(rows, indent=2))
        return 0
    from agent.host.terminal import show_table

    show_table("vendors", vendors)
    show_table("schedulers", [{**it, "dialects": ", ".join(it["dialects"])} for it in schedulers])
    return 0


def _vendors() -> list[dict[str, Any]]:
    from agent.daemon import vendor_plugins

    return [
        {
            "name": it.name,
            "origin": it.origin,
            "version": it.version,
            "resource": it.vendor.resource if it.vendor else None,
            "reason": it.reason,
        }
        for it in vendor_plugins.load({}, None)
    ]


def _schedulers() -> list[dict[str, Any]]:
    from agent.daemon import scheduler_plugins

    return [
        {
            "name": it.name,
            "origin": it.origin,
            "version": it.version,
            "dialects": [one.name for one in it.scheduler.dialects] if it.scheduler else [],
            "reason": it.reason,
        }
        for it in scheduler_plugins.load()
    ]
