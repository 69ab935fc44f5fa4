"""`demo`: a scripted day."""

from __future__ import annotations

import argparse

from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("demo", help="a scripted day on an embedded node; needs no GPU, no cluster")
    parser.add_argument("--fast", action="store_true", help="without pauses for reading")
    parser.add_argument("--json", action="store_true", help="one JSON object per step")
    parser.set_defaults(verb=demo)


def demo(args: argparse.Namespace) -> int:
    """`xpu-agent demo`: exit 0 only if every step held."""
    from agent.demo.player import main as play

    return play(fast=args.fast, as_json=args.json)
