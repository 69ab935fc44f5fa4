"""The checkpoint and its journal as one: a short change is appended, any other replaces the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from agent.core.allocation.ledger_change import LedgerChange
from agent.state.checkpoint import CHECKPOINT, CheckpointFile, SavedState, restored
from agent.state.damaged_files import SetAside
from agent.state.file_envelope import Unusable
from agent.state.journal import JOURNAL, Journal, JournalLost
from agent.state.journal_records import Replay

_WITHOUT = "what changed since the checkpoint is read from the kubelet again"

#: Bytes of a journal that is never too long, and times the size of the checkpoint from which it is. An
#: Allocate appends some 400 bytes, and a checkpoint has some 700 for each allocation.
SHORT_JOURNAL, LONG_JOURNAL = 1 << 20, 4
#: Times the size of the checkpoint from which a journal is folded where nothing else is to be written.
IDLE_JOURNAL = 2


class JournaledCheckpoint:
    """The two files as one process writes them. Used by one thread at a time."""

    def __init__(self, state_dir: Path) -> None:
        self._checkpoint = CheckpointFile(state_dir / CHECKPOINT)
        self._journal = Journal(state_dir / JOURNAL)
        #: What was written last, without allocations; None before the first checkpoint of this process.
        self._rest: SavedState | None = None

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self._checkpoint.path

    @property
    def is_long(self) -> bool:
        """Whether the journal is so long that a new checkpoint is due."""
        return self._journal.size > max(SHORT_JOURNAL, LONG_JOURNAL * self._checkpoint.size)

    @property
    def is_worth_folding(self) -> bool:
        """Whether the journal is long enough for a new checkpoint while nothing else is to be done."""
        return self._journal.size > IDLE_JOURNAL * self._checkpoint.size

    def load(self) -> tuple[SavedState, tuple[SetAside, ...]]:
        """Read the saved state. Unusable files are set aside, and the state lacks what they had.

        Raises:
            StateError: A file may not be read. An agent without it would call faulty cards healthy, and a
                missing right stays missing until it is granted.
        """
        saved, aside = self._checkpoint.load()
        found = [] if aside is None else [aside]
        try:
            replay = self._journal.replay(self._checkpoint.checksum, saved.allocations)
        except Unusable as exc:
            found.append(self._journal.set_aside(exc, _WITHOUT))
        else:
            if replay is not None:
                saved = replace(saved, allocations=replay.allocations)
                if replay.damage:
                    found.append(self._without_damage(saved, replay))
        return restored(saved), tuple(found)

    def _without_damage(self, saved: SavedState, replay: Replay) -> SetAside:
        """Set a journal with a damaged line aside, once the changes before that line are in a checkpoint."""
        damage = Unusable("corrupt", replay.damage)
        then = f"{replay.changes} changes before that line are used, and {_WITHOUT}"
        try:
            self._checkpoint.save(saved, durable=False)
        except OSError:
            return self._journal.leave(damage, then)
        return self._journal.set_aside(damage, then)

    def save(
        self, state: SavedState, changes: Sequence[LedgerChange], *, durable: bool, whole: bool = False
    ) -> None:
        """Append the changes to the journal if nothing else has changed, or replace the checkpoint.

        `changes` are all since the last save that raised no error. The first save of a process replaces the
        checkpoint. So does `durable`, with which the whole state survives a power cut, and `whole`.

        Raises:
            OSError: The disk does not take it, and what was written before is untouched. If only the sync of
                the directory failed, the new checkpoint is in place.
            ValueError: A text of the state is no UTF-8.
        """
        rest, changes = replace(state, allocations=()), [it for it in changes if not it.is_empty]
        is_short = rest == self._rest and all(it.is_short for it in changes)
        if durable or whole or not is_short or not self._appended(changes):
            self._checkpoint.save(state, durable=durable, before=self._journal.note_checkpoint)
            self._journal.begin(self._checkpoint.checksum)
            self._rest = rest

    def _appended(self, changes: Sequence[LedgerChange]) -> bool:
        """Append the changes; return whether all of the state is in the files now."""
        if not self._checkpoint.is_in_place:
            return False
        try:
            self._journal.append(changes)
        except (JournalLost, OSError):  # one file may be unwritable on a disk that takes another
            return False
        return True
