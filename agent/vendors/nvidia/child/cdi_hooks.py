"""The hooks of CDI specs: what NVIDIA's hook binary does in a container before the container starts."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .driver_files import DriverFiles

SYMLINKS, CACHE = "create-symlinks", "update-ldcache"
#: The name that disables every hook.
ALL = "all"
ENV = ["NVIDIA_CTK_DEBUG=false"]


def hooks(binary: str, disabled: Collection[str], files: DriverFiles, version: str) -> dict[str, Any]:
    """The hooks by their names. None without a binary, or without the driver's libraries."""
    if not binary or not files.libraries or ALL in disabled:
        return {}
    return {
        name: _hook(binary, name, arguments(files, version))
        for name, arguments in _ARGUMENTS.items()
        if name not in disabled
    }


def _hook(binary: str, name: str, arguments: list[str]) -> dict[str, Any]:
    # nvidia-ctk has the hooks below its command `hook`, nvidia-cdi-hook has them at the top.
    program = posixpath.basename(binary)
    command = [program, "hook"] if program == "nvidia-ctk" else [program]
    return {
        "hookName": "createContainer",
        "path": binary,
        "args": [*command, name, *arguments],
        "env": ENV,
    }


def _links(files: DriverFiles, version: str) -> list[str]:
    ends = {link: posixpath.relpath(path, posixpath.dirname(link)) for link, path in files.links.items()}
    return [
        text for link in sorted(f"{end}::{link}" for link, end in ends.items()) for text in ("--link", link)
    ]


def _version(files: DriverFiles, version: str) -> list[str]:
    return [f"--host-driver-version={version}"]


def _folders(files: DriverFiles, version: str) -> list[str]:
    folders = sorted({posixpath.dirname(path) for path in files.libraries})
    return [text for folder in folders for text in ("--folder", folder)]


def _nothing(files: DriverFiles, version: str) -> list[str]:
    return []


#: The hooks of nvidia-container-toolkit v1.20 (pkg/nvcdi) with their arguments, in the toolkit's order.
_ARGUMENTS: Mapping[str, Callable[[DriverFiles, str], list[str]]] = {
    SYMLINKS: _links,
    "enable-cuda-compat": _version,
    CACHE: _folders,
    "disable-device-node-modification": _nothing,
    "update-application-profile": _nothing,
}
