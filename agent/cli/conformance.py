"""`conformance`: a vendor's backend against the contract."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

from agent.vendor_api.agent import Vendor

from .common_arguments import REFUSED, node_name_of
from .parser import Verbs

#: Result of a check to its word in the last line of the output.
_COUNTED = {False: "failed", True: "ok", None: "not made"}


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("conformance", help="hold a vendor's backend against the vendor contract")
    parser.add_argument("vendor", metavar="VENDOR", help="a name that `xpu-agent plugins` lists")
    parser.add_argument("--config", type=Path, metavar="F", help="config file with the vendor's settings")
    parser.set_defaults(verb=conformance, node_name=None)


def conformance(args: argparse.Namespace) -> int:
    """`xpu-agent conformance VENDOR`: exit 1 where a check fails."""
    import asyncio

    from agent.config import configured, seen_labels
    from agent.core.errors import UsageError, VendorError
    from agent.daemon.vendor_config import check_config, wanted_plugins
    from agent.daemon.vendor_plugins import config_inputs, names

    arguments, node_name = {"config": args.config}, node_name_of(args)
    inputs = config_inputs()
    config = check_config(configured(arguments, os.environ, node_name, labels=seen_labels({}), inputs=inputs))
    plugins = {it.name: it for it in wanted_plugins(config)}
    plugin = plugins.get(args.vendor)
    if plugin is None and args.vendor in names():
        why = "is off or offers nothing with these settings; name a file with others by --config"
        raise UsageError(f"{args.vendor} {why}")
    if plugin is None:
        raise UsageError(f"no vendor {args.vendor!r} here; there are: {', '.join(sorted(set(names())))}")
    if plugin.vendor is None:
        raise VendorError(f"{args.vendor} is left out: {plugin.reason}")
    return asyncio.run(_conform(plugin.vendor))


async def _conform(vendor: Vendor) -> int:
    from agent.testing.conformance import check_vendor

    words = {True: "ok", False: "FAILED", None: "not made"}
    counts: Counter[bool | None] = Counter()
    async for finding in check_vendor(vendor):
        print(f"{words[finding.ok]:9}{finding.name}" + (f": {finding.detail}" if finding.detail else ""))
        counts[finding.ok] += 1
    summary = ", ".join(f"{counts[ok]} {word}" for ok, word in _COUNTED.items() if counts[ok])
    print(f"{vendor.name}: {'does not conform' if counts[False] else 'conforms'}: {summary}")
    return REFUSED if counts[False] else 0
