"""`doctor`: finds what keeps the node from its work."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from .common_arguments import REFUSED, configuration, given_by, node_name_of
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
    """`xpu-agent doctor`: reads and asks, and changes nothing. Exit 1 where something stops work."""
    import anyio

    from agent import logs
    from agent.cluster.credentials import named
    from agent.config import LogSettings
    from agent.doctor.checks import examined
    from agent.doctor.doctor_arguments import DoctorArguments
    from agent.doctor.findings_output import document, show, stops
    from agent.doctor.survey import survey

    logs.configure(LogSettings(level="error"))  # findings report the rest, once
    kubeconfig = named(args.kubeconfig, os.environ)
    arguments = DoctorArguments(node_name_of(args), given_by(args), os.environ, kubeconfig, args.host_root)
    around = anyio.run(survey, arguments)
    findings = tuple(examined(around))
    if args.json:
        print(json.dumps(document(around.node, around.version, findings), indent=2))
    else:
        show(around.node, around.version, findings)
    return REFUSED if stops(findings) else 0
