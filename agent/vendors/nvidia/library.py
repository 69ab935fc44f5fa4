"""Finds and starts NVML, and words what keeps it from starting."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.core.vendor import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    LIBRARY_UNUSABLE,
    BackendUnavailable,
)

from . import facts
from .driverroot import Root

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
ROOTS = (facts.DRIVER_ROOT, "/run/nvidia/driver")
REMEDY = "install the NVIDIA driver, or let 'library' name the file or the driver's root directory"
#: How glibc says so, in English: a process that sets no locale is told nothing else.
_MISSING = f"cannot open shared object file: {os.strerror(errno.ENOENT)}"


def start(settings: Mapping[str, Any]) -> Any:
    """Load NVML from where the settings say, or from the usual places, and open a session.

    Raises:
        BackendUnavailable: There is no library, or it refuses; says where it was looked for.
    """
    nvml: Any = importlib.import_module("pynvml")
    # pynvml has no path option. It never unloads either, so a library that is there was ours.
    if nvml.nvmlLib is None:
        nvml.nvmlLib = load(settings)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise unavailable(nvml, error) from error
    return nvml


def load(settings: Mapping[str, Any]) -> ctypes.CDLL:
    """Load the library itself: from `library` alone, else from a driver root, or as the loader finds it."""
    library = settings.get("library") or ""
    reason = LIBRARY_NOT_FOUND
    refused, empty = [], []
    for place in [library] if library else _places(settings):
        candidates = _candidates(place)
        for candidate in candidates:
            try:
                return ctypes.CDLL(candidate)
            except OSError as error:
                refused.append(str(error))
                reason = reason if _is_missing(candidate, error) else LIBRARY_UNUSABLE
        if not candidates:
            empty.append(place)
    if empty:
        refused.append(f"no {SONAME} in {' or '.join(empty)}, nor below it in {', '.join(FOLDERS[1:])}")
    raise BackendUnavailable(reason, "; ".join([*refused, REMEDY]))


def _is_missing(name: str, error: OSError) -> bool:
    """Whether the loader refused a name because nothing is there; of a bare one it alone knows."""
    if "/" in name:
        return not os.path.exists(name)
    return str(error) == f"{name}: {_MISSING}"


def searched(settings: Mapping[str, Any]) -> list[str]:
    """The names of all files that `load` would take, there or not; the bare one is the loader's."""
    library = settings.get("library") or ""
    return [name for place in ([library] if library else _places(settings)) for name in _names(place)]


def _names(place: str) -> list[str]:
    path = Path(place)
    return [str(path / folder / SONAME) for folder in FOLDERS] if path.is_dir() else [place]


def _places(settings: Mapping[str, Any]) -> list[str]:
    """Where to look. A driver root that is not / goes before the loader: mounted for us, or where it is."""
    root, mounted = (
        settings.get("driverRoot") or "/",
        settings.get("containerDriverRoot") or facts.DRIVER_ROOT,
    )
    places = [SONAME, mounted, *ROOTS] if root == "/" else [mounted, root, SONAME, *ROOTS]
    return list(dict.fromkeys(place for place in places if place != "/"))


def _candidates(place: str) -> list[str]:
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
    return list(dict.fromkeys(found))


def unavailable(nvml: Any, error: Any, otherwise: str = "nvml-init") -> BackendUnavailable:
    """Why NVML as a whole does not answer; `otherwise` is the reason of an error without a name."""
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return BackendUnavailable(DRIVER_NOT_LOADED, "NVML is there, the kernel driver is not: load it")
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return BackendUnavailable(
            "driver-library-mismatch", "library and kernel driver have different versions: reload the driver"
        )
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return BackendUnavailable("no-permission", "NVML may not open /dev/nvidiactl: allow the device")
    return BackendUnavailable(otherwise, f"NVML answers: {error}")
