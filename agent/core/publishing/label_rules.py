"""Labels of the Node: which labels a vendor makes, which the agent adds, and their file format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from agent.core.errors import VendorError
from agent.vendor_api.agent import Device, ResourceRule, Vendor
from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendor_api.text import shorten


class NodeStamp(Struct, frozen=True):
    """What the agent adds to a vendor's labels: the machine's model, and the time if the config wants it."""

    machine: str = ""
    #: Unix time in seconds.
    time: float | None = None


class VendorLabels(Struct, frozen=True):
    """The labels of all vendors so far.

    `awaited`: the domains (`nvidia.com`) of vendors that have made no labels yet. `trouble`: why the labels
    of other vendors cannot be made.
    """

    labels: Mapping[str, str]
    awaited: frozenset[str] = frozenset()
    trouble: str = ""

    def over(self, current: Mapping[str, str]) -> dict[str, str]:
        """The labels that replace the `current` ones. Current labels of awaited domains stay."""
        return {**{key: it for key, it in current.items() if domain(key) in self.awaited}, **self.labels}


class WantedFeatures(Struct, frozen=True):
    """The labels to publish, and where.

    `published_as` is the setting `report.labelsAs`: labels of the Node, a NodeFeature object or a file for
    node-feature-discovery, or None for nothing.
    """

    published_as: Literal["node", "nodeFeature", "file"] | None = None
    vendor_labels: VendorLabels = field(default_factory=lambda: VendorLabels({}))
    #: The namespace of the NodeFeature object; empty is the namespace of the agent's pod.
    namespace: str = ""
    #: The file for node-feature-discovery; empty where labels are published in another way.
    file: str = ""


def domain(key: str) -> str:
    """The domain of a key: `nvidia.com` for `nvidia.com/gpu.count`; empty where the key has none."""
    return key.rpartition("/")[0]


def vendor_labels(
    vendor: Vendor, rules: Sequence[ResourceRule], devices: Sequence[Device], stamp: NodeStamp
) -> dict[str, str]:
    """The labels of a vendor, with the machine where it has devices, with the time where it has labels.

    Raises:
        VendorError: The vendor's code failed, or made a label that Kubernetes refuses.
    """
    facts = vendor.publishes
    if facts.labels is None:
        return {}
    try:
        labels = dict(facts.labels(rules, devices))
        if devices and facts.machine_label:
            labels[facts.machine_label] = stamp.machine
        if labels and facts.time_label and stamp.time is not None:
            labels[facts.time_label] = str(int(stamp.time))
        wrong = next((why for it in labels.items() if (why := wrong_label(*it))), "")
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = shorten(f"{type(exc).__name__}: {exc}", 300)
    if wrong:
        raise VendorError(f"{vendor.name}: its plugin fails to make labels: {wrong}")
    return labels


def as_lines(labels: Mapping[str, str]) -> str:
    """The labels in the file format of node-feature-discovery: sorted `key=value` lines."""
    return "".join(f"{key}={labels[key]}\n" for key in sorted(labels))


def from_lines(text: str) -> dict[str, str]:
    """Parse a file of node-feature-discovery. A line that is no valid label is skipped."""
    pairs = (line.partition("=")[::2] for line in text.splitlines())
    return {key: value for key, value in pairs if not wrong_label(key, value)}
