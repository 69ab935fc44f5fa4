"""What a process finds of a vendor's library, and what the agent sees of it without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
#: Nothing but the library shows that the vendor is here; `library_places` tells what stands in.
SCRIPT = """
import importlib, json, sys
from dataclasses import replace
from agent.vendor_api.agent import BackendUnavailable, Signs
from agent.isolation.presence import absence

name, settings, stand_ins = sys.argv[1], *map(json.loads, sys.argv[2:])
parts = "child.library", "shared.library_places", "plugin"
library, library_places, plugin = (importlib.import_module(f"agent.vendors.{name}.{it}") for it in parts)
for key, value in stand_ins.items():
    setattr(library_places, key, value)
vendor = plugin.register_backend(settings)
vendor = replace(vendor, host=replace(vendor.host, signs=Signs(sysfs="/nonexistent")))
absent = absence(vendor)
try:
    loaded = bool(library.load(vendor.settings.for_backend))
except BackendUnavailable:
    loaded = False
print(json.dumps([loaded, absent]))
"""


class LibrarySigns(NamedTuple):
    #: Whether a process loads the library.
    loaded: bool
    #: Why the agent would start none.
    absence: str


def library_signs(
    vendor: str,
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    cwd: Path = ROOT,
    **places: Any,
) -> LibrarySigns:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, vendor, json.dumps(settings), json.dumps(places)],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return LibrarySigns(*json.loads(done.stdout))
