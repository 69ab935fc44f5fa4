"""The part of a file that holds for some nodes only: `nodes[].match` and what it sets."""

from __future__ import annotations

from agent.config import later
from agent.config.document import Node, merge
from agent.config.place import Path, refused
from agent.config.settings import AgentSettings, Config, ReportSettings, VendorSettings
from agent.config.shape import build, convert, known, mapping, sequence
from agent.config.shape import vendors as vendor_settings

_SETS = ("agent", "vendors", "report")


def applied(root: Node, source: str, node_name: str) -> Node:
    """The file without `nodes`, with what matches this node laid over it in order.

    Raises:
        ConfigError: An entry is wrong, whether it matches or not.
    """
    top = dict(mapping(root, source, ()))
    nodes = top.pop("nodes", None)
    tree = Node({key: child for key, child in top.items() if child.value is not None}, root.line)
    if nodes is None:
        return tree
    entries = sequence(nodes, source, ("nodes",))
    if entries and not node_name:
        message = "needs the name of this node; give --node-name or NODE_NAME"
        raise refused(source, nodes.line, ("nodes",), message)
    for index, entry in enumerate(entries):
        names, sets = _entry(entry, source, ("nodes", index))
        if node_name in names:
            tree = merge(tree, sets)
    return tree


def _entry(node: Node, source: str, path: Path) -> tuple[tuple[str, ...], Node]:
    given = mapping(node, source, path)
    known(Config, given, {"match": "", "set": ""}, source, path)
    match, sets = given.get("match"), given.get("set")
    if match is None or sets is None:
        raise refused(source, node.line, path, "needs both 'match' and 'set'")
    _check(sets, source, (*path, "set"))
    return _names(match, source, (*path, "match")), sets if sets.value is not None else Node({}, sets.line)


def _names(node: Node, source: str, path: Path) -> tuple[str, ...]:
    given = mapping(node, source, path)
    if "labels" in given:
        raise refused(source, given["labels"].line, (*path, "labels"), later.MATCH_LABELS)
    known(Config, given, {"names": "", "labels": ""}, source, path)
    names: tuple[str, ...] = ()
    if "names" in given and given["names"].value is not None:
        names = convert(tuple[str, ...], given["names"], source, (*path, "names"))
    if not names:
        raise refused(source, node.line, path, "matches no node; give 'names' a list of node names")
    return names


def _check(sets: Node, source: str, path: Path) -> None:
    """Keys and types, also of entries for other nodes; what they mean together is seen on the node."""
    given = mapping(sets, source, path)
    known(Config, given, dict.fromkeys(_SETS, ""), source, path)
    for key, shape in (("agent", AgentSettings), ("report", ReportSettings)):
        if key in given:
            build(shape, given[key], source, (*path, key))
    if "vendors" in given:
        vendor_settings(given["vendors"], source, VendorSettings, (*path, "vendors"))
