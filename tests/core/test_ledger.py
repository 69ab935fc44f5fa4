"""Who holds what, in memory."""

from __future__ import annotations

from agent.core.ledger import KEPT_RELEASED, Ledger
from agent.core.model import AllocationState, Owner

from .values import GPU, allocation

OWNER = Owner("uid-1", "main", "default", "web-0")


def test_allocations_are_listed_oldest_first() -> None:
    ledger = Ledger([allocation("one", ["a"])])

    ledger.record(allocation("two", ["b"]))
    ledger.confirm("one", OWNER)

    assert [it.id for it in ledger.all()] == ["one", "two"]
    assert len(ledger) == 2


def test_recording_the_same_id_again_replaces() -> None:
    ledger = Ledger([allocation("one", ["a"], state=AllocationState.INTENT)])

    ledger.record(allocation("one", ["a"]))

    assert [it.state for it in ledger.all()] == [AllocationState.DONE]


def test_intended_allocations_hold_their_ids() -> None:
    ledger = Ledger([allocation("one", ["a"], state=AllocationState.INTENT)])

    assert ledger.held() == {GPU: {"a": "a"}}
    assert ledger.devices_in_use() == {"a"}


def test_every_id_is_held_on_its_own_card() -> None:
    ledger = Ledger(
        [allocation("one", ["a::0", "b::3"]), allocation("two", ["a::1"], resource="acme.com/other")]
    )

    assert ledger.held() == {GPU: {"a::0": "a", "b::3": "b"}, "acme.com/other": {"a::1": "a"}}
    assert ledger.devices_in_use() == {"a", "b"}


def test_ids_of_an_allocation_that_names_one_card_are_held_on_it() -> None:
    ledger = Ledger([allocation("one", ["x-0", "x-1"], devices=("a",))])

    assert ledger.held() == {GPU: {"x-0": "a", "x-1": "a"}}


def test_an_id_that_two_containers_share_is_held_until_both_are_over() -> None:
    ledger = Ledger([allocation("init", ["a"]), allocation("app", ["a"])])

    ledger.release("init", "pod gone", now=1)
    held = ledger.held()
    ledger.release("app", "pod gone", now=1)

    assert held == {GPU: {"a": "a"}}
    assert ledger.held() == {}
    assert ledger.devices_in_use() == frozenset()


def test_once_seen_alive_stays_seen() -> None:
    ledger = Ledger([allocation("one", ["a"])])

    ledger.confirm("one", OWNER, alive=True)
    ledger.confirm("one", OWNER, alive=False)

    it = ledger.get("one")
    assert it is not None
    assert it.seen_alive
    assert it.owner == OWNER


def test_a_released_allocation_is_still_shown_with_its_reason() -> None:
    ledger = Ledger([allocation("one", ["a"])])

    ledger.release("one", "pod gone", now=7)

    assert ledger.in_use() == ()
    assert [(str(it.state), it.reason, it.since) for it in ledger.all()] == [("released", "pod gone", 7)]


def test_only_the_newest_released_allocations_are_kept() -> None:
    ledger = Ledger(allocation(f"n{n}", ["a"]) for n in range(KEPT_RELEASED + 3))
    ledger.record(allocation("used", ["b"]))

    for n in range(KEPT_RELEASED + 3):
        ledger.release(f"n{n}", "pod gone", now=n)

    assert len(ledger) == KEPT_RELEASED + 1
    assert ledger.get("n2") is None
    assert ledger.get("n3") is not None
    assert ledger.get("used") is not None


def test_a_forgotten_allocation_leaves_no_trace() -> None:
    ledger = Ledger([allocation("one", ["a"])])

    ledger.forget("one")
    ledger.forget("never there")

    assert ledger.all() == ()


def test_an_allocation_of_a_clock_that_was_ahead_counts_from_now() -> None:
    it = Ledger([allocation("old", ["0"], since=5), allocation("ahead", ["1"], since=9000)], now=100)

    assert [one.since for one in it.all()] == [5, 100]


def test_ids_in_use_follow_every_change() -> None:
    ledger = Ledger([allocation("one", ["0"])])
    seen = [ledger.held(), ledger.held()]

    ledger.record(allocation("two", ["1"]))
    seen.append(ledger.held())
    ledger.release("one", "pod gone", now=1)
    seen.append(ledger.held())
    ledger.forget("two")
    seen.append(ledger.held())

    assert seen[0] is seen[1]
    assert [sorted(it.get(GPU, {})) for it in seen] == [["0"], ["0"], ["0", "1"], ["1"], []]
