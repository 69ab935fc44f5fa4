"""A node with MetaX's cards for people who have none: `python -m played DIRECTORY`, then what it prints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from metax_host import Host
from mxsml_stub import MxsmlStub

from agent.vendors.metax.agent.options import Mode
from agent.vendors.metax.constants import SGPU

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
  metax:
    enabled: true
    library: {library}
    settings: {{mode: {mode}, sysfs: {place}/sys, containerDriverRoot: {place}/host}}
"""


def play(place: Path, mode: str = SGPU) -> list[str]:
    """Lay out eight cards below the directory, which is new; returns what to run with them."""
    place.mkdir(parents=True)
    stub = MxsmlStub(place)
    Host(place, stub)
    (place / "device-plugins").mkdir()
    config = place / "config.yaml"
    config.write_text(CONFIG.format(place=place, library=stub.library, mode=mode))
    variables = " ".join(f"{name}={value}" for name, value in stub.environment.items())
    return [
        f"{variables} .venv/bin/xpu-agent conformance metax --config {config}",
        f"{variables} .venv/bin/xpu-agent run --node-name node-1 --config {config}",
        f".venv/bin/xpu-agent inspect --state-dir {place}/state",
    ]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m played", description=__doc__)
    parser.add_argument("directory", type=Path, help="where they are laid out; it is made")
    parser.add_argument("mode", nargs="?", choices=get_args(Mode), default=SGPU)
    its = parser.parse_args(argv)
    try:
        told = play(its.directory.absolute(), its.mode)
    except FileExistsError as exc:
        parser.error(f"{exc.filename} is there already: remove it, or name a directory that is not there")
    sys.stdout.write("\n".join([*told, ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
