"""How much memory a vendor's process may have, and how much it has."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK = 1.0  # seconds between two looks
#: Bytes of addresses beyond the limit: stacks of threads and buffers count before anyone touches them.
ROOM = 2 << 30
#: What of a process is its own (proc_pid_status(5)); pages of files are the kernel's to take back.
OWN = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that a process may have of its own, 0 for any number, and how the configuration calls that."""

    size: int = 0
    key: str = "memoryLimit"

    @property
    def wall(self) -> int:
        """Bytes at which the kernel refuses more at once (RLIMIT_DATA), for a leap between two looks."""
        return self.size + ROOM if self.size else 0

    def excess(self, used: int) -> str:
        """What is wrong with having so much; empty where nothing is."""
        return f"used {mebibytes(used)} of memory, {self}" if 0 < self.size < used else ""

    def __str__(self) -> str:
        return f"{self.key} is {mebibytes(self.size)}"


def used(pid: int) -> int:
    """The bytes that a process has of its own; 0 where it is gone."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(OWN):
                total += int(line.split()[1]) << 10
    return total


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
