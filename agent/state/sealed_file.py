"""A file that holds one value, sealed so that damage is not read as it."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

from agent.host import files
from agent.state import private_files
from agent.state.file_envelope import Unusable, opened, sealed
from agent.state.file_formats import CHECKPOINT, Formats

T = TypeVar("T")


def read(path: Path, shape: type[T], limit: int, formats: Formats = CHECKPOINT) -> T:
    """The value in a file of at most `limit` bytes.

    Raises:
        Unusable: It holds no such value; the text does not name the file.
        OSError: There is none, or it cannot be read.
    """
    text = files.read(path, limit, links=False)
    if len(text) > limit:
        raise Unusable("foreign", f"larger than {limit} bytes")
    return opened(text, shape, formats)


class SealedFile(Generic[T]):
    """One file, 0600, in the state directory. What cannot be used is overwritten by the next value."""

    def __init__(self, path: Path, shape: type[T], formats: Formats, limit: int) -> None:
        """`limit`: the bytes that it may have."""
        self.path = path
        self._shape = shape
        self._formats = formats
        self._limit = limit

    def read(self) -> T | None:
        """The value; None where there is no such file.

        Raises:
            Unusable: It cannot be read, or holds no such value; the text names the file.
        """
        try:
            return read(self.path, self._shape, self._limit, self._formats)
        except FileNotFoundError:
            return None
        except Unusable as exc:
            raise Unusable(exc.why, f"{self.path}: {exc}") from exc
        except OSError as exc:
            raise Unusable("unreadable", f"{self.path}: cannot be read: {exc.strerror}") from exc

    def write(self, value: T) -> None:
        """Replace the file; it survives a power cut then.

        Raises:
            OSError: The disk does not take it.
            ValueError: A text in it is no UTF-8.
        """
        private_files.replace(self.path, sealed(value, self._formats), durable=True)
