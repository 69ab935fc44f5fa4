"""A node with MetaX's cards for people who have none: `python -m played DIRECTORY`, then what it prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from metax_host import Host
from mxsml_stub import MxsmlStub
from support.played_node import Choice, PlayedNode

from agent.vendors.metax.agent.options import MODES
from agent.vendors.metax.shared.constants import SGPU

VENDORS = """\
  metax:
    enabled: true
    library: {library}
    settings: {{mode: {mode}, sysfs: {place}/sys, containerDriverRoot: {place}/host}}
"""


def lay_out(place: Path, mode: str) -> tuple[Mapping[str, str], str]:
    stub = MxsmlStub(place)
    Host(place, stub)
    return stub.environment, VENDORS.format(place=place, library=stub.library, mode=mode)


NODE = PlayedNode("played", __doc__, "metax", Choice("mode", MODES, SGPU), lay_out)

if __name__ == "__main__":
    NODE.main(sys.argv[1:])
