"""The places where EFML may be. The agent half imports this module, too, so it does without ctypes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.vendors.common import host

SONAME = "libefml.so"
#: Endings of the file's name, and folders that are searched after the loader's own, as in efml_dl.go.
VERSIONS = ("", ".1", ".2", ".2.1", ".2.0", ".1.0.0")
FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
#: The folder of packages that /usr/lib/libefml.so links to. A container may have only one of both.
PACKAGES = "/usr/local/efsmi"


def searched(settings: Mapping[str, Any]) -> list[str]:
    """The names of all files that would be loaded, existing or not. The loader searches for a bare name.

    The setting `library` is a file, or a directory with the file or with the usual places below it, or a name
    without a slash (liberml.so), which replaces libefml.so in all places.
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
    """Broken links among these files, and their targets: a container may lack what libefml.so links to."""
    links = [Path(name) for name in searched(settings) if "/" in name]
    return [(str(it), os.readlink(it)) for it in links if it.is_symlink() and not it.exists()]


def soname(settings: Mapping[str, Any]) -> str:
    """The name that the loader looks for: the setting `library` if it is no path, or else SONAME."""
    library = settings.get("library") or ""
    return library if library and "/" not in library else SONAME


def _folders(root: str) -> list[str]:
    """The folders below a root that may have the library, those of newer packages first."""
    packages = sorted(Path(root + PACKAGES).glob("efsmi-*"), key=_version, reverse=True)
    return [*(root + folder for folder in FOLDERS), *(str(package / "lib") for package in packages)]


def _version(package: Path) -> list[int]:
    return [int(number) for number in re.findall("[0-9]{1,9}", package.name)]
