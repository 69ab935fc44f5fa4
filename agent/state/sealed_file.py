"""A file with one value and a checksum, so that a damaged file is not taken for the value."""

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
        Unusable: The file holds no such value; the text does not name the file.
        OSError: There is no file, or it cannot be read.
    """
    return opened(content(path, limit), shape, formats)


def content(path: Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        Unusable: The file is longer; the text does not name the file.
        OSError: There is no file, or it cannot be read.
    """
    text = files.read(path, limit, links=False)
    if len(text) > limit:
        raise Unusable("foreign", f"larger than {limit} bytes")
    return text


class SealedFile(Generic[T]):
    """One file, 0600, in the state directory. An unusable file is overwritten by the next value."""

    def __init__(self, path: Path, shape: type[T], formats: Formats, limit: int) -> None:
        """`limit`: the most bytes that the file may have."""
        self.path = path
        self._shape = shape
        self._formats = formats
        self._limit = limit

    def read(self) -> T | None:
        """The value; None where there is no file.

        Raises:
            Unusable: The file cannot be read, or holds no such value; the text names the file.
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
        """Replace the file, durably.

        Raises:
            OSError: The disk does not take it.
            ValueError: A text of the value is no UTF-8.
        """
        private_files.replace(self.path, sealed(value, self._formats), durable=True)
