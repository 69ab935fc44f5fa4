"""What the simulated vendor writes on the Node. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from agent.vendor_api.agent import Device, Grant, ResourceRule
from agent.vendor_api.label_values import label_value


def labels(resource: str, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> dict[str, str]:
    """The number of devices, and the model and memory (MiB) of most of them: `<resource>.count` and so on."""
    if not devices:
        return {}
    (model, memory), _ = Counter((it.model, it.memory) for it in devices).most_common(1)[0]
    return {
        f"{resource}.count": str(len(devices)),
        f"{resource}.memory": str(memory >> 20),
        f"{resource}.product": label_value(model),
    }


def given_out(
    key: str, rules: Sequence[ResourceRule], devices: Sequence[Device], given: Sequence[Grant]
) -> dict[str, str]:
    """JSON of each allocation with its cards; no annotation without devices."""
    text = json.dumps({it.request.allocation: it.uuids for it in given}, sort_keys=True)
    return {key: text} if devices else {}


def counted(name: str, rules: Sequence[ResourceRule], devices: Sequence[Device]) -> dict[str, int | None]:
    """The number of devices, broken ones included; no resource without devices."""
    return {name: len(devices) or None}
