"""Finds and starts NVML, and says why it does not start."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from typing import Any

from agent.vendor_api.backend import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    LIBRARY_UNUSABLE,
    BackendUnavailable,
)
from agent.vendors.common.shared_library import is_missing
from agent.vendors.nvidia.shared import library_places

REMEDY = "install the NVIDIA driver, or let 'library' name the file or the driver's root directory"


def start(settings: Mapping[str, Any]) -> Any:
    """Load NVML from the setting `library` or from the usual places, and open a session.

    Raises:
        BackendUnavailable: There is no library, or it does not start; the message names the places searched.
    """
    nvml: Any = importlib.import_module("pynvml")
    # pynvml has no option for a path. It never unloads a library, so a loaded one comes from here.
    if nvml.nvmlLib is None:
        nvml.nvmlLib = load(settings)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise unavailable(nvml, error) from error
    return nvml


def load(settings: Mapping[str, Any]) -> ctypes.CDLL:
    """Load the library file of the setting `library`, or else of a driver root or of the loader's folders."""
    reason = LIBRARY_NOT_FOUND
    refused, empty = [], []
    for place in library_places.of(settings):
        candidates = library_places.candidates(place)
        for candidate in candidates:
            try:
                return ctypes.CDLL(candidate)
            except OSError as error:
                refused.append(str(error))
                reason = reason if is_missing(candidate, error) else LIBRARY_UNUSABLE
        if not candidates:
            empty.append(place)
    if empty:
        below = ", ".join(library_places.FOLDERS[1:])
        refused.append(f"no {library_places.SONAME} in {' or '.join(empty)}, nor below it in {below}")
    raise BackendUnavailable(reason, "; ".join([*refused, REMEDY]))


def unavailable(nvml: Any, error: Any, otherwise: str = "nvml-init") -> BackendUnavailable:
    """The error for the agent when NVML does not start or count cards.

    `otherwise` is the reason for an error code that has no reason of its own.
    """
    if error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return BackendUnavailable(DRIVER_NOT_LOADED, "NVML is there, the kernel driver is not: load it")
    if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return BackendUnavailable(
            "driver-library-mismatch", "library and kernel driver have different versions: reload the driver"
        )
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return BackendUnavailable("no-permission", "NVML may not open /dev/nvidiactl: allow the device")
    return BackendUnavailable(otherwise, f"NVML answers: {error}")
