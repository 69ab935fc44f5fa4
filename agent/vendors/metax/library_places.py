"""Where MXSML is looked for: no ctypes, for the agent's half knows the places, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendors.common import host

SONAME = "libmxsml.so"
#: Where MetaX's packages put it, after the loader's own path.
FOLDERS = ("/opt/mxdriver/lib", "/opt/maca/lib", "/opt/mxn100/lib")


def searched(settings: Mapping[str, Any]) -> list[str]:
    """The names of all files that would be loaded, there or not; the bare one is the loader's."""
    library = settings.get("library") or ""
    if not library:
        root = host.driver_root(settings).rstrip("/")
        folders = dict.fromkeys(f"{root}{folder}" for root in ("", root) for folder in FOLDERS)
        return [SONAME, *(f"{folder}/{SONAME}" for folder in folders)]
    if not Path(library).is_dir():
        return [library]
    within = [Path(library), Path(library, "lib"), *(Path(library + folder) for folder in FOLDERS)]
    return [str(folder / SONAME) for folder in within]
