"""How much memory a vendor's process may use, and how much it uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct

LOOK_SECONDS = 1.0  # seconds between two measurements
#: Bytes of addresses above the limit: stacks and buffers count as data before they are used.
ADDRESS_ROOM_BYTES = 2 << 30
#: Bytes for the agent itself in a container with a limit; docs/benchmarks.md has what it uses.
AGENT_BYTES = 256 << 20
#: One part in so many of a vendor's share stays free: for growth between two measurements, and for addresses
#: that count without being used.
FREE_PART_OF_SHARE = 5
#: A process's own memory (proc_pid_status(5)); pages of files can be taken back by the kernel.
OWN_MEMORY_KB = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s*(\d+)", re.MULTILINE)
#: More bytes than the file has: the kernel fills it in one read.
STATUS_BYTES = 1 << 14


class MemoryLimit(Struct, frozen=True):
    """The memory that a process may use for itself: `size` bytes, 0 for no limit, set by the config's `key`.

    `part` is the vendor's share of the container's limit `of`; both are 0 without such a limit.
    """

    size: int = 0
    key: str = "memoryLimit"
    part: int = 0
    of: int = 0

    @property
    def wall(self) -> int:
        """Bytes at which the kernel refuses more (RLIMIT_DATA), for growth between two measurements."""
        return _lower(self.size + ADDRESS_ROOM_BYTES if self.size else 0, self.part)

    @property
    def bound(self) -> int:
        """Bytes above which a measurement ends the process."""
        return _lower(self.size, self.part - min(self.part // FREE_PART_OF_SHARE, ADDRESS_ROOM_BYTES))

    def excess(self, used: int) -> str:
        """What is wrong with using so many bytes; empty if nothing is."""
        return f"used {mebibytes(used)} of memory, {self}" if 0 < self.bound < used else ""

    def __str__(self) -> str:
        if self.bound == self.size:
            return f"{self.key} is {mebibytes(self.size)}"
        share = f"its part of the container's limit of {mebibytes(self.of)} is {mebibytes(self.bound)}"
        return f"{share} ({self.key} is {mebibytes(self.size) if self.size else 'none'})"


def _lower(one: int, other: int) -> int:
    """The lower of two limits, each 0 for none."""
    return min(one or other, other or one)


def limits(
    sizes: Mapping[str, int], of: int, kept: Mapping[str, MemoryLimit] | None = None
) -> Mapping[str, MemoryLimit]:
    """The limit of each vendor, from the configured `sizes` by name and the container's limit `of`.

    In a container with a limit, all vendors and the agent together stay below it: small limits are granted,
    and the other vendors have equal parts of the rest. `kept` are the limits of running processes. Each stays
    while all fit together, and otherwise only if it is no higher than the vendor's new one.
    """
    new = _anew(sizes, of)
    mixed = {**new, **{name: it for name, it in (kept or {}).items() if name in new}}
    if not of or sum(it.wall for it in mixed.values()) <= _left(of):
        return mixed
    return {name: min(mixed[name], new[name], key=lambda it: it.wall) for name in new}


def _left(of: int) -> int:
    """The part of the container's limit that is left for vendors."""
    return of - min(AGENT_BYTES, of // 2)


def _anew(sizes: Mapping[str, int], of: int) -> Mapping[str, MemoryLimit]:
    if not of:
        return {name: MemoryLimit(size, _key(name)) for name, size in sizes.items()}
    left, found = _left(of), {}
    for count, (name, size) in enumerate(sorted(sizes.items(), key=lambda it: (it[1] or of, it[0]))):
        equal = left // (len(sizes) - count)
        part = min(size + ADDRESS_ROOM_BYTES, equal) if size else equal
        found[name] = MemoryLimit(size, _key(name), part, of)
        left -= part
    return found


def _key(vendor: str) -> str:
    return f"vendors.{vendor}.memoryLimit"


def used(pid: int) -> int:
    """Bytes of the process's own memory; 0 if it is gone."""
    # Each second: a buffer and text would cost a third more.
    with suppress(OSError), open(f"/proc/{pid}/status", "rb", buffering=0) as status:
        return sum(map(int, OWN_MEMORY_KB.findall(status.read(STATUS_BYTES)))) << 10
    return 0


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB"
