"""The places where NVML may be. The agent half imports this module, too, so it does without ctypes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import constants, ldcache
from .driver_root import Root

SONAME = "libnvidia-ml.so.1"
#: The folders of a driver root, or of a directory of libraries, that may have the library.
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
    """The names of all files that would be loaded, existing or not. The loader searches for a bare name."""
    return [name for place in of(settings) for name in _names(place)]


def _names(place: str) -> list[str]:
    path = Path(place)
    if not path.is_dir():
        return [place]
    names = [str(path / folder / SONAME) for folder in FOLDERS]
    # None of these exists if a folder is an absolute link, which only has a meaning inside of the root.
    return names if any(map(os.path.lexists, names)) else [*names, *_in_root(path)]


def of(settings: Mapping[str, Any]) -> list[str]:
    """The places in their order: the setting `library` alone, or the loader and driver roots.

    A driver root that is not / comes before the loader, as mounted in this container and at its own path.
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
    """The files to load from a place: the place itself if it is a file or the bare name, else those in it."""
    path = Path(place)
    return [place] if place == SONAME or path.is_file() else _in_root(path)


def _in_root(root: Path) -> list[str]:
    """The library's paths in a root, with all links resolved, so that the loader needs no folder of the root.

    An absolute link is read as a path of the root first, as the host reads it, and then as a path of this
    process.
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
