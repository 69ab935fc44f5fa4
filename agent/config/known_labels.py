"""The labels of this Node, as far as they are known when the configuration is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.core.errors import ConfigError
from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendor_api.text import shorten

#: The label that chooses one of several configurations. Source: NVIDIA/k8s-device-plugin, cmd/config-manager.
CONFIG_LABEL = "nvidia.com/device-plugin.config"

Labels = Mapping[str, str]
#: The label's value by key; None where the Node has no such label.
Answers = Mapping[str, str | None]


class LabelsUnknown(ConfigError):
    """Raised when a configuration depends on a label of the Node that is not known yet."""


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """The known labels. `rest` says of all other keys: unset on the Node, awaited, or unobtainable."""

    answers: Answers = field(default_factory=dict)
    rest: Literal["unset", "awaited", "nowhere"] = "nowhere"

    @property
    def obtainable(self) -> bool:
        """Whether the labels are, or will be, known."""
        return self.rest != "nowhere"

    def knows(self, key: str) -> bool:
        return key in self.answers or self.rest == "unset"

    def get(self, key: str) -> str | None:
        """The label's value; None where the Node has no such label, or it is not known."""
        return self.answers.get(key)

    def of(self, keys: Iterable[str]) -> Answers:
        """The known labels among these keys."""
        return {key: self.get(key) for key in sorted(keys) if self.knows(key)}


#: Without an API server.
NOWHERE = NodeLabels()


def seen_labels(labels: Labels) -> NodeLabels:
    """The labels of a Node that was seen."""
    return NodeLabels(labels, "unset")


def remembered_labels(answers: Answers) -> NodeLabels:
    """Labels as they last were, until the API server gives all."""
    return NodeLabels(answers, "awaited")


def given_labels(texts: Sequence[str]) -> Labels:
    """The labels of a command line, each as KEY=VALUE.

    Raises:
        ConfigError: A text is no label, or a key is given twice.
    """
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        why = wrong_label(key, value) if equals else f"found '{shorten(text)}', write KEY=VALUE"
        if why is None and key in labels:
            why = f"the label '{shorten(key)}' is given twice"
        if why is not None:
            raise ConfigError(f"--node-label: {why}")
        labels[key] = value
    return labels
