"""`config`: checks a configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .common_arguments import REFUSED, configuration, given_by, node_labels, node_name_of, tell, warn
from .parser import Verbs

if TYPE_CHECKING:
    from agent.config import Config


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
        help="also print how many device IDs the config makes of such cards, as 8x48GiB or 4x16GiB,4x32GiB; "
        "exit 1 where the list is too long for the kubelet",
    )
    check.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="also print the tree of the cards in FILE, the output of their vendor's tool, and which of the "
        "cards requests get while the node has no pods",
    )
    check.set_defaults(verb=config_check)


def config_check(args: argparse.Namespace) -> int:
    """`xpu-agent config check`: exit 1 where an agent with this config would not start, or not be ready."""
    from agent.config import configured, elsewhere, given_labels, given_source, seen_labels, to_yaml
    from agent.core.errors import ConfigError, UsageError
    from agent.daemon.config_forecast import cards_of, forecast
    from agent.daemon.vendor_config import check_config, complete_config, rules_by_vendor, unserved_sentences
    from agent.daemon.vendor_plugins import config_inputs, names

    cards = cards_of(args.cards) if args.cards is not None else ()
    arguments, labels = given_by(args), given_labels(args.node_label)
    node = seen_labels(labels)
    inputs = config_inputs()
    found = given_source(arguments, os.environ, inputs).look(node)
    if found.error:
        raise UsageError(found.error)
    try:
        config = check_config(configured(arguments, os.environ, node_name_of(args), names(), node, inputs))
    except ConfigError as refusal:
        tell(str(refusal))
        return REFUSED
    foreseen_places = [*_placements(config, args.topology)] if args.topology is not None else []
    if missing := config.asks - labels.keys():
        warn(f"this is for a Node without {', '.join(sorted(missing))}; give --node-label KEY=VALUE")
    for warning in config.warnings:
        warn(warning)
    print(f"# {found.source}")
    for note in elsewhere(config, found.source):
        print(f"# {note}")
    print(to_yaml(complete_config(config)), end="")
    for line in foreseen_places:
        print(f"# {line}")
    lacking = [f"{it} (the agent serves the rest, and is not ready)" for it in unserved_sentences(config)]
    foreseen = [
        *((it, False) for it in lacking),
        *(forecast(config, rules_by_vendor(config), cards) if cards else ()),
    ]
    for sentence, fits in foreseen:
        if fits:
            print(f"# {sentence}")
        else:
            tell(sentence)
    return 0 if all(fits for _, fits in foreseen) else REFUSED


def _placements(config: Config, path: Path) -> Iterator[str]:
    """The tree of the cards in the file, and which of them requests get."""
    from agent.core.devices.topology import Topology
    from agent.core.devices.topology_tree import topology_tree
    from agent.daemon.config_forecast import cards_in_file, placements

    from .card_tree import card_tree

    vendor, cards = cards_in_file(config, path)
    devices = {it.uuid: it for it in cards}
    tree = topology_tree(Topology(devices), devices)
    yield from card_tree(tree, {uuid: it.index for uuid, it in devices.items()})
    yield from placements(config, vendor, cards)
