"""The labels of the Node that Enflame's gcu-feature-discovery writes, as far as they follow from the cards.

Pure; the agent adds the time and the machine. Source: Enflame's manual of gcu-feature-discovery, which shows
memory 41984, family SCORPIO and product scorpio for an S60.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agent.vendor_api.agent import Device, ResourceRule
from agent.vendor_api.label_values import label_value
from agent.vendors.enflame.shared import constants

from .names import Brand


def labels(brand: Brand, _: Sequence[ResourceRule], devices: Sequence[Device]) -> Mapping[str, str]:
    """The number of cards, and each property that all cards have in common."""
    if not devices:
        return {}
    arch = _common(it.attributes.get(constants.ARCH, "") for it in devices)
    found = {
        "present": "true",
        "count": str(len(devices)),
        "memory": _common(str(it.memory >> 20) if it.memory else "" for it in devices),
        "model": _common(it.model for it in devices),
        "family": arch.upper(),
        "product": arch.lower(),
        "driverVer": _common(it.attributes.get(constants.DRIVER_VERSION, "") for it in devices),
    }
    return {f"{brand.whole}.{name}": label_value(text) for name, text in found.items() if text}


def time(brand: Brand) -> str:
    """The label that says when the labels were made."""
    return f"{brand.domain}/gfd.timestamp"


def machine(brand: Brand) -> str:
    """The label that names the machine's model."""
    return f"{brand.whole}.machine"


def _common(texts: Iterable[str]) -> str:
    distinct = set(texts) - {""}
    return distinct.pop() if len(distinct) == 1 else ""
