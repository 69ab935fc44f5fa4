"""What is encoded in pieces is what is encoded at once, and pieces are encoded once."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from agent.core.model import Allocation
from agent.state.checkpoint import SavedState
from agent.state.checkpoint_encoder import Encoder
from agent.state.file_envelope import sealed


def with_ids(state: SavedState, *ids: str) -> SavedState:
    return replace(state, allocations=tuple(replace(state.allocations[0], id=it) for it in ids))


def test_the_file_is_the_same_as_of_a_state_that_is_encoded_at_once(state: SavedState) -> None:
    encoder = Encoder()

    for each in (
        state,
        with_ids(state, "a", "b"),
        with_ids(state, "b"),
        with_ids(state, "b", "b"),
        SavedState(),
    ):
        assert sealed(encoder.content(each)) == sealed(each)


def test_an_allocation_is_encoded_anew_when_it_has_changed_and_not_otherwise(
    state: SavedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    encode = msgspec.json.encode

    def noted(it: Allocation) -> bytes:
        made.append(it.id)
        return encode(it)

    monkeypatch.setattr(msgspec.json, "encode", noted)
    encoder, both = Encoder(), with_ids(state, "a", "b")
    encoder.content(both)
    encoder.content(both)
    assert made == ["a", "b"]

    encoder.content(replace(both, allocations=(both.allocations[0], replace(both.allocations[1], since=1))))

    assert made == ["a", "b", "b"]


def test_what_is_no_longer_in_the_state_is_forgotten(state: SavedState) -> None:
    encoder = Encoder()
    encoder.content(with_ids(state, *map(str, range(100))))

    encoder.content(with_ids(state, "1"))

    assert len(encoder._known) == 1
