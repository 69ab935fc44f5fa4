"""Keeps EFML from changing the signal handling of this process.

EFML uses SIGUSR1 and SIGUSR2 for itself. Enflame's binding ignores both before it loads the library
(go-eflib, efml_bindings.go), because otherwise such a signal ends the process. What the library does about
other signals is not published, so every change that it makes while it loads and starts is undone.

This module calls libc, because Python's signal module works in the main thread only.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
#: Bytes for a `struct sigaction`, more than any platform needs. Its content is saved and restored as it is.
ROOM = 256
_IGNORE = 1


@contextmanager
def kept() -> Iterator[None]:
    """Ignore EFML's signals for good, and restore the handling of every signal at the end of the block."""
    libc = ctypes.CDLL(None)
    action = libc.sigaction
    action.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    for ignored in IGNORED:
        libc.signal(ignored, _IGNORE)
    before = {int(it): ctypes.create_string_buffer(ROOM) for it in signal.valid_signals()}
    for number, buffer in before.items():
        action(number, None, buffer)
    try:
        yield
    finally:
        for number, buffer in before.items():
            action(number, buffer, None)  # fails for SIGKILL and SIGSTOP, which nothing can change
