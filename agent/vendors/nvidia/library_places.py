"""Where NVML is looked for: no ctypes, for the agent's half knows the places, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import constants, ldcache
from .driver_root import Root

SONAME = "libnvidia-ml.so.1"
#: Where a driver root, or a directory of libraries, may hold it.
FOLDERS = (
    ".",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
#: Driver roots of the GPU operator and of NVIDIA's own plugin, tried when the loader knows no NVML.
ROOTS = (constants.DRIVER_ROOT, "/run/nvidia/driver")


def searched(settings: Mapping[str, Any]) -> list[str]:
    """The names of all files that would be loaded, there or not; the bare one is the loader's."""
    return [name for place in of(settings) for name in _names(place)]


def _names(place: str) -> list[str]:
    path = Path(place)
    if not path.is_dir():
        return [place]
    names = [str(path / folder / SONAME) for folder in FOLDERS]
    # Behind a folder that is an absolute link, which leads to another one of the root, none of these is.
    return names if any(map(os.path.lexists, names)) else [*names, *_in_root(path)]


def of(settings: Mapping[str, Any]) -> list[str]:
    """Where to look: `library` alone, or the loader and driver roots.

    A driver root that is not / goes before the loader: mounted for us, or where it is.
    """
    if library := settings.get("library"):
        return [library]
    root, mounted = (
        settings.get("driverRoot") or "/",
        settings.get("containerDriverRoot") or constants.DRIVER_ROOT,
    )
    places = [SONAME, mounted, *ROOTS] if root == "/" else [mounted, root, SONAME, *ROOTS]
    return list(dict.fromkeys(place for place in places if place != "/"))


def candidates(place: str) -> list[str]:
    """The files to load from a place: the library in a root, else what the place itself names."""
    path = Path(place)
    return [place] if place == SONAME or path.is_file() else _in_root(path)


def _in_root(root: Path) -> list[str]:
    """The library's paths under a root, without links: the loader needs nothing else of the root.

    An absolute link means the root's own path, as the host reads it, and else ours.
    """
    view, found = Root(str(root), "/"), []
    for folder in FOLDERS:
        path = root / folder / SONAME
        within = view.real(f"/{folder}/{SONAME}")
        candidates = [root / within.lstrip("/")] if within else []
        found += [str(it.resolve()) for it in (*candidates, path) if it.is_file()]
    cached = (view.real(path) for path in ldcache.libraries(view, SONAME))
    found += [str(root / within.lstrip("/")) for within in cached if within]
    return list(dict.fromkeys(found))
