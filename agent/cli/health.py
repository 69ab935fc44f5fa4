"""`health`: the devices, and an operator's word on them."""

from __future__ import annotations

import argparse

from .arguments import admin_socket, state_dir
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("health", help="the health of devices, and an operator's word on them")
    inner = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    listing = inner.add_parser("list", help="each device: what it has, what ends it, who cordoned it")
    listing.add_argument("--json", action="store_true", help="one JSON list")
    state_dir(listing)
    listing.set_defaults(verb=health_list, unheard=0)
    for word, help in (
        ("cordon", "give the device to nobody new; who has it keeps it"),
        ("uncordon", "give it out again"),
        ("clear", "stand in for the proof that its fault is over; forget a device that is gone"),
    ):
        telling = inner.add_parser(word, help=help)
        telling.add_argument("device", metavar="UUID", help="its uuid, or how that alone begins")
        if word == "cordon":
            telling.add_argument("--reason", default="", metavar="TEXT", help="why, for who meets it")
        state_dir(telling)
        telling.set_defaults(verb=health_word, word=word, reason="", unheard=0)


def health_list(args: argparse.Namespace) -> int:
    """`xpu-agent health list`: every device that is known or remembered."""
    import json

    from agent.cli.health_table import as_builtins, known_devices, show

    devices = known_devices(admin_socket(args))
    if args.json:
        print(json.dumps([as_builtins(device) for device in devices], indent=2))
    else:
        show(devices)
    return 0


def health_word(args: argparse.Namespace) -> int:
    """`xpu-agent health cordon|uncordon|clear UUID`: exit 1 where the agent refuses."""
    from agent.cli.operator_requests import send

    print(send(admin_socket(args), args.word, args.device, args.reason))
    return 0
