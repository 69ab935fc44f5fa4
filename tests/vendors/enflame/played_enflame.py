"""Enflame's cards for people who have none: `python -m played_enflame DIRECTORY`, then what it prints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from efml_stub import EfmlStub
from enflame_tree import Tree

from agent.vendors.enflame.agent.options import DialectName

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
  metax: {{enabled: false}}
  enflame:
    enabled: true
    library: {library}
    settings: {{dialect: {dialect}, efsmi: {efsmi}, sysfs: {sysfs}, containerDriverRoot: {root}}}
"""


def play(place: Path, dialect: str = "gcushare-v4") -> list[str]:
    """Lay out eight cards below the directory, which is new; returns what to run with them."""
    place.mkdir(parents=True)
    stub = EfmlStub(place)
    tree = Tree(place, stub)
    (place / "device-plugins").mkdir()
    config = place / "config.yaml"
    tool = stub.settings["efsmi"]
    files = {"efsmi": tool, "sysfs": tree.sysfs, "root": tree.root}
    config.write_text(CONFIG.format(place=place, library=stub.library, dialect=dialect, **files))
    variables = " ".join(f"{name}={value}" for name, value in stub.environment.items())
    return [
        f"{variables} .venv/bin/xpu-agent conformance enflame --config {config}",
        f"{variables} .venv/bin/xpu-agent run --node-name node-1 --config {config}",
        f".venv/bin/xpu-agent inspect --state-dir {place}/state",
    ]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m played_enflame", description=__doc__)
    parser.add_argument("directory", type=Path, help="where they are laid out; it is made")
    parser.add_argument("dialect", nargs="?", choices=get_args(DialectName), default="gcushare-v4")
    its = parser.parse_args(argv)
    try:
        told = play(its.directory.absolute(), its.dialect)
    except FileExistsError as exc:
        parser.error(f"{exc.filename} is there already: remove it, or name a directory that is not there")
    sys.stdout.write("\n".join([*told, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
