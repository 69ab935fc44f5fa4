"""Answers are made once a second, however many ask."""

from __future__ import annotations

import pytest

from agent.http.answer import HttpAnswer, text
from agent.http.answer_cache import MAX_ANSWERS, AnswerCache


class Made:
    """Counts what is made, by target, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.of: list[str] = []
        self.error: Exception | None = None
        self.recent = AnswerCache(self._make, lambda: self.now)

    def _make(self, target: str) -> HttpAnswer:
        if self.error is not None:
            raise self.error
        self.of.append(target)
        return text(200, f"{target} {len(self.of)}")


def test_within_a_second_an_answer_is_made_once() -> None:
    made = Made()

    first = made.recent("/metrics")
    made.now += 0.99
    second = made.recent("/metrics")
    made.now += 0.01
    third = made.recent("/metrics")

    assert first is second
    assert third.body == b"/metrics 2\n"


def test_an_answer_is_there_for_a_second_from_when_it_was_made() -> None:
    made = Made()
    assert not made.recent.has("/metrics")
    made.recent("/metrics")
    assert made.recent.has("/metrics")
    assert not made.recent.has("/inspect")
    made.now += 1.0
    assert not made.recent.has("/metrics")


def test_each_target_has_an_answer_of_its_own() -> None:
    made = Made()

    assert made.recent("/metrics").body != made.recent("/readyz").body


def test_however_many_targets_are_asked_for_few_answers_are_kept() -> None:
    made = Made()
    for number in range(MAX_ANSWERS + 1):
        made.recent(f"/{number}")

    made.recent("/0")
    made.recent(f"/{MAX_ANSWERS}")

    assert made.of[MAX_ANSWERS:] == [f"/{MAX_ANSWERS}", f"/{MAX_ANSWERS}"]


def test_an_answer_that_could_not_be_made_is_tried_again_at_once() -> None:
    made = Made()
    made.error = RuntimeError("broken")
    with pytest.raises(RuntimeError):
        made.recent("/metrics")
    made.error = None

    assert made.recent("/metrics").body == b"/metrics 1\n"
