"""A file that holds one value, sealed so that damage is not read as it."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

from agent import files
from agent.state import private
from agent.state.envelope import Unusable, opened, sealed
from agent.state.formats import Formats

T = TypeVar("T")

#: In the state directory: the last configuration that was in force.
LAST_CONFIG = "agent.last-config.json"


class SealedFile(Generic[T]):
    """One file, 0600, in the state directory. What can not be used is overwritten by the next value."""

    def __init__(self, path: Path, shape: type[T], formats: Formats, limit: int) -> None:
        """`limit`: the bytes that it may have."""
        self.path = path
        self._shape = shape
        self._formats = formats
        self._limit = limit

    def read(self) -> T | None:
        """The value; None where there is no such file.

        Raises:
            Unusable: It can not be read, or holds no such value; the text names the file.
        """
        try:
            return self._read()
        except FileNotFoundError:
            return None
        except Unusable as exc:
            raise Unusable(exc.why, f"{self.path}: {exc}") from exc
        except OSError as exc:
            raise Unusable("unreadable", f"{self.path}: can not be read: {exc.strerror}") from exc

    def write(self, value: T) -> None:
        """Replace the file; it survives a power cut then.

        Raises:
            OSError: The disk does not take it.
            ValueError: A text in it is no UTF-8.
        """
        private.replace(self.path, sealed(value, self._formats), durable=True)

    def _read(self) -> T:
        text = files.read(self.path, self._limit, links=False)
        if len(text) > self._limit:
            raise Unusable("foreign", f"larger than {self._limit} bytes")
        return opened(text, self._shape, self._formats)
