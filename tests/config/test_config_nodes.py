"""`nodes`: settings that hold for some nodes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.vendor_inputs import parse

from agent.config import Config, LabelsUnknown, NodeLabels, given_labels, seen_labels
from agent.config.known_labels import remembered_labels
from agent.config.yaml_document import merge
from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import YamlNode

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
        ("{match: {names: []}, set: {}}", r"nodes\[0\]\.match\.names: is an empty list"),
        (
            "{match: {labels: {}}, set: {}}",
            r"nodes\[0\]\.match: matches no node; give 'names' .* or 'labels'",
        ),
        ("{match: {labels: [a]}, set: {}}", r"match\.labels: expected a mapping of keys, found a list"),
        (
            "{match: {labels: {a: true}}, set: {}}",
            r"labels\.a: expected a text, found true; put it in quotes",
        ),
        ("{match: {labels: {a: null}}, set: {}}", r"labels\.a: expected a text, found nothing"),
        ("{match: {labels: {a b: c}}, set: {}}", r"nodes\[0\]\.match\.labels: the label 'a b'"),
        ("{match: {labels: {a: b c}}, set: {}}", r"match\.labels: the label 'a' has the value 'b c'"),
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


# Labels of the Node

BY_LABEL = """
agent: {http: 127.0.0.1:1}
nodes:
- match: {labels: {pool: train}}
  set: {agent: {http: 127.0.0.1:2}}
- match: {labels: {pool: train, acme.com/fast: ""}}
  set: {agent: {log: {keep: 7}}}
- match: {names: [one], labels: {zone: a}}
  set: {agent: {http: 127.0.0.1:3}}
"""


def by_label(labels: NodeLabels, name: str = "two") -> Config:
    return parse(BY_LABEL, "f", name, labels=labels)


@pytest.mark.parametrize(
    ("labels", "name", "http", "keep"),
    [
        ({}, "two", 1, 5),
        ({"pool": "serve", "acme.com/fast": ""}, "two", 1, 5),
        ({"pool": "train"}, "two", 2, 5),
        ({"pool": "train", "acme.com/fast": "yes"}, "two", 2, 5),
        ({"pool": "train", "acme.com/fast": ""}, "two", 2, 7),
        # Names and labels both have to fit.
        ({"zone": "a"}, "two", 1, 5),
        ({"zone": "a"}, "one", 3, 5),
        ({"zone": "b"}, "one", 1, 5),
    ],
)
def test_an_entry_matches_the_node_that_has_all_its_labels(
    labels: Mapping[str, str], name: str, http: int, keep: int
) -> None:
    config = by_label(seen_labels(labels), name)

    assert (config.agent.http, config.agent.log.keep) == (f"127.0.0.1:{http}", keep)


def test_a_file_says_which_labels_it_asks_about() -> None:
    assert by_label(seen_labels({})).asks == {"pool", "zone", "acme.com/fast"}
    assert parse(FILE, "f", "one").asks == frozenset()


def test_a_label_that_nobody_told_yet_is_not_guessed() -> None:
    with pytest.raises(
        LabelsUnknown, match=r"^f:4: nodes\[0\]\.match\.labels: the label 'pool' is not known of"
    ):
        by_label(remembered_labels({}))


def test_a_label_that_could_change_nothing_is_not_awaited() -> None:
    # The pool is another, which settles two entries, and the third is for another name.
    assert by_label(remembered_labels({"pool": "serve"})).agent.http == "127.0.0.1:1"
    assert by_label(remembered_labels({"pool": None})).agent.http == "127.0.0.1:1"
    with pytest.raises(LabelsUnknown, match="'zone'"):
        by_label(remembered_labels({"pool": None}), "one")


def test_without_an_api_server_an_entry_by_label_is_an_error_and_no_wait() -> None:
    with pytest.raises(
        ConfigError, match=r"^f:4: nodes\[0\]\.match\.labels: .* no API server to ask"
    ) as caught:
        parse(BY_LABEL, "f", "two")

    assert not isinstance(caught.value, LabelsUnknown)


def test_an_error_of_the_file_comes_before_the_wait_for_labels() -> None:
    text = BY_LABEL + "- match: {names: [x]}\n  set: {agent: {htp: x}}"

    with pytest.raises(ConfigError, match=r"nodes\[3\]\.set\.agent\.htp: unknown key"):
        parse(text, "f", "two", labels=remembered_labels({}))


def test_a_file_that_matches_by_label_alone_needs_no_name() -> None:
    text = "nodes: [{match: {labels: {a: b}}, set: {agent: {http: ''}}}]"

    assert parse(text, "f", "", labels=seen_labels({"a": "b"})).agent.http == ""


def test_labels_of_a_command_line_are_read() -> None:
    assert given_labels(["pool=train", "acme.com/fast="]) == {"pool": "train", "acme.com/fast": ""}


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (["pool"], "--node-label: found 'pool', write KEY=VALUE"),
        (["a b=c"], "--node-label: the label 'a b'"),
        (["a=" + "x" * 64], "--node-label: the label 'a' has the value"),
        (["a=b", "a=c"], "--node-label: the label 'a' is given twice"),
    ],
)
def test_a_label_of_a_command_line_that_is_none_is_refused(texts: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given_labels(texts)
    assert str(caught.value).startswith(error)


# Laws of merging


def node(value: Any) -> YamlNode:
    if isinstance(value, Mapping):
        return YamlNode({key: node(child) for key, child in value.items()}, 1)
    if isinstance(value, list):
        return YamlNode(tuple(node(child) for child in value), 1)
    return YamlNode(value, 1)


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
def test_merging_nothing_changes_nothing(tree: YamlNode) -> None:
    assert merge(tree, node({})).plain() == tree.plain()
    assert merge(node({}), tree).plain() == tree.plain()


@given(TREES)
def test_merging_twice_is_merging_once(tree: YamlNode) -> None:
    assert merge(tree, tree).plain() == tree.plain()


@given(SHAPED, SHAPED, SHAPED)
def test_entries_may_be_merged_in_groups(a: YamlNode, b: YamlNode, c: YamlNode) -> None:
    assert merge(merge(a, b), c).plain() == merge(a, merge(b, c)).plain()


@given(SHAPED, SHAPED)
def test_whatever_the_later_entry_says_holds(under: YamlNode, over: YamlNode) -> None:
    assert says(merge(under, over).plain(), over.plain())


def says(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return all(key in whole and says(whole[key], inner) for key, inner in part.items())
    return bool(whole == part)
