"""The places where MXSML may be. The agent half imports this module, too, so it does without ctypes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendors.common import host

SONAME = "libmxsml.so"
#: The folders of MetaX's packages, which are searched after the loader's own.
FOLDERS = ("/opt/mxdriver/lib", "/opt/maca/lib", "/opt/mxn100/lib")


def searched(settings: Mapping[str, Any]) -> list[str]:
    """The names of all files that would be loaded, existing or not. The loader searches for a bare name."""
    library = settings.get("library") or ""
    if not library:
        root = host.driver_root(settings).rstrip("/")
        folders = dict.fromkeys(f"{root}{folder}" for root in ("", root) for folder in FOLDERS)
        return [SONAME, *(f"{folder}/{SONAME}" for folder in folders)]
    if not Path(library).is_dir():
        return [library]
    within = [Path(library), Path(library, "lib"), *(Path(library + folder) for folder in FOLDERS)]
    return [str(folder / SONAME) for folder in within]
