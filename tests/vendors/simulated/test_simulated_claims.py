"""The simulated scheduler's annotation: claims where it makes sense, a clear ValueError where not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from support import strategies

from agent.scheduler_api import Candidate, Claim, ServedClaim
from agent.vendors.simulated.agent.claims import ANNOTATION, GIVEN, claims, receipt

CARDS: dict[str, int | None] = {"c0": 0, "c1": 1}


def pod(text: str | None) -> Candidate:
    return Candidate("uid", "default", "web", annotations={} if text is None else {ANNOTATION: text})


def said(content: Any) -> list[Claim]:
    return list(claims(pod(json.dumps(content)), "example.com/xpu", CARDS))


def test_a_pod_without_the_annotation_has_no_claim() -> None:
    assert claims(pod(None), "example.com/xpu", CARDS) == ()


def test_each_container_that_is_named_has_a_claim() -> None:
    found = said({"main": {"devices": ["c1", "c0"], "parameters": {"memory": 8}}, "side": {}})

    assert found == [
        Claim("uid", "default", "web", "main", ("c1", "c0"), {"memory": "8"}),
        Claim("uid", "default", "web", "side"),
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "is no JSON object"),
        ({"main": "c0"}, "main has no JSON object"),
        ({"main": {"devices": "c0"}}, "main has no list of devices or no object of parameters"),
        ({"main": {"devices": None}}, "main has no list of devices"),
        ({"main": {"parameters": ["memory"]}}, "main has no list of devices or no object of parameters"),
        ({"main": {"devices": ["c0", "c7"]}}, "main names 'c7', which is not here"),
        ({"main": {"devices": [["c0"]]}}, "which is not here"),
    ],
)
def test_an_annotation_that_makes_no_sense_is_told_with_its_place(content: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        said(content)


@given(strategies.hostile_texts)
def test_an_annotation_that_is_no_json_is_a_value_error(text: str) -> None:
    try:
        found = claims(pod(text), "example.com/xpu", CARDS)
    except ValueError:
        return
    assert list(found) == []  # "{}" is


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5_000])
def test_an_annotation_that_python_does_not_read_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"too deep|digits"):
        claims(pod(text), "example.com/xpu", CARDS)


def test_a_pod_with_devices_says_which_container_has_which() -> None:
    its = (
        ServedClaim("main", "x", 2, ("c0", "c1")),
        ServedClaim("main", "y", 1, ("c1",)),
        ServedClaim("side", "x", 1, ("c0",)),
    )

    (text,) = receipt(pod(None), its).values()

    assert json.loads(text) == {"main": {"x": ["c0", "c1"], "y": ["c1"]}, "side": {"x": ["c0"]}}
    assert receipt(pod(None), its).keys() == {GIVEN}
