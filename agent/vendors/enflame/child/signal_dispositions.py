"""Keeps EFML from changing what this process does about signals.

EFML has a use of its own for SIGUSR1 and SIGUSR2, and Enflame's binding ignores both before it loads the
library (go-eflib, efml_bindings.go): otherwise one that comes ends the process. What the library does about
other signals nothing public tells; whatever it changes while it loads and starts is changed back.

Through libc, because Python's own signal module works in the main thread alone.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
#: More than a `struct sigaction` has anywhere; it is kept and given back unread.
ROOM = 256
_IGNORE = 1


@contextmanager
def kept() -> Iterator[None]:
    """Ignore EFML's signals from now on, and undo at the end what was done meanwhile about any signal."""
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
            action(number, buffer, None)  # of SIGKILL and SIGSTOP it fails, and nothing changed them
