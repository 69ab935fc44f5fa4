"""How much memory a vendor's process may have, and how much it has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK = 1.0  # seconds between two looks
#: Bytes of addresses beyond the limit: stacks of threads and buffers count before anyone touches them.
ROOM = 2 << 30
#: What the agent itself may need where its container has a limit; docs/benchmarks.md says what it has.
AGENT = 256 << 20
#: Of a vendor's part of that, what is kept for a leap between two looks, and for addresses that count though
#: nobody touched them: one of five.
KEPT = 5
#: What of a process is its own (proc_pid_status(5)); pages of files are the kernel's to take back.
OWN = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that a process may have of its own, 0 for any number, and how the configuration calls that.

    `part`: what the vendor may have of the container's limit, which is `of`; 0 where that has none.
    """

    size: int = 0
    key: str = "memoryLimit"
    part: int = 0
    of: int = 0

    @property
    def wall(self) -> int:
        """Bytes at which the kernel refuses more at once (RLIMIT_DATA), for a leap between two looks."""
        return _lower(self.size + ROOM if self.size else 0, self.part)

    @property
    def bound(self) -> int:
        """The bytes that a look may find."""
        return _lower(self.size, self.part - min(self.part // KEPT, ROOM))

    def excess(self, used: int) -> str:
        """What is wrong with having so much; empty where nothing is."""
        return f"used {mebibytes(used)} of memory, {self}" if 0 < self.bound < used else ""

    def __str__(self) -> str:
        if self.bound == self.size:
            return f"{self.key} is {mebibytes(self.size)}"
        its = f"its part of the container's limit of {mebibytes(self.of)} is {mebibytes(self.bound)}"
        return f"{its} ({self.key} is {mebibytes(self.size) if self.size else 'none'})"


def _lower(one: int, other: int) -> int:
    """The lower of two limits, each 0 for none."""
    return min(one or other, other or one)


def limits(
    sizes: Mapping[str, int], of: int, kept: Mapping[str, MemoryLimit] | None = None
) -> Mapping[str, MemoryLimit]:
    """What each vendor may have, by its name and what the configuration says.

    Where all live in a container with a limit, all together and the agent stay below it: who may have little
    has that, and the others have equal parts of what is left. `kept`: the limits of running processes; each
    stays while all together fit, and otherwise where it is no higher than the vendor's new one.
    """
    new = _anew(sizes, of)
    mixed = {**new, **{name: it for name, it in (kept or {}).items() if name in new}}
    if not of or sum(it.wall for it in mixed.values()) <= _left(of):
        return mixed
    return {name: min(mixed[name], new[name], key=lambda it: it.wall) for name in new}


def _left(of: int) -> int:
    """What of the container's limit is for vendors."""
    return of - min(AGENT, of // 2)


def _anew(sizes: Mapping[str, int], of: int) -> Mapping[str, MemoryLimit]:
    if not of:
        return {name: MemoryLimit(size, _key(name)) for name, size in sizes.items()}
    left, found = _left(of), {}
    for count, (name, size) in enumerate(sorted(sizes.items(), key=lambda it: (it[1] or of, it[0]))):
        equal = left // (len(sizes) - count)
        part = min(size + ROOM, equal) if size else equal
        found[name] = MemoryLimit(size, _key(name), part, of)
        left -= part
    return found


def _key(vendor: str) -> str:
    return f"vendors.{vendor}.memoryLimit"


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
