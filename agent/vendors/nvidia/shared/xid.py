"""The XID policy: which driver errors make a card unhealthy, what they mean and what ends them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from agent.vendor_api.backend import Fault, Proof

#: Errors of applications that leave the card usable: the six that NVIDIA's own device plugin ignores.
IGNORED = frozenset({13, 31, 43, 45, 68, 109})
#: The driver asks for another recovery action than before. The action itself is read by another call.
RECOVERY_ACTION_CHANGED = 154

#: All proofs that a card has started afresh. They also hold for a card that fell off the bus: it comes back
#: only when the bus is reset or the driver finds it again.
FRESH_START = (Proof.RESET, Proof.DRIVER_RELOAD, Proof.REBOOT, Proof.OPERATOR)
#: The proofs for XIDs that need more than a reset of the card.
BY_HAND = (Proof.REBOOT, Proof.OPERATOR)


class Action(StrEnum):
    """NVIDIA's immediate action for an XID, in words for operators."""

    APP = "restart the application, and reset the card when convenient"
    RESET = "reset the card"
    REBOOT = "reboot the node"
    RESTART_VM = "restart the virtual machine"
    CHECK_POWER = "check the card's seating and power connection"
    UPDATE = "update driver and firmware"
    SUPPORT = "ask NVIDIA support"
    NONE = "nothing has to be done; where disableHealthChecks names it, such a card stays in service"


CLEARED_BY: Mapping[Action, tuple[Proof, ...]] = {
    Action.RESTART_VM: BY_HAND,
    Action.CHECK_POWER: BY_HAND,
}

#: Names and actions after NVIDIA's XID catalog (docs.nvidia.com/deploy/xid-errors, 2026), without the XIDs
#: that the catalog calls unused. A card with an XID of a mild action, or of none, is unhealthy nevertheless,
#: as in NVIDIA's plugin.
CATALOG: Mapping[int, tuple[str, Action]] = {
    **dict.fromkeys((14, 37, 38, 44, 141, 152, 153, 157, 160, 161), ("harmless event", Action.NONE)),
    **dict.fromkeys((66, 67), ("illegal access by the driver", Action.NONE)),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), ("copy engine exception", Action.APP)),
    **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), ("video decoder exception", Action.APP)),
    **dict.fromkeys((82, *range(99, 106)), ("JPEG decoder exception", Action.APP)),
    **dict.fromkeys((86, 139), ("optical flow exception", Action.APP)),
    **dict.fromkeys((106, 107, 108), ("test message of the management bus", Action.NONE)),
    **dict.fromkeys(range(126, 136), ("copy engine exception", Action.APP)),
    8: ("GPU stopped processing", Action.APP),
    11: ("invalid or corrupted push buffer stream", Action.APP),
    13: ("graphics engine exception", Action.APP),
    25: ("invalid or illegal push buffer stream", Action.APP),
    31: ("GPU memory page fault", Action.APP),
    32: ("invalid or corrupted push buffer stream", Action.APP),
    43: ("GPU stopped processing", Action.APP),
    45: ("preemptive cleanup after an earlier error", Action.APP),
    46: ("GPU stopped processing", Action.RESET),
    48: ("double-bit ECC error", Action.RESET),
    54: ("auxiliary power is not connected", Action.CHECK_POWER),
    60: ("video processor exception", Action.APP),
    62: ("internal micro-controller halt", Action.RESET),
    63: ("memory page retired or row remapped", Action.NONE),
    64: ("memory remapping failure", Action.RESET),
    68: ("video decoder exception", Action.APP),
    69: ("graphics engine class error", Action.APP),
    74: ("NVLink error", Action.RESET),
    78: ("vGPU start error", Action.UPDATE),
    79: ("GPU has fallen off the bus", Action.REBOOT),
    80: ("corrupted data sent to the GPU", Action.APP),
    92: ("many corrected memory errors", Action.NONE),
    93: ("InfoROM wear limit", Action.NONE),
    94: ("contained memory error", Action.APP),
    95: ("uncontained memory error", Action.RESET),
    109: ("context switch timeout", Action.RESET),
    110: ("security fault", Action.RESET),
    119: ("GSP RPC timeout", Action.RESET),
    120: ("GSP error", Action.RESET),
    121: ("corrected error of the C2C link", Action.NONE),
    136: ("link training failed", Action.RESET),
    137: ("NVLink access without privilege", Action.NONE),
    140: ("unrecovered ECC error", Action.RESET),
    142: ("video encoder error", Action.SUPPORT),
    143: ("GPU initialization error", Action.RESET),
    144: ("NVLink SAW error", Action.RESET),
    145: ("NVLink RLW error", Action.RESET),
    146: ("NVLink TLW error", Action.RESET),
    147: ("NVLink TREX error", Action.RESET),
    148: ("NVLink NVLPW_CTRL error", Action.RESET),
    149: ("NVLink NETIR error", Action.RESET),
    150: ("NVLink MSE error", Action.RESET),
    151: ("key rotation error", Action.RESTART_VM),
    154: ("GPU recovery action changed", Action.RESET),
    155: ("NVLink error defined by software", Action.RESET),
    156: ("resource retirement", Action.RESET),
    158: ("GPU fatal timeout", Action.RESET),
    167: ("PCIe fatal timeout", Action.RESET),
    169: ("internal micro-controller halt", Action.RESET),
    171: ("uncorrectable DRAM error", Action.RESET),
    172: ("uncorrectable SRAM error", Action.RESET),
}
UNLISTED = ("not in our table", Action.RESET)


def fault(code: int) -> Fault:
    """The fault of a card that reported this XID. It stays until the card had a fresh start."""
    name, action = CATALOG.get(code, UNLISTED)
    return Fault(
        reason=f"xid-{code}",
        message=f"XID {code}: {name}; {action}",
        cleared_by=CLEARED_BY.get(action, FRESH_START),
    )
