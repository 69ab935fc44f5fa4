"""`doctor`: what keeps the node from its work."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .arguments import configuration, given_by, node_name_of
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "doctor", help="what keeps this node from giving out its cards, and what mends it", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="D",
        help="where the host's / is mounted, if elsewhere",
    )
    configuration(parser)
    parser.set_defaults(verb=doctor)


def doctor(args: argparse.Namespace) -> int:
    """`xpu-agent doctor`: reads and asks, changes nothing. Exit 1 where something stops work."""
    from agent.cluster.access import named
    from agent.doctor.survey import Question
    from agent.doctor.visit import visit

    kubeconfig = named(args.kubeconfig, os.environ)
    question = Question(node_name_of(args), given_by(args), os.environ, kubeconfig, args.host_root)
    return visit(question, as_json=args.json)
