"""The checkpoint: allocations and health on disk, so that a restart continues where it was."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from agent.core.devices.health_rules import HealthRecord
from agent.core.errors import StateError
from agent.core.model import Allocation, AllocationSource, AllocationState, Cordon, FirstList
from agent.state import damaged_files, private_files, state_directory
from agent.state.checkpoint_encoder import Encoder
from agent.state.damaged_files import SetAside
from agent.state.file_envelope import Unusable, sealed
from agent.state.sealed_file import read
from agent.vendor_api.agent import Device

log = structlog.get_logger()

#: Its name in the state directory.
CHECKPOINT = "checkpoint.json"
MAX_BYTES = 64 << 20
_WITHOUT = "starting without it: owners are read from the kubelet again, faults and cordons are lost"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class SavedState:
    """What outlives the process."""

    boot_id: str = ""
    allocations: tuple[Allocation, ...] = ()
    health: Mapping[str, HealthRecord] = field(default_factory=dict)
    #: Vendor to its devices as they last told their names.
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)
    #: Device uuid to the operator's word.
    cordons: Mapping[str, Cordon] = field(default_factory=dict)
    #: The labels of the Node that decided the configuration, None of one that it did not have; and the name
    #: of the configuration, of a directory of them. A node starts with these while the API server is away.
    labels: Mapping[str, str | None] = field(default_factory=dict)
    config: str = ""
    #: Whom the kubelet found as it began, for agents that start later in its life.
    first: FirstList | None = None


class CheckpointFile:
    """One file, 0600, in a directory of ours, 0700. Never in the kubelet's directory, which it empties."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = Encoder()
        #: A file that could not be moved aside: nothing is written in its place before it is.
        self._in_the_way = False

    def load(self) -> tuple[SavedState, SetAside | None]:
        """The saved state, or an empty one and why the file was set aside.

        Raises:
            StateError: There is a file that may not be read. To start without it would call faulty cards
                healthy, and what forbids it does not pass by itself.
        """
        if complaint := state_directory.close_to_others(self.path.parent):
            log.warning("state directory open to others", error=complaint, remedy="chmod 0700")
        try:
            return self._read(), None
        except FileNotFoundError:
            return SavedState(), None
        except Unusable as exc:
            return SavedState(), self._set_aside(exc)

    def peek(self) -> SavedState:
        """The saved state, for who may not hold the lock; an empty one where it cannot be read."""
        try:
            return self._read()
        except (FileNotFoundError, Unusable, StateError):
            return SavedState()

    def save(self, state: SavedState, *, durable: bool) -> None:
        """Replace the file. `durable` also survives a power cut.

        Raises:
            OSError: The directory is full, read-only or gone; the old file is untouched. Where only its
                directory could not be synced, the new one is in place.
            ValueError: A text of the state is no UTF-8.
        """
        text = sealed(self._encoder.content(state))
        if self._in_the_way:
            self._make_way()
        private_files.replace(self.path, text, durable=durable)

    def _read(self) -> SavedState:
        try:
            saved = read(self.path, SavedState, MAX_BYTES)
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise self._unreadable(exc) from exc
        return replace(saved, allocations=tuple(map(_loaded, saved.allocations)))

    def _unreadable(self, exc: OSError) -> Unusable:
        found = exc.strerror or str(exc)
        with suppress(OSError):
            if not stat.S_ISREG(self.path.lstat().st_mode):
                return Unusable("foreign", found)
        if exc.errno == errno.EIO:
            return Unusable("unreadable", f"the disk cannot read it ({found})")
        raise StateError(self.path, f"cannot be read: {found}") from exc

    def _set_aside(self, exc: Unusable) -> SetAside:
        try:
            name = damaged_files.move(self.path).name
        except OSError as refusal:
            self._in_the_way = True
            kept = f"it cannot be set aside ({refusal.strerror}) and is not overwritten before it is"
            return SetAside(self.path, exc.why, f"{self.path}: {exc}; {kept}; {_WITHOUT}")
        return SetAside(self.path, exc.why, f"{self.path}: {exc}; set aside as {name}, {_WITHOUT}", name)

    def _make_way(self) -> None:
        with suppress(FileNotFoundError):  # a person did
            moved = damaged_files.move(self.path)
            log.info("checkpoint set aside at last", path=str(self.path), aside=moved.name)
        self._in_the_way = False


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _loaded(it: Allocation) -> Allocation:
    if it.source is AllocationSource.ANNOTATION and it.state is not AllocationState.RELEASED:
        return replace(it, reason="")  # who else has its card is found anew, once the pods are known
    return replace(it, source=AllocationSource.CHECKPOINT) if it.source is AllocationSource.ALLOCATE else it
