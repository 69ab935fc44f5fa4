"""The checkpoint: allocations and health on disk, so that a restarted agent continues where it stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct, structs

from agent.core.devices.health_rules import HealthRecord
from agent.core.errors import StateError
from agent.core.model import Allocation, AllocationSource, AllocationState, Cordon, FirstList
from agent.state import damaged_files, private_files, sealed_file, state_directory
from agent.state.damaged_files import SetAside
from agent.state.file_envelope import Unusable, checksum_of, opened, sealed
from agent.vendor_api.agent import Device

log = structlog.get_logger()

#: The file's name in the state directory.
CHECKPOINT = "checkpoint.json"
MAX_BYTES = 64 << 20
_WITHOUT = "starting without it: owners are read from the kubelet again, faults and cordons are lost"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SavedState(Struct, frozen=True):
    """The content of the checkpoint."""

    boot_id: str = ""
    allocations: tuple[Allocation, ...] = ()
    health: Mapping[str, HealthRecord] = msgspec.field(default_factory=dict)
    #: The devices of each vendor, as its process reported them last.
    devices: Mapping[str, tuple[Device, ...]] = msgspec.field(default_factory=dict)
    #: The operator's cordons by device UUID.
    cordons: Mapping[str, Cordon] = msgspec.field(default_factory=dict)
    #: The labels of the Node that chose the configuration (None: the Node had no such label), and the name of
    #: the chosen one of several. A node starts with these while the API server is away.
    labels: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    config: str = ""
    #: The kubelet's pods at its start, for agents that start later in the same life of the kubelet.
    first: FirstList | None = None


class Encoder:
    """Caches the JSON of each allocation: an Allocate changes one of a hundred."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Allocation, msgspec.Raw]] = {}

    def content(self, state: SavedState) -> object:
        """A value that msgspec encodes to the same bytes as the state.

        Raises:
            ValueError: A text of the state is no UTF-8.
        """
        encoded = [self._encode(it) for it in state.allocations]
        self._known = {one[0].id: one for one in encoded}
        raw: Any = tuple(text for _, text in encoded)
        return structs.replace(state, allocations=raw)

    def _encode(self, allocation: Allocation) -> tuple[Allocation, msgspec.Raw]:
        known = self._known.get(allocation.id)
        if known is not None and known[0] is allocation:
            return known
        return allocation, msgspec.Raw(msgspec.json.encode(allocation))


class CheckpointFile:
    """One file, 0600, in the state directory, 0700; the kubelet's directory would not do: it is cleared."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = Encoder()
        #: Whether an unusable file could not be moved aside; it is not overwritten.
        self._in_the_way = False
        #: The checksum of the file as it was read or written last; empty before.
        self.checksum = ""
        #: Inode, size and time of the file as it was written last.
        self._written: tuple[int, int, int] | None = None

    def load(self) -> tuple[SavedState, SetAside | None]:
        """Read the saved state; an unusable file is set aside, and gives an empty state.

        Raises:
            StateError: The file may not be read. An agent without it would call faulty cards healthy, and a
                missing right stays missing until it is granted.
        """
        if complaint := state_directory.close_to_others(self.path.parent):
            log.warning("state directory open to others", error=complaint, remedy="chmod 0700")
        try:
            return self._read(), None
        except FileNotFoundError:
            return SavedState(), None
        except Unusable as exc:
            aside = damaged_files.set_aside(self.path, exc, _WITHOUT)
            self._in_the_way = not aside.aside
            return SavedState(), aside

    def peek(self) -> SavedState:
        """The saved state, read without the lock; an empty one where it cannot be read."""
        try:
            return self._read()
        except (FileNotFoundError, Unusable, StateError):
            return SavedState()

    def save(
        self, state: SavedState, *, durable: bool, before: Callable[[str], None] = lambda checksum: None
    ) -> None:
        """Replace the file; with `durable` it also survives a power cut.

        `before` is called with the checksum of the new file before the file is written.

        Raises:
            OSError: The directory is full, read-only or gone, and the old file is untouched. If only the sync
                of its directory failed, the new file is in place.
            ValueError: A text of the state is no UTF-8.
        """
        text = sealed(self._encoder.content(state))
        if self._in_the_way:
            self._make_way()
        checksum = checksum_of(text)
        before(checksum)
        private_files.replace(self.path, text, durable=durable)
        self.checksum, self._written = checksum, _identity(self.path)

    @property
    def is_in_place(self) -> bool:
        """Whether the file is the one that was written last."""
        return self._written is not None and _identity(self.path) == self._written

    @property
    def size(self) -> int:
        """Bytes of the file as it was written last; 0 before."""
        return self._written[1] if self._written is not None else 0

    def _read(self) -> SavedState:
        try:
            text = sealed_file.content(self.path, MAX_BYTES)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise damaged_files.unreadable(self.path, exc) from exc
        saved = opened(text, SavedState)
        self.checksum = checksum_of(text)
        return saved

    def _make_way(self) -> None:
        with suppress(FileNotFoundError):  # an operator moved it
            moved = damaged_files.move(self.path)
            log.info("checkpoint set aside after earlier tries failed", path=str(self.path), aside=moved.name)
        self._in_the_way = False


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's id of this boot; empty where the kernel gives none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def restored(saved: SavedState) -> SavedState:
    """The state for a process that did not write it."""
    return structs.replace(saved, allocations=tuple(map(_restore, saved.allocations)))


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of the file; None where there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _restore(allocation: Allocation) -> Allocation:
    if allocation.source is AllocationSource.ANNOTATION and allocation.state is not AllocationState.RELEASED:
        return replace(allocation, reason="")  # conflicts on its card are found again once pods are known
    if allocation.source is AllocationSource.ALLOCATE:
        return replace(allocation, source=AllocationSource.CHECKPOINT)
    return allocation
