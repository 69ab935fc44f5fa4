"""`config`: a look at a configuration."""

from __future__ import annotations

import argparse
import os
import sys

from .arguments import Verbs, configuration, given_by, node_labels, node_name_of


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("config", help="look at a configuration")
    inner = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = inner.add_parser(
        "check", help="print the effective config, or the error with its place", allow_abbrev=False
    )
    configuration(check)
    node_labels(check)
    check.set_defaults(verb=config_check)


def config_check(args: argparse.Namespace) -> int:
    """`xpu-agent config check`: what the agent would run with."""
    from agent.config import configured, given_labels, given_source, seen_labels, to_yaml
    from agent.fleet import check
    from agent.plugins import names

    given, told = given_by(args), given_labels(args.node_label)
    node = seen_labels(told)
    config = check(configured(given, os.environ, node_name_of(args), names(), node))
    missing = config.asks - told.keys()
    if missing:
        without = f"this is for a Node without {', '.join(sorted(missing))}; give --node-label KEY=VALUE"
        print(f"xpu-agent: warning: {without}", file=sys.stderr)
    for warning in config.warnings:
        print(f"xpu-agent: warning: {warning}", file=sys.stderr)
    print(f"# {given_source(given, os.environ).look(node).source}")
    print(to_yaml(config), end="")
    return 0
