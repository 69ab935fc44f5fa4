"""What Koordinator counts of a card.

Source: koordinator apis/extension/device_share.go.
"""

from __future__ import annotations

CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
#: Of a whole card: core and ratio are in percent.
WHOLE = "100"

_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def quantity(size: int) -> str:
    """So many bytes as apimachinery writes them (Quantity, BinarySI): in the largest unit without rest."""
    unit = 0
    while size and not size % 1024 and unit < len(_UNITS) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size}{_UNITS[unit]}"
