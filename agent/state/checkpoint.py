"""The checkpoint: allocations and health on disk, so that a restart continues where it was."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from agent import files
from agent.core.errors import StateError
from agent.core.health import Record
from agent.core.model import Allocation
from agent.core.vendor import Device

FORMAT = 1
#: Set-aside files that are kept for a person to look at.
KEPT_CORRUPT = 5
MAX_BYTES = 64 << 20
#: What the decoder raises on bytes that are not ours: wrong shape, not UTF-8, nested without end.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_WITHOUT = "starting without it; owners are read from the kubelet again"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Saved:
    """What outlives the process."""

    boot_id: str = ""
    allocations: tuple[Allocation, ...] = ()
    health: Mapping[str, Record] = field(default_factory=dict)
    #: Vendor to its devices as they last told their names.
    devices: Mapping[str, tuple[Device, ...]] = field(default_factory=dict)


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checksum: str
    data: msgspec.Raw


class Unusable(Exception):
    """Raised when the file is there and can not be used; the text says what was found."""


class CheckpointFile:
    """One file, 0600, in a directory of ours, 0700. Never in the kubelet's directory, which it empties."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> tuple[Saved, str]:
        """The saved state, and a sentence where a file had to be set aside (the state is empty then).

        Raises:
            StateError: There is a file that can not be read. To start without it would call faulty cards
                healthy, and would overwrite what a person can still mend.
        """
        try:
            return self._read(), ""
        except FileNotFoundError:
            return Saved(), ""
        except Unusable as exc:
            aside = self._set_aside()
            return Saved(), f"{self.path}: {exc}; set aside as {aside}, {_WITHOUT}"
        except OSError as exc:
            raise StateError(self.path, f"can not be read: {exc.strerror}") from exc

    def save(self, state: Saved, *, durable: bool) -> None:
        """Replace the file. `durable` also survives a power cut.

        Raises:
            OSError: The directory is full, read-only or gone; the old file is untouched.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.encode(state)
        text = msgspec.json.encode(_Envelope(FORMAT, _checksum(data), msgspec.Raw(data)))
        fresh = self.path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # one left behind by a crash keeps the mode it had
            file.write(text)
            if durable:
                file.flush()
                os.fsync(descriptor)
        fresh.replace(self.path)
        if durable:
            _sync_directory(self.path.parent)

    def _read(self) -> Saved:
        text = files.read(self.path, MAX_BYTES)
        if len(text) > MAX_BYTES:
            raise Unusable(f"larger than {MAX_BYTES} bytes")
        try:
            envelope = msgspec.json.decode(text, type=_Envelope)
        except UNREADABLE as exc:
            raise Unusable(f"not a checkpoint of ours ({exc})") from exc
        if envelope.version != FORMAT:
            raise Unusable(f"format {envelope.version}, this agent reads {FORMAT}")
        if envelope.checksum != _checksum(bytes(envelope.data)):
            raise Unusable("its checksum does not match, it is torn or was edited")
        try:
            return msgspec.json.decode(envelope.data, type=Saved)
        except UNREADABLE as exc:
            raise Unusable(f"its content is not what the format says ({exc})") from exc

    def _set_aside(self) -> str:
        aside = self.path.with_name(
            f"{self.path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        )
        try:
            self.path.replace(aside)
            for old in sorted(self.path.parent.glob(f"{self.path.name}.corrupt-*"))[:-KEPT_CORRUPT]:
                old.unlink(missing_ok=True)
        except OSError as exc:
            return f"(not moved: {exc.strerror})"
        return aside.name


def boot_id(path: Path = BOOT_ID) -> str:
    """The kernel's id of this boot; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _checksum(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
