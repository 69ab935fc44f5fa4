"""How long is waited before what failed is tried again."""

from __future__ import annotations

import pytest

from agent.core.backoff import Pauses

WHOLE = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


@pytest.mark.parametrize(("jitter", "part"), [(1.0, 1.0), (0.5, 0.75), (0.0, 0.5)])
def test_pauses_double_up_to_the_longest_less_up_to_a_half(jitter: float, part: float) -> None:
    pauses = Pauses(0.1, 30.0, lambda: jitter)

    assert [pauses.next() for _ in WHOLE] == pytest.approx([it * part for it in WHOLE])


def test_pauses_begin_anew_with_the_shortest() -> None:
    pauses = Pauses(0.1, 30.0, lambda: 1.0)
    for _ in range(3):
        pauses.next()

    pauses.reset()

    assert pauses.next() == 0.1


def test_the_pauses_of_two_nodes_differ() -> None:
    one, other = Pauses(30.0, 30.0), Pauses(30.0, 30.0)

    assert [one.next() for _ in range(20)] != [other.next() for _ in range(20)]
