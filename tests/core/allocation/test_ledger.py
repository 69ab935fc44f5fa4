"""Who holds what, in memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.ledger import FORGOTTEN, KEPT_RELEASED, Ledger
from agent.core.model import AllocationSource, AllocationState, Owner
from agent.vendor_api.agent import Partition
from core.values import GPU, allocation, held_ids

OWNER = Owner("uid-1", "main", "default", "web-0")
ANY = st.sampled_from(["loaded", "one", "two"])
IDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3)


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

    assert held_ids(ledger.usage()) == {GPU: {"a": "a"}}
    assert ledger.devices_in_use() == {"a"}


def test_owners_of_one_unit_are_told_from_those_of_another_each_once() -> None:
    one, other = OWNER, replace(OWNER, uid="uid-2", pod="web-1")
    held = (("a", one, "1"), ("b", other, "0.1"), ("c", one, "1"), ("d", None, "1"))
    ledger = Ledger([replace(allocation(name, [name]), owner=owner, unit=unit) for name, owner, unit in held])
    ledger.record(replace(allocation("e", ["e"], resource="acme.com/other"), owner=other, unit="1"))

    assert ledger.owners_with_unit(GPU, "1") == (one, None)
    assert ledger.owners_with_unit(GPU, "0.1") == (other,)


def test_every_id_is_held_on_its_own_card() -> None:
    ledger = Ledger(
        [allocation("one", ["a::0", "b::3"]), allocation("two", ["a::1"], resource="acme.com/other")]
    )

    assert held_ids(ledger.usage()) == {GPU: {"a::0": "a", "b::3": "b"}, "acme.com/other": {"a::1": "a"}}
    assert ledger.devices_in_use() == {"a", "b"}


def test_ids_of_an_allocation_that_names_one_card_are_held_on_it() -> None:
    ledger = Ledger([allocation("one", ["x-0", "x-1"], devices=("a",))])

    assert held_ids(ledger.usage()) == {GPU: {"x-0": "a", "x-1": "a"}}


def test_an_id_that_two_containers_share_is_held_until_both_are_over() -> None:
    ledger = Ledger([allocation("init", ["a"]), allocation("app", ["a"])])

    ledger.release("init", "pod gone", now=1)
    held = held_ids(ledger.usage())
    ledger.release("app", "pod gone", now=1)

    assert held == {GPU: {"a": "a"}}
    assert held_ids(ledger.usage()) == {}
    assert ledger.devices_in_use() == frozenset()


def test_who_has_an_owner_was_answered() -> None:
    ledger = Ledger([allocation("one", ["a"], state=AllocationState.PREPARED)])

    ledger.confirm("one", OWNER, "k1")

    it = ledger.get("one")
    assert it == allocation("one", ["a"], owner=OWNER, life="k1")


def test_what_is_remarked_of_an_allocation_stays_until_it_is_taken_back() -> None:
    ledger = Ledger([allocation("one", ["a"])])

    ledger.remark("one", "its slice is gone")
    said = ledger.all()
    ledger.remark("one", "")

    assert said == (allocation("one", ["a"], reason="its slice is gone"),)
    assert ledger.all() == (allocation("one", ["a"]),)


def test_the_allocations_that_hold_an_id_are_those_in_use_of_that_resource() -> None:
    ledger = Ledger(
        [
            allocation("init", ["a", "b"]),
            allocation("app", ["a"]),
            allocation("other", ["a"], resource="acme.com/other"),
            allocation("over", ["a"]),
        ]
    )
    ledger.release("over", "pod gone", now=1)

    assert [it.id for it in ledger.holders(GPU, ["a", "c"])] == ["init", "app"]
    assert ledger.holders(GPU, ["c"]) == []
    assert ledger.holders("acme.com/none", ["a"]) == []


def test_what_is_in_use_is_as_it_is_now_after_every_change() -> None:
    ledger = Ledger([allocation("one", ["a"])])
    own = replace(allocation("own", [], devices=("c1",)), source=AllocationSource.ANNOTATION)

    assert ([it.id for it in ledger.in_use()], ledger.external()) == (["one"], {})
    ledger.record(own)
    assert ([it.id for it in ledger.in_use()], ledger.external()) == (["one", "own"], {"c1": own})
    ledger.drop("own")
    assert ([it.id for it in ledger.in_use()], ledger.external()) == (["one"], {})
    ledger.release("one", "pod gone", now=1)
    assert tuple(ledger.in_use()) == ()


def test_what_is_over_may_be_replaced_by_what_is_over_of_another_resource() -> None:
    over = allocation("one", ["a"], state=AllocationState.RELEASED)
    ledger = Ledger([over])

    ledger.record(replace(over, resource="acme.com/other"))
    ledger.drop("one")

    assert ledger.all() == ()


@given(st.lists(st.tuples(st.sampled_from(["record", "confirm", "release", "forget", "revive"]), ANY, IDS)))
def test_who_holds_an_id_is_always_what_a_look_at_every_allocation_says(
    steps: list[tuple[str, str, list[str]]],
) -> None:
    ledger = Ledger([allocation("loaded", ["a", "b"])])

    for verb, name, ids in steps:
        known = ledger.get(name)
        if verb == "record":
            ledger.record(allocation(name, ids, resource="acme.com/other" if "c" in ids else GPU))
        elif known is not None and verb == "confirm":
            ledger.confirm(name, OWNER)
        elif known is not None and verb == "release":
            ledger.release(name, "over", now=1)
        elif known is not None and verb == "revive":
            ledger.revive(name)
        elif verb == "forget":
            ledger.drop(name)
        for one in "abc":
            holding = [it for it in ledger.in_use() if it.resource == GPU and one in it.ids]
            assert ledger.holders(GPU, [one, "z"]) == holding
            assert (one in held_ids(ledger.usage()).get(GPU, {})) == bool(holding)


def test_ids_that_the_kubelet_has_forgotten_are_told_by_resource_until_they_are_released() -> None:
    ledger = Ledger([allocation("one", ["a", "b"]), allocation("two", ["c"])])

    ledger.set_forgotten("one", forgotten=True)
    forgotten = ledger.usage().forgotten
    ledger.release("one", "pod gone", now=1)

    assert forgotten == {GPU: {"a", "b"}}
    assert ledger.usage().forgotten == {}


def test_an_id_that_the_kubelet_has_given_out_since_it_forgot_a_pod_is_taken_for_free_by_nobody() -> None:
    lost = replace(allocation("lost", ["a", "b"], owner=Owner("uid-0", "main")), forgotten=True)
    ledger = Ledger([lost, allocation("since", ["a"], owner=OWNER), allocation("asked for", ["b"])])

    assert ledger.usage().forgotten == {GPU: {"b"}}
    assert ledger.forgotten() == {GPU: {"b": lost}}


def test_hardware_that_was_made_is_noted_and_is_news_once() -> None:
    """Whatever changed of the allocation while the vendor worked stays as it is."""
    ledger = Ledger([allocation("one", ["a"], state=AllocationState.INTENT)])
    slices = [Partition("s0", "a", "one"), Partition("s1", "a", "one")]

    news = [ledger.record_made_slices("one", slices, AllocationState.PREPARED) for _ in range(2)]
    ledger.confirm("one", OWNER, "k1")
    news.append(ledger.record_made_slices("one", slices, AllocationState.DONE))

    assert news == [True, False, False]
    assert ledger.all() == (allocation("one", ["a"], owner=OWNER, life="k1", partitions=("s0", "s1")),)


def test_hardware_that_is_made_again_ends_the_remark_on_it_and_no_other() -> None:
    ledger = Ledger([allocation("one", ["a"], reason="s0 is gone"), allocation("two", ["b"])])
    ledger.set_forgotten("two", forgotten=True)

    for name in ("one", "two"):
        ledger.record_made_slices(name, [], AllocationState.DONE)

    assert [it.reason for it in ledger.all()] == ["", FORGOTTEN]


def test_hardware_that_was_made_brings_nothing_back_that_is_over() -> None:
    ledger = Ledger([allocation("one", ["a"])])
    ledger.release("one", "pod gone", now=1)

    assert not ledger.record_made_slices("one", [Partition("s0", "a", "one")], AllocationState.DONE)
    assert not ledger.record_made_slices("never there", [], AllocationState.DONE)
    assert tuple(ledger.in_use()) == ()


def test_a_released_allocation_is_still_shown_with_its_reason() -> None:
    ledger = Ledger([allocation("one", ["a"])])

    ledger.release("one", "pod gone", now=7)

    assert tuple(ledger.in_use()) == ()
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

    ledger.drop("one")
    ledger.drop("never there")

    assert ledger.all() == ()


def test_an_allocation_of_a_clock_that_was_ahead_counts_from_now() -> None:
    it = Ledger([allocation("old", ["0"], since=5), allocation("ahead", ["1"], since=9000)], now=100)

    assert [one.since for one in it.all()] == [5, 100]


def test_ids_in_use_follow_every_change() -> None:
    ledger = Ledger([allocation("one", ["0"])])
    seen = [held_ids(ledger.usage())]
    assert ledger.usage() is ledger.usage()

    ledger.record(allocation("two", ["1"]))
    seen.append(held_ids(ledger.usage()))
    ledger.release("one", "pod gone", now=1)
    seen.append(held_ids(ledger.usage()))
    ledger.drop("two")
    seen.append(held_ids(ledger.usage()))

    assert [sorted(it.get(GPU, {})) for it in seen] == [["0"], ["0", "1"], ["1"], []]


def test_ids_count_as_unread_from_their_change_until_the_usage_is_asked_for() -> None:
    ledger = Ledger([allocation("1", ["GPU-a::0", "GPU-a::1"])])
    unread = [ledger.unread_ids]

    ledger.usage()
    unread.append(ledger.unread_ids)
    ledger.record(allocation("2", ["GPU-b::0"]))
    ledger.remark("1", "a person should know this")
    unread.append(ledger.unread_ids)
    ledger.release("1", "pod gone", now=1)
    unread.append(ledger.unread_ids)

    assert unread == [2, 0, 1, 3]


def test_the_cards_on_which_shares_lie_by_the_ids_of_others_are_told_until_they_are_free() -> None:
    ledger = Ledger([replace(allocation("one", ["a::0"]), diverged=("b",)), allocation("two", ["c::0"])])

    lying = ledger.usage().diverged
    ledger.release("one", "its pod is gone", 2.0)

    assert lying == {GPU: {"b"}}
    assert ledger.usage().diverged == {}


def test_a_card_is_held_by_an_id_by_which_one_of_several_pods_lies_there() -> None:
    """The kubelet gave it out again, and the ledger has not let go of who had it before."""
    on_a, on_b = (
        allocation("one", ["a::0"]),
        replace(allocation("two", ["a::0"]), diverged=("b",)),
    )

    assert Ledger([on_b]).usage().cards_of(GPU) == {"b"}
    assert Ledger([on_a, on_b]).usage().cards_of(GPU) == {"a", "b"}


def test_who_has_a_card_is_also_who_lies_there_by_the_id_of_another() -> None:
    owner = Owner("uid-web", "main")
    ledger = Ledger([replace(allocation("one", ["a::0"], owner=owner), diverged=("b",))])

    assert ledger.owners_on_cards(GPU, frozenset({"b"})) == (owner,)
    assert ledger.owners_on_cards(GPU, frozenset({"a"})) == ()
    assert ledger.owners_on_cards(GPU, frozenset({"c"})) == ()
