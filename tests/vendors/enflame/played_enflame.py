"""Enflame's cards for people who have none: `python -m played_enflame DIRECTORY`, then what it prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from efml_stub import EfmlStub
from enflame_tree import Tree
from support.played_node import Choice, PlayedNode

from agent.vendors.enflame.agent.options import DialectName

VENDORS = """\
  metax: {{enabled: false}}
  enflame:
    enabled: true
    library: {library}
    settings: {{dialect: {dialect}, efsmi: {efsmi}, sysfs: {sysfs}, containerDriverRoot: {root}}}
"""


def lay_out(place: Path, dialect: str) -> tuple[Mapping[str, str], str]:
    stub = EfmlStub(place)
    tree = Tree(place, stub)
    files = {"efsmi": stub.settings["efsmi"], "sysfs": tree.sysfs, "root": tree.root}
    return stub.environment, VENDORS.format(library=stub.library, dialect=dialect, **files)


DIALECT = Choice("dialect", get_args(DialectName), "gcushare-v4")
NODE = PlayedNode("played_enflame", __doc__, "enflame", DIALECT, lay_out)

if __name__ == "__main__":
    NODE.main(sys.argv[1:])
