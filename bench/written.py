"""Counts what a process writes below a directory, by a library that is loaded before all others (written.c).

/proc/PID/io cannot tell a file from a socket, nor one directory from another.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.scripted_libraries import Source

WRITTEN = Source("writes", Path(__file__).with_name("written.c"), "libwritten.so")
#: Two unsigned 64-bit numbers: bytes and calls.
LAYOUT = struct.Struct("=QQ")


@dataclass(frozen=True, slots=True)
class Count:
    """Bytes written so far, and by how many calls."""

    written: int
    calls: int


@dataclass(frozen=True, slots=True)
class Counter:
    """The file in which processes count together."""

    file: Path
    directory: Path

    @classmethod
    def make(cls, file: Path, directory: Path) -> Self:
        """Begin at zero. `directory`: below which to count; files that end in .log are left out."""
        file.write_bytes(LAYOUT.pack(0, 0))
        return cls(file, directory)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs so that it counts.

        Raises:
            NoCompiler: The library cannot be built.
        """
        return {
            "LD_PRELOAD": str(WRITTEN.build()),
            "XPU_WRITTEN_COUNT": str(self.file),
            "XPU_WRITTEN_BELOW": str(self.directory.resolve()),
        }

    def read(self) -> Count:
        """The count now."""
        return Count(*LAYOUT.unpack(self.file.read_bytes()))
