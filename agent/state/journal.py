"""The journal: what changed in the ledger since the checkpoint was written, appended change by change."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from agent.core.allocation.ledger_change import LedgerChange
from agent.core.model import Allocation
from agent.state import damaged_files, journal_records, sealed_file
from agent.state.damaged_files import SetAside
from agent.state.file_envelope import Unusable
from agent.state.journal_records import JournalEnd, Replay

log = structlog.get_logger()

#: The file's name in the state directory.
JOURNAL = "checkpoint.journal"
MAX_BYTES = 64 << 20
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: Errors of `open` that say that the path has something else than the file, or nothing.
_NOT_THE_FILE = frozenset({errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})


class JournalLost(Exception):
    """Raised if the file is not as the agent left it, or full, so that nothing can be appended."""


class Journal:
    """One file, 0600, beside the checkpoint. Each append opens the file: it may be gone, or another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The checksum of the checkpoint that the next journal continues; empty before the first checkpoint.
        self._continues = ""
        #: Where the next line begins; None where nothing can be appended before the next checkpoint.
        self._end: JournalEnd | None = None
        #: The checksum in the last line, if that names a checkpoint that was about to be written.
        self._noted = ""
        #: Whether an unusable file could not be moved aside; it is not removed.
        self._in_the_way = False

    @property
    def size(self) -> int:
        """Bytes of the file; 0 where there is none, or where nothing can be appended."""
        return self._end.size if self._end is not None else 0

    def replay(self, checksum: str, allocations: Sequence[Allocation]) -> Replay | None:
        """The allocations of the checkpoint with this checksum, and the changes since; None without a file.

        Raises:
            Unusable: The file is no journal of this checkpoint.
            StateError: The file may not be read.
        """
        try:
            content = sealed_file.content(self.path, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise damaged_files.unreadable(self.path, exc) from exc
        replay = journal_records.replayed(content, checksum, allocations)
        self._end = replay.end  # a longer file has an incomplete line, and nothing is appended to that
        return replay

    def set_aside(self, exc: Unusable, then: str) -> SetAside:
        """Move the file aside, if possible; `then` says how the agent goes on without the file."""
        self._end = None
        aside = damaged_files.set_aside(self.path, exc, then)
        self._in_the_way = not aside.aside
        return aside

    def leave(self, exc: Unusable, then: str) -> SetAside:
        """Leave the file until there is a new checkpoint; `then` says how the agent goes on."""
        self._end, self._in_the_way = None, True
        kept = "it is set aside once the checkpoint can be written"
        return SetAside(self.path, exc.why, f"{self.path}: {exc}; {kept}; {then}")

    def append(self, changes: Sequence[LedgerChange]) -> None:
        """Append the changes, in one write.

        Raises:
            JournalLost: The file is not as it was left, also where there is nothing to append, or it is full.
            OSError: The disk does not take the changes. What stood in the file before is still there.
            ValueError: A text of an allocation is no UTF-8.
        """
        if self._end is None:
            raise JournalLost
        if not changes:
            self._check(self._end)
            return
        payloads = [journal_records.change(it) for it in changes]
        if not self._end.size:
            payloads = [journal_records.header(self._continues), *payloads]
        self._write(payloads, self._end)
        self._noted = ""

    def _check(self, end: JournalEnd) -> None:
        """Check that the file ends at `end`; without a file there is no end."""
        try:
            size = os.lstat(self.path).st_size
        except OSError:
            size = 0
        if size != end.size:
            raise JournalLost

    def note_checkpoint(self, checksum: str) -> None:
        """Note that a checkpoint with this checksum and all changes is about to be written.

        An agent that is killed before the journal is removed does not take it for another checkpoint's.
        """
        if self._end is not None and self._end.size and checksum != self._noted:
            with suppress(OSError, JournalLost):  # a journal that lacks the note is set aside, and not wrong
                self._write([journal_records.folded(checksum)], self._end)
                self._noted = checksum

    def begin(self, checksum: str) -> None:
        """Remove the file: all its changes are in the checkpoint with this checksum, which comes next."""
        self._continues, self._end = checksum, None
        try:
            if self._in_the_way:
                moved = damaged_files.move(self.path)
                log.info(
                    "journal set aside after earlier tries failed", path=str(self.path), aside=moved.name
                )
            else:
                self.path.unlink()
        except FileNotFoundError:
            pass
        except OSError:
            # A directory, for instance. Each change writes the checkpoint until the path is free.
            self._in_the_way = True
            return
        self._in_the_way = False
        self._end = JournalEnd()

    def _write(self, payloads: Sequence[bytes], end: JournalEnd) -> None:
        text, after = journal_records.lines(payloads, end)
        if after.size > MAX_BYTES:
            raise JournalLost  # the next start would not read the file
        descriptor = self._open(end)
        try:
            self._append(descriptor, text, end)
        finally:
            os.close(descriptor)
        self._end = after  # where this is not reached, the size shows at the next write what is in the file

    def _append(self, descriptor: int, text: bytes, end: JournalEnd) -> None:
        """Write all, or nothing as far as the disk can be made to forget a part."""
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            with suppress(OSError):
                if end.size:
                    os.ftruncate(descriptor, end.size)
                else:
                    self.path.unlink()
            raise

    def _open(self, end: JournalEnd) -> int:
        """Open the file, which must end at `end`; a file that would end at 0 is made."""
        flags = _FLAGS if end.size else _FLAGS | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as exc:
            if exc.errno in _NOT_THE_FILE:
                raise JournalLost from exc
            raise
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_size == end.size:
            return descriptor
        os.close(descriptor)
        raise JournalLost
