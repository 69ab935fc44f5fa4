"""Finds and starts NVML, and words what keeps it from starting."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

from agent.core.vendor import DRIVER_NOT_LOADED, BackendUnavailable

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
ROOTS = ("/driver-root", "/run/nvidia/driver")
REMEDY = "install the NVIDIA driver, or let 'library' name the file or the driver's root directory"


def start(library: str) -> Any:
    """Load NVML from this path, or from the usual places, and open a session.

    Raises:
        BackendUnavailable: There is no library, or it refuses; says where it was looked for.
    """
    nvml: Any = importlib.import_module("pynvml")
    # pynvml has no path option. It never unloads either, so a library that is there was ours.
    if nvml.nvmlLib is None:
        nvml.nvmlLib = load(library)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise unavailable(nvml, error) from error
    return nvml


def load(library: str) -> ctypes.CDLL:
    """Load the library itself."""
    candidates = _candidates(library)
    refused = []
    for candidate in candidates:
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            refused.append(str(error))
    why = "; ".join(refused) if refused else f"no {SONAME} in {library} or its {', '.join(FOLDERS[1:])}"
    raise BackendUnavailable("library-not-found", f"{why}; {REMEDY}")


def _candidates(library: str) -> list[str]:
    if not library:
        return [SONAME, *(found for root in ROOTS for found in _in_root(Path(root)))]
    path = Path(library)
    return _in_root(path) if path.is_dir() else [library]


def _in_root(root: Path) -> list[str]:
    """The library's paths under a root, symlinks resolved: the loader needs nothing else of the root."""
    paths = (root / folder / SONAME for folder in FOLDERS)
    return [str(path.resolve()) for path in paths if path.is_file()]


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
