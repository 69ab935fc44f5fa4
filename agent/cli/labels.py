"""`labels`: the labels that the node's devices give the node."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .common_arguments import configuration, given_by, node_labels, node_name_of
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("labels", help="the labels that the node's devices give it", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    configuration(parser)
    node_labels(parser)
    parser.set_defaults(verb=labels, on_broken_pipe=0)


def labels(args: argparse.Namespace) -> int:
    """`xpu-agent labels`: ask the vendors once, and print the labels or write them to --output-file."""
    from agent.config import configured, given_labels, seen_labels
    from agent.daemon.labels_once import show
    from agent.daemon.vendor_plugins import config_inputs, names

    arguments = given_by(args)
    node = seen_labels(given_labels(args.node_label))
    config = configured(arguments, os.environ, node_name_of(args), names(), node, config_inputs())
    output = Path(config.report.features_file) if arguments["output-file"] else None
    return show(config, output, as_json=args.json)
