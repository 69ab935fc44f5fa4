"""The labels of the Node that MetaX's gpu-label writes, as far as they follow from the cards. Pure.

Labels that say that a part of MetaX's stack is ready (driver.ready, maca.ready) are left to that stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from agent.vendor_api.agent import Device, ResourceRule
from agent.vendor_api.label_values import label_value
from agent.vendors.metax.agent.names import GPU
from agent.vendors.metax.shared import constants

_DRIVER = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_FAMILY = re.compile(r"[A-Za-z]+")
_GIB = 1 << 30


def labels(_: Sequence[ResourceRule], devices: Sequence[Device]) -> Mapping[str, str]:
    """Product, family, memory and driver, each where all cards have the same."""
    cards = [it for it in devices if it.parent is None]
    product = _common(it.model for it in cards)
    family = _FAMILY.match(product)
    memory = _common(str(-(-it.memory // _GIB)) if it.memory else "" for it in cards)
    driver = _DRIVER.match(_common(it.attributes.get(constants.DRIVER_VERSION, "") for it in cards))
    found = {
        "product": label_value(product),
        "family": family[0] if family else "",
        "memory": f"{memory}GB" if memory else "",
        **{
            f"driver.{part}": driver[n] or ""
            for n, part in enumerate(("major", "minor", "patch"), 1)
            if driver
        },
    }
    return {f"{GPU}.{name}": value for name, value in found.items() if value}


def _common(texts: Iterable[str]) -> str:
    distinct = set(texts) - {""}
    return distinct.pop() if len(distinct) == 1 else ""
