"""What Koordinator counts of a card.

Source: koordinator apis/extension/device_share.go, pkg/scheduler/plugins/deviceshare/utils.go.
"""

from __future__ import annotations

from agent.scheduler_api import Reserved

PREFIX = "koordinator.sh/"
CORE, MEMORY, RATIO = f"{PREFIX}gpu-core", f"{PREFIX}gpu-memory", f"{PREFIX}gpu-memory-ratio"
#: Over how many cards a pod's amounts are spread; and core and ratio in one.
SHARED, GPU = f"{PREFIX}gpu.shared", f"{PREFIX}gpu"
#: Names of device plugins of which the scheduler counts whole cards.
WHOLE_CARDS = frozenset({"nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"})
#: Of a whole card: core and ratio are in percent.
WHOLE = "100"
#: Its manager counts these on the Node by what the Device says.
RESERVED = Reserved(
    PREFIX,
    "is Koordinator's own: its manager writes it to the Node, and the kubelet would undo that; name it in a "
    "vendor's domain",
)

_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def quantity(size: int) -> str:
    """So many bytes as apimachinery writes them (Quantity, BinarySI): in the largest unit without rest."""
    unit = 0
    while size and not size % 1024 and unit < len(_UNITS) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size}{_UNITS[unit]}"
