"""Loads a vendor's shared library from the first of its places that has one."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence

from agent.vendor_api.backend import LIBRARY_NOT_FOUND, LIBRARY_UNUSABLE

#: glibc's English words; a process that sets no locale hears no others.
_MISSING = f"cannot open shared object file: {os.strerror(errno.ENOENT)}"


class NotLoaded(Exception):
    """Raised when no file of the given names could be loaded.

    `reason` is LIBRARY_NOT_FOUND, or LIBRARY_UNUSABLE where a file is there. `refused` are the loader's
    texts in the order of the names, `empty` the directories that have no such file.
    """

    def __init__(self, reason: str, refused: Sequence[str], empty: Sequence[str]) -> None:
        super().__init__("; ".join(refused))
        self.reason, self.refused, self.empty = reason, tuple(refused), tuple(dict.fromkeys(empty))


def load(names: Sequence[str], open_file: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """Load the first of these files. `open_file` opens one, and raises OSError with the loader's text.

    Of several names, a path without a file is passed over; a name without a slash is the loader's to find.

    Raises:
        NotLoaded: None of the files could be loaded.
    """
    reason = LIBRARY_NOT_FOUND
    refused, empty = [], []
    for name in names:
        if "/" in name and len(names) > 1 and not os.path.exists(name):
            empty.append(os.path.dirname(name))
            continue
        try:
            return open_file(name)
        except OSError as error:
            refused.append(str(error))
            reason = reason if is_missing(name, error) else LIBRARY_UNUSABLE
    raise NotLoaded(reason, refused, empty)


def is_missing(name: str, error: OSError) -> bool:
    """Whether the loader refused a name because no file is there; of a bare name only the loader knows."""
    if "/" in name:
        return not os.path.exists(name)
    return str(error) == f"{name}: {_MISSING}"
