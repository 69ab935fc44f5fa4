"""Loads a vendor's shared library from the first of several places that has the file."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence

from agent.vendor_api.backend import LIBRARY_NOT_FOUND, LIBRARY_UNUSABLE

#: glibc's English text: a process that sets no locale gets no other language.
_MISSING = f"cannot open shared object file: {os.strerror(errno.ENOENT)}"


class NotLoaded(Exception):
    """Raised when none of the named files could be loaded.

    `reason` is LIBRARY_NOT_FOUND, or LIBRARY_UNUSABLE if one of the files exists. `refused` are the loader's
    texts in the order of the names. `empty` are the directories without such a file.
    """

    def __init__(self, reason: str, refused: Sequence[str], empty: Sequence[str]) -> None:
        super().__init__("; ".join(refused))
        self.reason, self.refused, self.empty = reason, tuple(refused), tuple(dict.fromkeys(empty))


def load(names: Sequence[str], open_file: Callable[[str], ctypes.CDLL]) -> ctypes.CDLL:
    """Load the first of these files that can be loaded.

    `open_file` opens one file, and raises OSError with the loader's text. Among several names, a path without
    a file is skipped. The loader searches for a name without a slash.

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
    """Whether the loader refused a name because there is no file.

    For a name without a slash the loader's text is the only source.
    """
    if "/" in name:
        return not os.path.exists(name)
    return str(error) == f"{name}: {_MISSING}"
