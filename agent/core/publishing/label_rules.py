"""Labels of the Node: what a vendor makes of its devices, what the agent adds, how they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.core.errors import VendorError
from agent.core.kubernetes_names import wrong_label
from agent.vendor_api.agent import Device, ResourceRule, Vendor
from agent.vendor_api.text import shorten


@dataclass(frozen=True, slots=True)
class NodeStamp:
    """What the agent knows and no vendor does: the machine's model, and the time if it is wanted."""

    machine: str = ""
    #: Unix seconds
    time: float | None = None


@dataclass(frozen=True, slots=True)
class VendorLabels:
    """What the vendors made of the devices so far.

    `awaited`: the domains (`nvidia.com`) of those who have not spoken. `trouble`: of those who cannot.
    """

    labels: Mapping[str, str]
    awaited: frozenset[str] = frozenset()
    trouble: str = ""

    def over(self, there: Mapping[str, str]) -> dict[str, str]:
        """What shall stand where `there` stands: of a vendor that has not spoken nothing changes."""
        return {**{key: it for key, it in there.items() if domain(key) in self.awaited}, **self.labels}


@dataclass(frozen=True, slots=True)
class WantedFeatures:
    """What shall be told, and how: by labels of the Node, by others who make such of it, or not at all."""

    told_as: Literal["node", "nodeFeature", "file"] | None = None
    heard: VendorLabels = field(default_factory=lambda: VendorLabels({}))
    #: Of the NodeFeature object; empty is where the agent's pod is.
    namespace: str = ""
    #: The file for node-feature-discovery, where they are told by one.
    file: str = ""


def domain(key: str) -> str:
    """`nvidia.com` of nvidia.com/gpu.count; empty where the key has none."""
    return key.rpartition("/")[0]


def made(
    vendor: Vendor, rules: Sequence[ResourceRule], devices: Sequence[Device], stamp: NodeStamp
) -> dict[str, str]:
    """The labels of a vendor: with the machine where it has devices, with the time where it has labels.

    Raises:
        VendorError: Its code failed, or made what Kubernetes refuses.
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
    """The labels as node-feature-discovery reads them: `key=value` lines, in a steady order."""
    return "".join(f"{key}={labels[key]}\n" for key in sorted(labels))


def from_lines(text: str) -> dict[str, str]:
    """The labels of such a text; a line that is none is left out."""
    pairs = (line.partition("=")[::2] for line in text.splitlines())
    return {key: value for key, value in pairs if not wrong_label(key, value)}
