"""The labels of a Node with Acme's cards."""

from collections.abc import Sequence

from agent.vendor_api.agent import Device, ResourceRule


def labels(rules: Sequence[ResourceRule], devices: Sequence[Device]) -> dict[str, str]:
    """The number of cards; no label on a node without cards."""
    return {"acme.com/card.count": str(len(devices))} if devices else {}
