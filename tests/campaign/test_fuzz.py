"""A few hostile inputs of each kind; `make campaign` feeds 10,000."""

from __future__ import annotations

import os

import pytest

from .fuzz import TARGETS, Target, Unclear, clearly, fuzz

INPUTS = 3000 if os.environ.get("HYPOTHESIS_PROFILE") == "campaign" else 150


@pytest.mark.parametrize("target", TARGETS, ids=lambda it: it.name)
def test_what_strangers_write_is_taken_or_refused_with_words(target: Target) -> None:
    tally = fuzz(target, INPUTS, seed=1)

    assert tally.taken
    assert tally.refused


def fails(_: object) -> bool:
    raise KeyError("a bug")


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        (fails, "a bug"),
        (lambda _: clearly(ValueError("")), "refused with ''"),
        (lambda _: clearly(ValueError("\x1b")), "x1b"),
    ],
)
def test_what_is_neither_is_named_with_its_input(reads: object, words: str) -> None:
    target = Target("x", lambda rng: rng.randbytes(2), reads)  # type: ignore[arg-type]

    with pytest.raises(Unclear, match="seed 7, input 0") as unclear:
        fuzz(target, 1, seed=7)
    assert words in str(unclear.value)
