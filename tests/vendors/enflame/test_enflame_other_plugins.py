"""Which cards an answer of another plugin names."""

from __future__ import annotations

import pytest
from hypothesis import given
from support import strategies

from agent.vendor_api.agent import ContainerEdits, Device
from agent.vendors.enflame.agent.container_edits import VISIBLE
from agent.vendors.enflame.agent.replaced_plugins import cards_of_answer

#: The second and third card are numbered the other way round by their nodes.
CARDS = (
    Device("GCU-T0", 0, minor=0),
    Device("GCU-T1", 1, minor=2),
    Device("GCU-T2", 2, minor=1),
    Device("GCU-T9", 3, minor=None),
    Device("GCU-T1/0", 1, parent="GCU-T1", slice=0),
)


@pytest.mark.parametrize(
    ("value", "cards"),
    [
        ("1", ("GCU-T2",)),
        ("2,0", ("GCU-T1", "GCU-T0")),
        ("GCU-T1", ("GCU-T1",)),
        ("GCU-0", ("GCU-T0",)),
        ("GCU-T9", ("GCU-T9",)),
        ("all", ("GCU-T0", "GCU-T1", "GCU-T2", "GCU-T9")),
    ],
)
def test_cards_are_named_by_minor_or_uuid(value: str, cards: tuple[str, ...]) -> None:
    assert cards_of_answer(ContainerEdits(env={VISIBLE: value}), CARDS) == cards


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "none",
            "void",
            "ALL",
            "3",
            "0,",
            "0,0",
            "0,3",
            " 0",
            "00",
            "+1",
            "-1",
            "\u0661",
            "GCU-9",
            "0;1",
        ),
        pytest.param("GCU-1", id="an index that is no minor too"),
        pytest.param("GCU-T1/0", id="a slice of the hardware"),
    ],
)
def test_what_is_not_cards_in_full_is_none_at_all(value: str) -> None:
    assert cards_of_answer(ContainerEdits(env={VISIBLE: value}), CARDS) == ()


def test_an_answer_without_the_variable_says_nothing_of_cards() -> None:
    assert cards_of_answer(ContainerEdits(env={"TOPS_VISIBLE_DEVICES": "0"}), CARDS) is None


@given(strategies.hostile_texts)
def test_hostile_values_name_cards_that_are_there_or_none(value: str) -> None:
    assert {*(cards_of_answer(ContainerEdits(env={VISIBLE: value}), CARDS) or ())} <= {
        it.uuid for it in CARDS
    }
