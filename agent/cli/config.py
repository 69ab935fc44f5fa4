"""`config`: a look at a configuration."""

from __future__ import annotations

import argparse
import os

from .arguments import REFUSED, configuration, given_by, node_labels, node_name_of, tell, warn
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("config", help="look at a configuration")
    inner = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = inner.add_parser(
        "check", help="print the effective config, or the error with its place", allow_abbrev=False
    )
    configuration(check)
    node_labels(check)
    check.add_argument(
        "--cards",
        metavar="NxSIZE",
        help="also say how many device IDs it makes of such cards, as 8x48GiB or 4x16GiB,4x32GiB; exit 1 "
        "where the kubelet does not take as long a list",
    )
    check.set_defaults(verb=config_check)


def config_check(args: argparse.Namespace) -> int:
    """`xpu-agent config check`: what the agent would run with; exit 1 where it would not, or not be ready."""
    from agent.config import configured, elsewhere, given_labels, given_source, seen_labels, to_yaml
    from agent.core.errors import ConfigError, UsageError
    from agent.daemon.config_forecast import cards_of, forecast
    from agent.daemon.vendor_plugins import names
    from agent.daemon.vendors_in_service import check, complete, rules_by_vendor, unserved

    cards = cards_of(args.cards) if args.cards is not None else ()
    given, labels = given_by(args), given_labels(args.node_label)
    node = seen_labels(labels)
    seen = given_source(given, os.environ).look(node)
    if seen.error:
        raise UsageError(seen.error)
    try:
        config = check(configured(given, os.environ, node_name_of(args), names(), node))
    except ConfigError as refusal:
        tell(str(refusal))
        return REFUSED
    if missing := config.asks - labels.keys():
        warn(f"this is for a Node without {', '.join(sorted(missing))}; give --node-label KEY=VALUE")
    for warning in config.warnings:
        warn(warning)
    print(f"# {seen.source}")
    for said in elsewhere(config, seen.source):
        print(f"# {said}")
    print(to_yaml(complete(config)), end="")
    lacking = [f"{it} (the agent serves the rest, and is not ready)" for it in unserved(config)]
    told = [
        *((it, False) for it in lacking),
        *(forecast(config, rules_by_vendor(config), cards) if cards else ()),
    ]
    for sentence, fits in told:
        if fits:
            print(f"# {sentence}")
        else:
            tell(sentence)
    return 0 if all(fits for _, fits in told) else REFUSED
