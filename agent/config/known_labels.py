"""The labels of this Node, as far as they are known when the configuration is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.core.errors import ConfigError
from agent.core.kubernetes_names import wrong_label
from agent.vendor_api.text import shorten

#: Chooses one of a directory of configurations. Source: NVIDIA/k8s-device-plugin, cmd/config-manager.
CONFIG_LABEL = "nvidia.com/device-plugin.config"

Labels = Mapping[str, str]
#: Key to value; None where the Node has no such label.
Answers = Mapping[str, str | None]


class LabelsUnknown(ConfigError):
    """Raised when a configuration depends on a label of the Node that nobody has told yet."""


@dataclass(frozen=True, slots=True)
class NodeLabels:
    """What is known of them. `rest` says what the keys are that are not among the answers."""

    answers: Answers = field(default_factory=dict)
    rest: Literal["unset", "awaited", "nowhere"] = "nowhere"

    @property
    def told(self) -> bool:
        """Whether anybody tells them, now or later."""
        return self.rest != "nowhere"

    def knows(self, key: str) -> bool:
        return key in self.answers or self.rest == "unset"

    def get(self, key: str) -> str | None:
        """The value; None where the Node has no such label, or nobody knows."""
        return self.answers.get(key)

    def of(self, keys: Iterable[str]) -> Answers:
        """What is known of these keys."""
        return {key: self.get(key) for key in sorted(keys) if self.knows(key)}


#: Where there is no API server to ask.
NOWHERE = NodeLabels()


def seen_labels(labels: Labels) -> NodeLabels:
    """All of the Node's labels."""
    return NodeLabels(labels, "unset")


def remembered_labels(answers: Answers) -> NodeLabels:
    """Some of them as they last were; the API server will tell the rest."""
    return NodeLabels(answers, "awaited")


def given_labels(texts: Sequence[str]) -> Labels:
    """The labels of a command line, each as KEY=VALUE.

    Raises:
        ConfigError: One is no label, or a key stands twice.
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
