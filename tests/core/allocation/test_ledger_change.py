"""Which changes of the ledger are short enough to be appended, and that they make the present ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.ledger import KEPT_RELEASED, Ledger
from agent.core.allocation.ledger_change import LedgerChange
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.scheduler_api import Claim

DONE = Allocation("one", "example.com/x", "acme", ("a::0",), ("a",), AllocationState.DONE, 1.0)
OWNER = Owner("uid-1", "main", "default", "web-0")
CLAIM = Claim("uid-1", "default", "web-0", "main", ("a",))
RELEASED = replace(DONE, state=AllocationState.RELEASED, since=2.0, reason="its pod is gone")
SLICED = replace(DONE, partitions=("slice-1",))


def applied(changes: tuple[LedgerChange, ...], older: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """The older ledger with the changes, as a reader of the changes applies them."""
    known = {it.id: it for it in older}
    for change in changes:
        assert known.get(change.id) == change.before
        if change.after is None or change.is_moved:
            known.pop(change.id, None)
        if change.after is not None:
            known[change.id] = change.after
    return tuple(known.values())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, DONE),
        (None, replace(DONE, owner=OWNER, claim=CLAIM)),
        (DONE, replace(DONE, owner=OWNER, life="1-2")),
        (SLICED, replace(SLICED, owner=OWNER)),
        (DONE, RELEASED),
        (None, RELEASED),
        (RELEASED, None),
        (replace(RELEASED, partitions=("slice-1",)), None),
        (DONE, None),
    ],
)
def test_an_allocate_a_confirmation_and_a_release_are_short(
    before: Allocation | None, after: Allocation | None
) -> None:
    assert LedgerChange("one", before, after).is_short


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, replace(DONE, state=AllocationState.INTENT)),
        (replace(DONE, state=AllocationState.INTENT), SLICED),
        (replace(SLICED, state=AllocationState.PREPARED), replace(SLICED, owner=OWNER)),
        (None, SLICED),
        (SLICED, replace(RELEASED, partitions=("slice-1",))),
        (SLICED, None),
        (DONE, SLICED),
        (None, replace(DONE, source=AllocationSource.KUBELET)),
        (None, replace(DONE, source=AllocationSource.ANNOTATION)),
        (DONE, replace(DONE, claim=CLAIM)),
        (DONE, replace(DONE, owner=OWNER, claim=CLAIM)),
        (DONE, replace(DONE, forgotten=True, reason="lost")),
        (DONE, replace(RELEASED, owner=OWNER)),
        (RELEASED, DONE),
    ],
)
def test_any_other_change_is_written_with_the_whole_state(
    before: Allocation | None, after: Allocation | None
) -> None:
    assert not LedgerChange("one", before, after).is_short


def test_an_allocation_that_only_changed_its_place_is_no_short_change_and_not_nothing() -> None:
    change = LedgerChange("one", DONE, DONE, is_moved=True)

    assert (change.is_empty, change.is_short) == (False, False)


def test_what_came_and_went_between_two_writes_is_nothing() -> None:
    ledger = Ledger()
    ledger.record(DONE)
    ledger.drop("one")

    (change,) = ledger.take_changes()

    assert change.is_empty


def test_a_change_and_an_earlier_one_are_one_change() -> None:
    earlier, later = LedgerChange("one", None, DONE, is_moved=True), LedgerChange("one", DONE, RELEASED)

    assert later.since(earlier) == LedgerChange("one", None, RELEASED, is_moved=True)


def test_changes_are_taken_once() -> None:
    ledger = Ledger([DONE])
    assert ledger.take_changes() == ()
    ledger.confirm("one", OWNER)

    assert [it.fields for it in ledger.take_changes()] == [("owner",)]
    assert ledger.take_changes() == ()


def test_the_release_that_drops_the_oldest_released_allocation_says_so() -> None:
    ledger = Ledger([replace(RELEASED, id=str(n)) for n in range(KEPT_RELEASED)] + [DONE])

    ledger.release("one", "over", 3.0)

    assert {it.id: it.after is None for it in ledger.take_changes()} == {"one": False, "0": True}


names = st.sampled_from("abcd")
STEPS: dict[str, Callable[[Ledger, str], Any]] = {
    "record": lambda ledger, name: ledger.record(replace(DONE, id=name)),
    "drop": lambda ledger, name: ledger.drop(name),
    "confirm": lambda ledger, name: ledger.confirm(name, OWNER, "1-2"),
    "release": lambda ledger, name: ledger.release(name, "over", 2.0),
    "remark": lambda ledger, name: ledger.remark(name, "look"),
    "forget": lambda ledger, name: ledger.set_forgotten(name, forgotten=True),
    "take": lambda ledger, name: None,
}


@given(st.lists(st.tuples(st.sampled_from([*STEPS]), names), max_size=30))
def test_the_changes_of_any_history_make_the_present_ledger_of_an_older_one(
    history: list[tuple[str, str]],
) -> None:
    ledger = Ledger([replace(DONE, id="a"), replace(DONE, id="b")])
    older = ledger.all()
    for step, name in history:
        if step in ("record", "drop", "take") or ledger.get(name) is not None:
            STEPS[step](ledger, name)
        if step == "take":
            older = applied(ledger.take_changes(), older)
            assert older == ledger.all()

    assert applied(ledger.take_changes(), older) == ledger.all()
