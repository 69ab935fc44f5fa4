"""The faults of NVIDIA's cards, from errors of NVML and from the recovery action that the driver asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.vendor_api.backend import Fault, State
from agent.vendors.nvidia.shared.xid import FRESH_START

LOST = Fault("lost", "the card fell off the bus: NVML answers that the GPU is lost", cleared_by=FRESH_START)
RESET_REQUIRED = Fault("reset-required", "NVML answers that the card needs a reset", cleared_by=FRESH_START)
UNAVAILABLE = Fault("unavailable", "the driver made the card unavailable", cleared_by=FRESH_START)
DOUBLE_BIT_ECC = Fault("ecc-double-bit", "double-bit ECC error; reset the card", cleared_by=FRESH_START)
UNMONITORED = Fault("unmonitored", "the card's driver reports no errors", state=State.UNKNOWN)
CHECKS_DISABLED = Fault(
    "checks-disabled",
    "the setting disableHealthChecks (DP_DISABLE_HEALTHCHECKS) disables all health checks",
    state=State.UNKNOWN,
)

#: Values of field 230 (nvmlDeviceGpuRecoveryAction_t): name, and the action in words.
RECOVERY_ACTIONS: Mapping[int, tuple[str, str]] = {
    1: ("reset", "reset the card"),
    2: ("reboot", "reboot the node"),
    3: ("drain-p2p", "stop the work that reaches the card from its peers"),
    4: ("drain-and-reset", "drain the card, then reset it"),
    5: ("recover-imex-domain", "recover the IMEX domain"),
    6: ("bus-reset", "reset the card's bus"),
    7: ("system-reboot", "reboot the system"),
}


def recovery(action: int) -> Fault:
    """Fault of a card for which the driver asks for a recovery action."""
    name, wanted = RECOVERY_ACTIONS.get(action, (str(action), f"recovery action {action}"))
    return Fault(f"recovery-action-{name}", f"the driver asks: {wanted}", cleared_by=FRESH_START)


def recovery_due(fault: Fault | None, action: int | None) -> bool | None:
    """Whether the card needs a recovery, by its fault or by the driver's recovery action; None: unknown."""
    if fault in (LOST, RESET_REQUIRED):
        return True
    return None if action is None else bool(action)


def reading(nvml: Any, error: Any) -> Fault:
    """Fault of a card for which a call of NVML failed with this error."""
    known = {nvml.NVML_ERROR_GPU_IS_LOST: LOST, nvml.NVML_ERROR_RESET_REQUIRED: RESET_REQUIRED}
    return known.get(error.value) or unreadable(error)


def unreadable(error: Exception) -> Fault:
    """Fault of a card for which a call of the library failed."""
    return Fault("unreadable", f"reading the card failed: {error}")


def recovery_action(nvml: Any, handle: Any) -> int | None:
    """The recovery action that the driver asks for now, 0 for none; None if the driver does not support it.

    Raises:
        NVMLError: The card is lost.
    """
    try:
        value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None
    if value.nvmlReturn == nvml.NVML_ERROR_GPU_IS_LOST:
        raise nvml.NVMLError(value.nvmlReturn)
    return None if value.nvmlReturn else int(value.value.uiVal)
