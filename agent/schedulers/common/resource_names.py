"""Koordinator's names of what a card has.

Source: koordinator apis/extension/device_share.go, pkg/scheduler/plugins/deviceshare/utils.go.
"""

from __future__ import annotations

from agent.scheduler_api import Reserved

PREFIX = "koordinator.sh/"
CORE, MEMORY, RATIO = f"{PREFIX}gpu-core", f"{PREFIX}gpu-memory", f"{PREFIX}gpu-memory-ratio"
#: The number of cards over which a pod's amounts are spread; and core and ratio in one number.
SHARED, GPU = f"{PREFIX}gpu.shared", f"{PREFIX}gpu"
#: Resource names of device plugins: the scheduler takes one device as one whole card.
WHOLE_CARDS = frozenset({"nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"})
#: Core and ratio of a whole card, in percent.
WHOLE = "100"
#: koord-manager writes these to the Node, from the Device.
RESERVED = Reserved(
    PREFIX,
    "is Koordinator's own: its manager writes it to the Node, and the kubelet would undo that; name it in a "
    "vendor's domain",
)

_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def quantity(size: int) -> str:
    """The bytes as apimachinery writes a Quantity (BinarySI): in the largest unit without a rest."""
    unit = 0
    while size and not size % 1024 and unit < len(_UNITS) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size}{_UNITS[unit]}"
