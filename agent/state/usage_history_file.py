"""The file that keeps what containers used in each minute over a restart."""

from __future__ import annotations

from pathlib import Path

import structlog

from agent.core.usage.minute_history import SavedMinutes, UsageHistory
from agent.state import file_formats
from agent.state.damaged_files import set_aside
from agent.state.file_envelope import Unusable
from agent.state.sealed_file import SealedFile

log = structlog.get_logger(__name__)

#: The file's name in the state directory.
NAME = "agent.usage-history.json"
#: 256 histories of a day take 3 MB.
MAX_BYTES = 8 << 20


class UsageHistoryFile:
    """The file, 0600. A broken one is set aside, and the history begins empty."""

    def __init__(self, state_dir: Path) -> None:
        shape = tuple[SavedMinutes, ...]
        self._file = SealedFile(state_dir / NAME, shape, file_formats.USAGE_HISTORY, MAX_BYTES)

    def read(self) -> UsageHistory:
        """The history in the file; an empty one where there is none that can be used."""
        try:
            return _history(self._file.read() or ())
        except Unusable as exc:
            moved = set_aside(self._file.path, exc, "the history of use begins empty")
            log.warning("usage history set aside", error=moved.message)
            return UsageHistory()

    def write(self, saved: tuple[SavedMinutes, ...]) -> None:
        """Replace the file.

        Raises:
            OSError: The disk does not take it.
            ValueError: A text is no UTF-8.
        """
        self._file.write(saved)


def _history(saved: tuple[SavedMinutes, ...]) -> UsageHistory:
    try:
        return UsageHistory(saved)
    except ValueError as exc:
        raise Unusable("corrupt", f"its minutes make no sense ({exc})") from exc
