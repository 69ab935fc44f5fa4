"""Errors of EFML's functions, and why EFML as a whole is not usable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import DRIVER_NOT_LOADED, BackendUnavailable

from . import abi
from .abi import Code, HandleCode

_UNSUPPORTED = (Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.DEPRECATION)
_UNSUPPORTED_BY_HANDLE = (HandleCode.NOT_SUPPORTED, HandleCode.FUNCTION_NOT_FOUND, HandleCode.DEPRECATED)
_GONE_BY_HANDLE = (HandleCode.GCU_IS_LOST, HandleCode.GCU_NOT_FOUND, HandleCode.NOT_FOUND)


class EfmlError(Exception):
    """Raised when a call of EFML fails.

    `code` is an abi.Code or an abi.HandleCode, by the family of the function, or an unknown number. The same
    number means other things in the other family: use the properties, or check `by_index` first.
    `numbers` are the integer arguments of the call.
    """

    def __init__(self, call: str, code: int, text: str = "", numbers: Sequence[int] = ()) -> None:
        arguments = ", ".join(map(str, numbers))
        self.call, self.text, self.by_index = call, text, abi.by_index(call)
        self.code = _known(code, by_index=self.by_index)
        super().__init__(f"{call}({arguments}) answers {int(code)}, {text or _words(self.code)}")

    @property
    def unsupported(self) -> bool:
        """Whether this card, or this build of the library, does not support the call."""
        return self.code in (_UNSUPPORTED if self.by_index else _UNSUPPORTED_BY_HANDLE)

    @property
    def gone(self) -> bool:
        """Whether the code says that the card is gone.

        Assumption: the index family says so by NO_DEVICE. FAIL and INVALID_ARGUMENT may mean the same, so a
        backend must also ask `standing` and sysfs.
        """
        return self.code == Code.NO_DEVICE if self.by_index else self.code in _GONE_BY_HANDLE

    @property
    def reset_required(self) -> bool:
        """Whether the code says that the card needs a reset."""
        return not self.by_index and self.code == HandleCode.RESET_REQUIRED


def unavailable(error: EfmlError, otherwise: str = "efml-init") -> BackendUnavailable:
    """The error for the agent when EFML does not start or list cards.

    `otherwise` is the reason for an error code that has no reason of its own.
    """
    codes: Mapping[Any, str] = _REFUSALS if error.by_index else _REFUSALS_BY_HANDLE
    match codes.get(error.code, otherwise):
        case "driver-not-loaded":
            return BackendUnavailable(DRIVER_NOT_LOADED, f"EFML is there, the kernel driver is not: {error}")
        case "driver-library-mismatch" as reason:
            text = f"library and kernel driver do not go together: install both from one release ({error})"
            return BackendUnavailable(reason, text)
        case "no-permission" as reason:
            return BackendUnavailable(reason, f"EFML may not open /dev/gcuctl: allow the device ({error})")
        case reason:
            return BackendUnavailable(reason, f"EFML answers: {error}")


#: Assumption: OPEN_DRIVER_VERSION means that the driver's version file is missing, so no driver is loaded.
_REFUSALS = {
    Code.DRIVER_NOT_LOADED: DRIVER_NOT_LOADED,
    Code.OPEN_DRIVER_VERSION: DRIVER_NOT_LOADED,
    Code.DRIVER_NOT_COMPATIBLE: "driver-library-mismatch",
    Code.NO_DEVICE: "no-device",
}
_REFUSALS_BY_HANDLE = {
    HandleCode.DRIVER_NOT_LOADED: DRIVER_NOT_LOADED,
    HandleCode.VERSION_MISMATCH: "driver-library-mismatch",
    HandleCode.NO_PERMISSION: "no-permission",
    HandleCode.OPERATING_SYSTEM: "no-permission",
    HandleCode.GCU_NOT_FOUND: "no-device",
}


def _known(code: int, *, by_index: bool) -> int:
    try:
        return Code(code) if by_index else HandleCode(code)
    except ValueError:
        return code


def _words(code: int) -> str:
    return code.name.lower().replace("_", " ") if isinstance(code, Code | HandleCode) else "no text"
