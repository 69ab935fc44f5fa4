"""`health`: shows the health of devices, and sends an operator's commands."""

from __future__ import annotations

import argparse

from .common_arguments import admin_socket, state_dir
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("health", help="the health of devices, and an operator's commands on them")
    inner = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    listing = inner.add_parser("list", help="each device: its health, what ends its fault, its cordon")
    listing.add_argument("--json", action="store_true", help="one JSON list")
    state_dir(listing)
    listing.set_defaults(verb=health_list, on_broken_pipe=0)
    for word, help in (
        ("cordon", "give the device to no new pod; a pod that has the device keeps it"),
        ("uncordon", "give the device to new pods again"),
        ("clear", "end the device's fault without another proof; forget a device that is gone"),
    ):
        command = inner.add_parser(word, help=help)
        command.add_argument("device", metavar="UUID", help="its uuid, or a beginning that no other uuid has")
        if word == "cordon":
            command.add_argument(
                "--reason", default="", metavar="TEXT", help="why, for people and pods that meet the cordon"
            )
        state_dir(command)
        command.set_defaults(verb=health_command, command=word, reason="", on_broken_pipe=0)


def health_list(args: argparse.Namespace) -> int:
    """`xpu-agent health list`: each device that the agent lists or remembers."""
    import json

    from agent.cli.health_table import as_builtins, known_devices, show

    devices = known_devices(admin_socket(args))
    if args.json:
        print(json.dumps([as_builtins(device) for device in devices], indent=2))
    else:
        show(devices)
    return 0


def health_command(args: argparse.Namespace) -> int:
    """`xpu-agent health cordon|uncordon|clear UUID`: exit 1 where the agent refuses."""
    from agent.cli.operator_requests import send

    print(send(admin_socket(args), args.command, args.device, args.reason))
    return 0
