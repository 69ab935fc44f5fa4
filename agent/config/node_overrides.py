"""The key `nodes` of a file: what each entry sets for the nodes that it matches."""

from __future__ import annotations

from dataclasses import dataclass

from agent.config.known_labels import Labels, LabelsUnknown, NodeLabels
from agent.config.location import refused
from agent.config.schema import build, convert, mapping, refuse_unknown_keys, sequence
from agent.config.schema import vendors as vendor_settings
from agent.config.settings import (
    AgentSettings,
    Config,
    MetricsSettings,
    ReportSettings,
    UsageSettings,
    VendorSettings,
)
from agent.config.yaml_document import merge
from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import Path, YamlNode
from agent.vendor_api.kubernetes_names import wrong_label
from agent.vendor_api.text import shorten

_SETS = ("agent", "vendors", "report", "usage", "metrics")
_NOWHERE = (
    "needs this Node's labels, and there is no API server to ask for them; run the agent in the cluster or "
    "with --kubeconfig, or match by names"
)
_AWAITED = "is not known of this Node yet: the API server has not given its labels"


@dataclass(frozen=True, slots=True)
class Applied:
    """The file without `nodes`, with the matching entries laid over it, and all label keys in matches."""

    tree: YamlNode
    asks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of `nodes`; empty `names` match any name."""

    names: tuple[str, ...]
    labels: Labels
    sets: YamlNode
    match: YamlNode
    path: Path

    def fits(self, node_name: str, labels: NodeLabels) -> bool:
        """Whether the entry matches, as far as the labels are known."""
        if self.names and node_name not in self.names:
            return False
        return all(labels.get(key) == value for key, value in self.labels.items() if labels.knows(key))

    def missing(self, labels: NodeLabels) -> str | None:
        """A label key that decides the match, and is not known."""
        return next((key for key in self.labels if not labels.knows(key)), None)


def applied(root: YamlNode, source: str, node_name: str, labels: NodeLabels) -> Applied:
    """Lay the entries that match this node over the rest, in order.

    Raises:
        ConfigError: An entry is invalid, whether it matches or not.
        LabelsUnknown: No entry is invalid, but whether one matches is not known yet.
    """
    top = dict(mapping(root, source, ()))
    nodes = top.pop("nodes", None)
    tree = YamlNode({key: child for key, child in top.items() if child.value is not None}, root.line)
    if nodes is None:
        return Applied(tree)
    places = enumerate(sequence(nodes, source, ("nodes",)))
    entries = [_entry(child, source, ("nodes", index)) for index, child in places]
    if not node_name and any(entry.names for entry in entries):
        message = "needs the name of this node; give --node-name or NODE_NAME"
        raise refused(source, nodes.line, ("nodes",), message)
    for entry in (it for it in entries if it.fits(node_name, labels)):
        missing = entry.missing(labels)
        if missing is not None:
            raise _unknown(entry, missing, source, labels)
        tree = merge(tree, entry.sets)
    return Applied(tree, frozenset(key for entry in entries for key in entry.labels))


def _unknown(entry: _Entry, key: str, source: str, labels: NodeLabels) -> ConfigError:
    path = (*entry.path, "match", "labels")
    line = entry.match.line_of(("labels", key))
    if not labels.obtainable:
        return refused(source, line, path, _NOWHERE)
    return LabelsUnknown(str(refused(source, line, path, f"the label '{shorten(key)}' {_AWAITED}")))


def _entry(node: YamlNode, source: str, path: Path) -> _Entry:
    children = mapping(node, source, path)
    refuse_unknown_keys(Config, children, {"match": "", "set": ""}, source, path)
    match, sets = children.get("match"), children.get("set")
    if match is None or sets is None:
        raise refused(source, node.line, path, "needs both 'match' and 'set'")
    _check(sets, source, (*path, "set"))
    sets = sets if sets.value is not None else YamlNode({}, sets.line)
    at = (*path, "match")
    names, labels = _names(match, source, at), _labels(match, source, at)
    if not names and not labels:
        message = "matches no node; give 'names' a list of node names, or 'labels' what the Node must have"
        raise refused(source, match.line, at, message)
    return _Entry(names, labels, sets, match, path)


def _names(match: YamlNode, source: str, path: Path) -> tuple[str, ...]:
    children = mapping(match, source, path)
    refuse_unknown_keys(Config, children, {"names": "", "labels": ""}, source, path)
    node = children.get("names")
    if node is None or node.value is None:
        return ()
    names: tuple[str, ...] = convert(tuple[str, ...], node, source, (*path, "names"))
    if not names:
        raise refused(source, node.line, (*path, "names"), "is an empty list, which no node matches")
    return names


def _labels(match: YamlNode, source: str, path: Path) -> Labels:
    node = mapping(match, source, path).get("labels")
    at = (*path, "labels")
    children = mapping(node, source, at) if node is not None else {}
    labels: dict[str, str] = {}
    for key, child in children.items():
        labels[key] = convert(str, child, source, (*at, key))
        if why := wrong_label(key, labels[key]):
            raise refused(source, child.line, at, why)
    return labels


def _check(sets: YamlNode, source: str, path: Path) -> None:
    """Check keys and types, also of entries for other nodes; values are checked on the matching node."""
    children = mapping(sets, source, path)
    refuse_unknown_keys(Config, children, dict.fromkeys(_SETS, ""), source, path)
    for key, shape in (
        ("agent", AgentSettings),
        ("report", ReportSettings),
        ("usage", UsageSettings),
        ("metrics", MetricsSettings),
    ):
        if key in children:
            build(shape, children[key], source, (*path, key))
    if "vendors" in children:
        vendor_settings(children["vendors"], source, VendorSettings, (*path, "vendors"))
