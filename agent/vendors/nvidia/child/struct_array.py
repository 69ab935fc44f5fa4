"""Takes NVML's lists of structs without pynvml's Python objects, which cost ten times the call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any

#: Structs that a buffer has room for at first, and at most: a broken driver can ask for gigabytes.
ROOM, LIMIT = 128, 1 << 16
#: Processes can start between the call that tells their number and the next one.
ATTEMPTS = 4


class StructArray:
    """A buffer for one kind of struct. The buffer is kept for the next call, and grows to what NVML needs."""

    def __init__(self, nvml: Any, layout: Struct) -> None:
        self._nvml = nvml
        self._layout = layout
        self._room = ROOM
        self._buffer = ctypes.create_string_buffer(ROOM * layout.size)

    def fill(self, call: Callable[[Any, Any], int]) -> list[tuple[int, ...]]:
        """The fields of all structs that `call(buffer, number)` gives.

        `number` points to the room, and then to the number of structs, as in all lists of NVML.

        Raises:
            NVMLError: NVML does not tell the list.
        """
        number = ctypes.c_uint()
        for _ in range(ATTEMPTS):
            number.value = self._room
            code = call(self._buffer, ctypes.byref(number))
            if code != self._nvml.NVML_ERROR_INSUFFICIENT_SIZE or not self._grow(number.value):
                break
        if code != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(code)
        # Not more than there is room for, whatever the driver says.
        size = min(number.value, self._room) * self._layout.size
        return list(self._layout.iter_unpack(memoryview(self._buffer)[:size]))

    def _grow(self, needed: int) -> bool:
        """Make room for more than `needed`; False if that is more than a list can have."""
        if needed > LIMIT:
            return False
        self._room = max(needed, self._room) * 2
        self._buffer = ctypes.create_string_buffer(self._room * self._layout.size)
        return True
