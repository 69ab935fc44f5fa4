"""Where EFML is looked for: no ctypes, for the agent's half knows the places, too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendors.common import host

SONAME = "libefml.so"
#: What may follow the name, and where the file may lie after the loader's own path: as efml_dl.go looks.
VERSIONS = ("", ".1", ".2", ".2.1", ".2.0", ".1.0.0")
FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
#: What /usr/lib/libefml.so is a link into; a container may have only the one or the other.
PACKAGES = "/usr/local/efsmi"


def searched(settings: Mapping[str, Any]) -> list[str]:
    """The names of all files that `load` would take, there or not; one without a folder is the loader's.

    `library` is a file, a directory that holds one or has the usual places below it, or a name without a
    slash (liberml.so), which is then looked for where libefml.so would be.
    """
    library = settings.get("library") or ""
    names = [soname(settings) + version for version in VERSIONS]
    if "/" not in library:
        roots = dict.fromkeys(["", host.driver_root(settings).rstrip("/")])
        return names + [f"{folder}/{name}" for root in roots for folder in _folders(root) for name in names]
    if not Path(library).is_dir():
        return [library]
    within = [library, f"{library}/lib", *_folders(library)]
    return [str(Path(folder, name)) for folder in within for name in names]


def dangling(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The links among them that lead nowhere: a container may have /usr/lib/libefml.so and not its target."""
    links = [Path(name) for name in searched(settings) if "/" in name]
    return [(str(it), os.readlink(it)) for it in links if it.is_symlink() and not it.exists()]


def soname(settings: Mapping[str, Any]) -> str:
    library = settings.get("library") or ""
    return library if library and "/" not in library else SONAME


def _folders(root: str) -> list[str]:
    """Where it may lie below a root; of the packages, the newest first."""
    packages = sorted(Path(root + PACKAGES).glob("efsmi-*"), key=_version, reverse=True)
    return [*(root + folder for folder in FOLDERS), *(str(package / "lib") for package in packages)]


def _version(package: Path) -> list[int]:
    return [int(number) for number in re.findall("[0-9]{1,9}", package.name)]
