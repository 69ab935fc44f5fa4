"""`plugins`: the installed plugins of vendors and schedulers."""

from __future__ import annotations

import argparse
from typing import Any

from .common_arguments import REFUSED, tell
from .parser import Verbs


def add(verbs: Verbs) -> None:
    help = "vendors and schedulers, the packages that bring them, and why one is left out"
    parser = verbs.add_parser("plugins", help=help)
    parser.add_argument("--json", action="store_true", help="one JSON list")
    about = "the settings of this vendor: what fits, and the default"
    parser.add_argument("--settings", metavar="NAME", default="", help=about)
    parser.set_defaults(verb=plugins, on_broken_pipe=0)


def plugins(args: argparse.Namespace) -> int:
    """`xpu-agent plugins`: loads every plugin of a vendor or a scheduler, but no vendor's library."""
    if args.settings:
        return _show_settings(args.settings, as_json=args.json)
    vendors, schedulers = _vendors(), _schedulers()
    if args.json:
        import json

        rows = [*vendors, *({"kind": "scheduler", **it} for it in schedulers)]
        print(json.dumps(rows, indent=2))
        return 0
    from agent.daemon.vendor_plugins import flag_clashes
    from agent.host.terminal import show_table

    show_table("vendors", vendors)
    show_table("schedulers", [{**it, "dialects": ", ".join(it["dialects"])} for it in schedulers])
    for clash in flag_clashes():
        tell(clash)
    return 0


def _show_settings(name: str, *, as_json: bool) -> int:
    """Show the settings that the vendor describes, or say why there are none."""
    from agent.daemon import vendor_plugins

    plugin = next(it for it in vendor_plugins.load({name: {}}, {name}) if it.name == name)
    if plugin.vendor is None:
        tell(f"{name}: {plugin.reason}")
        return REFUSED
    settings = plugin.vendor.settings
    rows = [
        {"setting": key, "fits": fits, "default": settings.defaults.get(key)}
        for key, fits in settings.descriptions.items()
    ]
    if as_json:
        import json

        print(json.dumps(rows, indent=2))
    else:
        from agent.host.terminal import show_table

        show_table(f"settings of {name}", rows)
    return 0


def _vendors() -> list[dict[str, Any]]:
    from agent.daemon import vendor_plugins

    return [
        {
            "name": plugin.name,
            "origin": plugin.origin,
            "version": plugin.version,
            "resource": plugin.vendor.resource if plugin.vendor else None,
            "reason": plugin.reason,
        }
        for plugin in vendor_plugins.load({}, None)
    ]


def _schedulers() -> list[dict[str, Any]]:
    from agent.daemon import scheduler_plugins

    return [
        {
            "name": plugin.name,
            "origin": plugin.origin,
            "version": plugin.version,
            "dialects": [it.name for it in plugin.scheduler.dialects] if plugin.scheduler else [],
            "reason": plugin.reason,
        }
        for plugin in scheduler_plugins.load()
    ]
