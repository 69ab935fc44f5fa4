"""What an answer says of itself is read back from it, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import strategies

from agent.core.allocation.answer_annotations import (
    ALLOCATION,
    CARDS,
    SHARE,
    UNIT,
    annotations_of,
    cards,
    share,
    unit,
)
from agent.scheduler_api import Claim
from core.values import allocation

texts = st.text(st.characters(codec="utf-8"), max_size=5)


@given(
    st.lists(st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]), unique=True),
    st.dictionaries(texts, texts, max_size=3),
)
def test_an_answer_says_what_its_ids_do_not(diverged: list[str], parameters: dict[str, str]) -> None:
    claim = Claim("uid", "default", "web", "main", tuple(diverged), parameters)

    said = annotations_of(replace(allocation("a1", ["GPU-z::0"], claim=claim), diverged=tuple(diverged)))

    assert said[ALLOCATION] == "a1"
    assert cards(said) == tuple(diverged)
    assert share(said) == parameters


def test_an_answer_of_which_nothing_else_is_to_be_said_bears_its_id_alone() -> None:
    claim = Claim("uid", "default", "web", "main", ("GPU-a",))

    assert annotations_of(allocation("a1", ["GPU-a"], claim=claim)) == {ALLOCATION: "a1"}


@pytest.mark.parametrize("size", ["", "1", "0.001"])
def test_an_answer_says_what_its_ids_count(size: str) -> None:
    assert unit(annotations_of(replace(allocation("a1", ["GPU-a::0"]), unit=size))) == size


@pytest.mark.parametrize("text", ["auto", "2", "0.10", "GiB"])
def test_a_unit_that_we_did_not_write_is_none(text: str) -> None:
    assert unit({UNIT: text}) == ""


@pytest.mark.parametrize("text", ["", "[]", "7", '{"core": 7}', '{"core": null}', "{", "[" * 100_000])
def test_a_share_that_we_did_not_write_is_none(text: str) -> None:
    assert share({SHARE: text}) == {}


@given(strategies.hostile_texts, strategies.hostile_texts)
def test_no_text_crashes_the_reading(first: str, second: str) -> None:
    said = {CARDS: first, SHARE: second, UNIT: first}

    assert len(set(cards(said))) == len(cards(said))
    assert all(isinstance(it, str) for it in share(said).values())
    assert unit(said) in ("", "1", "0.1", "0.01", "0.001")
