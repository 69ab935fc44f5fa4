"""`nodes`: settings that hold for some nodes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import parse
from agent.config.document import Node, merge
from agent.core.errors import ConfigError

FILE = """
agent: {http: 127.0.0.1:1, log: {level: info, keep: 2}}
vendors:
  nvidia: {resources: [{name: nvidia.com/gpu}], settings: {a: 1, deep: {x: 1}}}
nodes:
- match: {names: [one, two]}
  set:
    agent: {log: {level: debug}}
    vendors: {nvidia: {settings: {deep: {y: 2}}}}
- match: {names: [two]}
  set:
    agent: {log: {level: error}}
    vendors: {nvidia: {resources: [{name: a/b, devices: 1}]}, metax: {enabled: false}}
"""


def test_a_node_that_matches_nothing_has_the_base() -> None:
    assert parse(FILE, "f", "three").agent.log.level == "info"


def test_mappings_merge_and_what_is_not_set_stays() -> None:
    config = parse(FILE, "f", "one")

    assert config.agent.http == "127.0.0.1:1"
    assert (config.agent.log.level, config.agent.log.keep) == ("debug", 2)
    assert config.vendors["nvidia"].settings == {"a": 1, "deep": {"x": 1, "y": 2}}


def test_lists_are_replaced_and_later_entries_win() -> None:
    config = parse(FILE, "f", "two")

    assert [rule.name for rule in config.vendors["nvidia"].resources] == ["a/b"]
    assert config.agent.log.level == "error"
    assert config.vendors["metax"].enabled is False


def test_a_null_gives_the_default_back() -> None:
    assert parse(FILE + "- match: {names: [two]}\n  set: {agent: null}", "f", "two").agent.log.level == "info"


def test_an_error_after_merging_names_the_line_of_the_entry() -> None:
    text = "vendors: {a: {}}\nnodes:\n- match: {names: [n]}\n  set:\n    agent:\n      http: x"

    with pytest.raises(ConfigError, match=r"^f:6: agent\.http: the address 'x' has no port"):
        parse(text, "f", "n")
    parse(text, "f", "another")


def test_a_file_with_nodes_needs_the_name_of_this_one() -> None:
    with pytest.raises(ConfigError, match="f:5: nodes: needs the name of this node; give --node-name"):
        parse(FILE, "f", "")


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("{match: {names: [x]}}", r"nodes\[0\]: needs both 'match' and 'set'"),
        ("{set: {}}", r"nodes\[0\]: needs both 'match' and 'set'"),
        ("{match: {}, set: {}}", r"nodes\[0\]\.match: matches no node"),
        ("{match: {names: x}, set: {}}", r"nodes\[0\]\.match\.names: expected a list, found the text 'x'"),
        (
            "{match: {names: [1]}, set: {}}",
            r"nodes\[0\]\.match\.names\[0\]: expected a text, found the number 1",
        ),
        ("{match: {name: [x]}, set: {}}", r"nodes\[0\]\.match\.name: unknown key; did you mean 'names'"),
        ("{match: {names: [x]}, sets: {}}", r"nodes\[0\]\.sets: unknown key; did you mean 'set'"),
        ("{match: {names: [x]}, set: {nodes: []}}", r"nodes\[0\]\.set\.nodes: unknown key"),
        (
            "{match: {names: [x]}, set: {agent: {htp: x}}}",
            r"nodes\[0\]\.set\.agent\.htp: unknown key; did you mean 'http'",
        ),
        (
            "{match: {names: [x]}, set: {vendors: {a: {library: 1}}}}",
            r"nodes\[0\]\.set\.vendors\.a\.library: expected a text",
        ),
    ],
)
def test_an_entry_is_checked_also_when_it_is_for_another_node(entry: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse(f"nodes: [{entry}]", "f", "this-node")


# Laws of merging


def node(value: Any) -> Node:
    if isinstance(value, Mapping):
        return Node({key: node(child) for key, child in value.items()}, 1)
    if isinstance(value, list):
        return Node(tuple(node(child) for child in value), 1)
    return Node(value, 1)


#: Trees in which a key always holds the same kind of value, as in files of one shape.
TREES = st.recursive(
    st.dictionaries(st.sampled_from(["n1", "n2"]), st.integers() | st.lists(st.integers())),
    lambda inner: st.dictionaries(st.sampled_from(["m1", "m2", "m3"]), inner),
).map(node)


def shaped(depth: int) -> st.SearchStrategy[Any]:
    leaves = {"leaf": st.integers(), "list": st.lists(st.integers())}
    if depth == 0:
        return st.fixed_dictionaries({}, optional=leaves)
    return st.fixed_dictionaries(
        {}, optional={**leaves, "map": shaped(depth - 1), "other": shaped(depth - 1)}
    )


SHAPED = shaped(3).map(node)


@given(TREES)
def test_merging_nothing_changes_nothing(tree: Node) -> None:
    assert merge(tree, node({})).plain() == tree.plain()
    assert merge(node({}), tree).plain() == tree.plain()


@given(TREES)
def test_merging_twice_is_merging_once(tree: Node) -> None:
    assert merge(tree, tree).plain() == tree.plain()


@given(SHAPED, SHAPED, SHAPED)
def test_entries_may_be_merged_in_groups(a: Node, b: Node, c: Node) -> None:
    assert merge(merge(a, b), c).plain() == merge(a, merge(b, c)).plain()


@given(SHAPED, SHAPED)
def test_whatever_the_later_entry_says_holds(under: Node, over: Node) -> None:
    assert says(merge(under, over).plain(), over.plain())


def says(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return all(key in whole and says(whole[key], inner) for key, inner in part.items())
    return bool(whole == part)
