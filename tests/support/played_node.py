"""A node whose cards a stub plays, for people who have none: a program lays it out and prints what to run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONFIG = """\
version: v1
agent:
  kubeletDir: {place}/device-plugins
  podResourcesSocket: {place}/pod-resources.sock
  stateDir: {place}/state
  cdiDir: {place}/cdi
report: {{deviceInfosDir: {place}/infos}}
vendors:
  nvidia: {{enabled: false}}
"""


@dataclass(frozen=True)
class Choice:
    """What of the node may be chosen, such as the mode."""

    name: str
    values: Sequence[str]
    default: str


@dataclass(frozen=True)
class PlayedNode:
    """`python -m PROGRAM DIRECTORY [CHOICE]`.

    `lay_out(directory, chosen)` puts stub and files there and returns the environment of the stub, and the
    vendors of the config as lines of YAML that stand below `vendors`.
    """

    program: str
    description: str | None
    vendor: str
    choice: Choice
    lay_out: Callable[[Path, str], tuple[Mapping[str, str], str]]

    def play(self, place: Path, chosen: str) -> list[str]:
        """Lay out eight cards below the directory, which is new; returns what to run with them."""
        place.mkdir(parents=True)
        environment, vendors = self.lay_out(place, chosen)
        (place / "device-plugins").mkdir()
        config = place / "config.yaml"
        config.write_text(CONFIG.format(place=place) + vendors)
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        return [
            f"{variables} .venv/bin/xpu-agent conformance {self.vendor} --config {config}",
            f"{variables} .venv/bin/xpu-agent run --node-name node-1 --config {config}",
            f".venv/bin/xpu-agent inspect --state-dir {place}/state",
        ]

    def main(self, argv: Sequence[str]) -> None:
        choice = self.choice
        parser = argparse.ArgumentParser(prog=f"python -m {self.program}", description=self.description)
        parser.add_argument("directory", type=Path, help="where they are laid out; it is made")
        parser.add_argument(choice.name, nargs="?", choices=choice.values, default=choice.default)
        given = parser.parse_args(argv)
        try:
            commands = self.play(given.directory.absolute(), getattr(given, choice.name))
        except FileExistsError as exc:
            parser.error(f"{exc.filename} is there already: remove it, or name a directory that is not there")
        sys.stdout.write("\n".join([*commands, ""]))
