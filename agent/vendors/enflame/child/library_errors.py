"""What EFML answers in place of a value, and what it says where it does not answer at all."""

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

    `code` is of the call's family, abi.Code or abi.HandleCode, or a number that we do not know. Both families
    use the same numbers for other things: ask the properties, or look at `by_index` before comparing.
    `numbers` are those that the call was made with.
    """

    def __init__(self, call: str, code: int, text: str = "", numbers: Sequence[int] = ()) -> None:
        asked = ", ".join(map(str, numbers))
        self.call, self.text, self.by_index = call, text, abi.by_index(call)
        self.code = _known(code, by_index=self.by_index)
        super().__init__(f"{call}({asked}) answers {int(code)}, {text or _words(self.code)}")

    @property
    def unsupported(self) -> bool:
        """Whether this card, or this build, cannot tell or do it."""
        return self.code in (_UNSUPPORTED if self.by_index else _UNSUPPORTED_BY_HANDLE)

    @property
    def gone(self) -> bool:
        """Whether it says that the card is not there.

        That NO_DEVICE is how the index family says it is our assumption; FAIL and INVALID_ARGUMENT may mean
        it, too, so a backend has to ask `standing` and sysfs.
        """
        return self.code == Code.NO_DEVICE if self.by_index else self.code in _GONE_BY_HANDLE

    @property
    def reset_required(self) -> bool:
        """Whether the card works again only after a reset."""
        return not self.by_index and self.code == HandleCode.RESET_REQUIRED


def unavailable(error: EfmlError, otherwise: str = "efml-init") -> BackendUnavailable:
    """Why EFML as a whole does not answer; `otherwise` is the reason of an error without a name."""
    codes: Mapping[Any, str] = _REFUSALS if error.by_index else _REFUSALS_BY_HANDLE
    match codes.get(error.code, otherwise):
        case "driver-not-loaded":
            return BackendUnavailable(DRIVER_NOT_LOADED, f"EFML is there, the kernel driver is not: {error}")
        case "driver-library-mismatch" as reason:
            said = f"library and kernel driver do not go together: install both from one release ({error})"
            return BackendUnavailable(reason, said)
        case "no-permission" as reason:
            return BackendUnavailable(reason, f"EFML may not open /dev/gcuctl: allow the device ({error})")
        case reason:
            return BackendUnavailable(reason, f"EFML answers: {error}")


#: OPEN_DRIVER_VERSION taken for the driver's file of its version not being there is our assumption.
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
