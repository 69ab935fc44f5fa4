"""Finds defects in the files of a vendor's library: dangling links, and files for another machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from agent.host import files
from agent.isolation import library_loader

#: e_machine of an ELF file (elf.h) to the name of the machine in uname.
MACHINES = {3: "i686", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
NO_PROGRAM = "no ELF file"
_HEADER = 20


class LibraryDefect(NamedTuple):
    """A defect of one file."""

    path: str
    kind: Literal["dangling", "foreign", "broken"]
    #: The target of the link, the machine of the file, or why the file is no library.
    detail: str


def defects(names: Iterable[str]) -> Iterator[LibraryDefect]:
    """The defects of files with these names. A file that does not exist is no defect."""
    for path in dict.fromkeys(path for name in names for path in _paths(name)):
        if os.path.islink(path) and not os.path.exists(path):
            yield LibraryDefect(path, "dangling", os.path.realpath(path))
        elif (machine := machine_of(Path(path))) and machine != platform.machine():
            yield LibraryDefect(path, "broken" if machine == NO_PROGRAM else "foreign", machine)


def existing_paths(names: Iterable[str]) -> tuple[str, ...]:
    """The real paths of the files that exist.

    The real name of a library often has the version of the driver.
    """
    paths = (path for name in names for path in _paths(name))
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.isfile(path)))


def _paths(name: str) -> list[str]:
    if "/" in name:
        return [name]
    return [os.path.join(folder, name) for folder in library_loader.folders()]


def machine_of(path: Path) -> str:
    """The machine of the file; empty where there is no file, NO_PROGRAM where the file is no ELF file."""
    try:
        head = files.read(path, _HEADER)
    except OSError:
        return ""
    if len(head) < _HEADER or head[:4] != b"\x7fELF":
        return NO_PROGRAM
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return MACHINES.get(number, f"machine {number}")
