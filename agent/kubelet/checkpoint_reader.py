"""Reads the kubelet's checkpoint again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field

from agent.host import files

from .decoded_checkpoint import DecodedCheckpoint
from .kubelet_checkpoint import WRONG, KubeletCheckpoint
from .kubelet_directory import FileIdentity, identify
from .kubelet_errors import KubeletError

#: A node of 500 pods that hold 100 IDs each has 5 MB.
MAX_SIZE = 64 * 1024 * 1024
#: A file that changed less than this many nanoseconds ago may change again without another time: the kernel
#: stamps files with the time of its last tick, 10 ms at most.
YOUNG_NS = 100_000_000
SECOND_NS = 1_000_000_000


class _LastRead(Struct, frozen=True):
    """What the last read found. `file` is None where a change of the file might not show."""

    decoded: DecodedCheckpoint = field(default_factory=DecodedCheckpoint)
    file: FileIdentity | None = None


class CheckpointReader:
    """Reads the file where it may have changed, and decodes what is new in it. Any thread may call it."""

    def __init__(self, path: Path, now: Callable[[], int] = time.time_ns) -> None:
        """`now` is the clock that stamps files, in nanoseconds."""
        self._path = path
        self._now = now
        #: One value, replaced at once: calls in several threads may decode twice, and never see half of it.
        self._last = _LastRead()

    def read(self, *, prove: bool = True) -> KubeletCheckpoint | None:
        """The content. None where there is no file: the kubelet writes it at the first list that it receives.

        `prove` verifies the checksum. For a node with 500 pods that takes 40 ms of Python, and calls of the
        kubelet wait for the interpreter meanwhile. A caller that reads after each write may leave it out.

        Raises:
            KubeletError: The file cannot be read or is corrupt. The kubelet itself then starts without a
                record.
        """
        try:
            last = self._newest(self._last)
            self._last = last
            decoded = last.decoded.proven() if prove else last.decoded
        except FileNotFoundError:
            self._last = _LastRead()
            return None
        except OSError as exc:
            raise KubeletError(f"{self._path} cannot be read: {exc.strerror}") from exc
        except WRONG as exc:
            raise KubeletError(f"{self._path} is corrupt: {exc}") from exc
        self._last = _LastRead(decoded, last.file)
        return decoded.content

    def _newest(self, last: _LastRead) -> _LastRead:
        # Clock and identity are read before the file: a change since then shows at the next call.
        now, file = self._now(), identify(self._path)
        if file is not None and file == last.file:
            return last
        raw = files.read(self._path, MAX_SIZE)
        if len(raw) > MAX_SIZE:
            raise ValueError(f"more than {MAX_SIZE} bytes")
        return _LastRead(last.decoded.next(raw), file if file and _shows_changes(file, now) else None)


def _shows_changes(file: FileIdentity, now: int) -> bool:
    """Whether each change from `now` on gives the file another identity.

    A time of a whole second may come from a file system that keeps no fractions.
    """
    return now - file.changed_ns >= YOUNG_NS and file.changed_ns % SECOND_NS != 0
