"""Annotations of vendors on the Node: which patch makes them as they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agent.cluster.node_annotation_writer import patch
from agent.cluster.own_node import ANNOTATED
from agent.core.publishing.node_annotation_rules import Annotated

KEY, MORE = "acme.com/devices", "acme.com/more"
THEIRS = {"other.com/x": "1", "xpu-agent.io/labels": "acme.com/count"}


def changes(there: Mapping[str, str], wanted: Annotated) -> Mapping[str, Any] | None:
    found = patch(there, wanted)
    return None if found is None else found["metadata"]["annotations"]


ONE = Annotated({KEY: "1"})
OURS = {KEY: "1", ANNOTATED: KEY}


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        pytest.param(THEIRS, ONE, OURS, id="it is not there"),
        pytest.param({**THEIRS, **OURS}, ONE, None, id="it is there"),
        pytest.param({**THEIRS, **OURS, KEY: "0"}, ONE, OURS, id="it has another text"),
        pytest.param({KEY: "1"}, ONE, {ANNOTATED: KEY}, id="another program wrote the same"),
        pytest.param(OURS, Annotated({KEY: None}), {KEY: None, ANNOTATED: None}, id="it shall not be there"),
        pytest.param({KEY: "0"}, Annotated({KEY: None}), {KEY: None, ANNOTATED: None}, id="nor theirs"),
        pytest.param(THEIRS, Annotated({KEY: None}), None, id="it is not there and shall not be"),
        pytest.param({**THEIRS, **OURS}, Annotated(), {KEY: None, ANNOTATED: None}, id="its vendor left"),
        pytest.param({KEY: "0"}, Annotated(), None, id="nobody of ours wrote it"),
        pytest.param(OURS, Annotated({}, frozenset({KEY})), None, id="its vendor has not spoken"),
        pytest.param(
            OURS,
            Annotated({MORE: "2"}, frozenset({KEY})),
            {MORE: "2", ANNOTATED: f"{KEY},{MORE}"},
            id="one has not spoken and another has",
        ),
        pytest.param({ANNOTATED: KEY}, Annotated(), {ANNOTATED: None}, id="somebody removed it"),
        pytest.param(
            {ANNOTATED: "a b,node.kubernetes.io/x,xpu-agent.io/labels,plain", "node.kubernetes.io/x": "1"},
            Annotated(),
            {ANNOTATED: None},
            id="what it names can be no vendor's",
        ),
    ],
)
def test_only_what_differs_is_written_and_nobody_elses_is_touched(
    there: Mapping[str, str], wanted: Annotated, expected: Mapping[str, Any] | None
) -> None:
    assert changes(there, wanted) == expected
