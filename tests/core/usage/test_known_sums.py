"""A sum of figures is known where each figure is, and parts of a card are together one card at most."""

from __future__ import annotations

from agent.core.usage.known_sums import sum_of, sum_of_parts


def test_a_sum_is_known_where_each_amount_is() -> None:
    assert sum_of([5, 0, 7]) == 12
    assert sum_of([5, None]) is None
    assert sum_of([]) is None


def test_parts_of_a_card_are_never_more_than_the_card() -> None:
    assert sum_of_parts([0.25, 0.5]) == 0.75
    assert sum_of_parts([0.75, 0.5]) == 1.0
    assert sum_of_parts([0.75, None]) is None
