"""Cards that several resources offer: each is the first's that takes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.admission import admit
from agent.core.allocation.ledger import Ledger
from agent.core.allocation.scene import Scene
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.dynamic_modes import holder_in_other_mode, rules_with_equal_ids
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.plan import plan
from agent.core.devices.resource_waits import ResourceWait, waits_of_resources
from agent.core.devices.topology import Topology
from agent.core.errors import InOtherMode
from agent.core.model import AdvertisedDevice, DeviceStatus, Plan, Resource
from agent.vendor_api.agent import ResourceRule, Sharing
from core.values import allocation, held_ids, node, status, usage

WHOLE, SHARE, UNIT = "acme.com/whole", "acme.com/share", "acme.com/unit"
RULES = (
    ResourceRule(WHOLE),
    ResourceRule(SHARE, sharing=Sharing("replicas", 2)),
    ResourceRule(UNIT, sharing=Sharing("replicas", 3), ids="short"),
)
CARDS = (status("a", 0), status("b", 1))


def planned(
    held: Mapping[str, Mapping[str, str]] | None = None,
    *,
    cards: tuple[DeviceStatus, ...] = CARDS,
    rules: tuple[ResourceRule, ...] = RULES,
    before: Plan | None = None,
    diverged: Mapping[str, Mapping[str, Collection[str]]] | None = None,
    used: ResourceUsage | None = None,
) -> dict[str, Resource]:
    offers = [Offer("acme", rules, dynamic=True)]
    return plan(offers, node(*cards), before=before or {}, usage=used or usage(held, diverged))


def card(it: Resource, uuid: str) -> AdvertisedDevice:
    return next(one for one in it.cards if one.uuid == uuid)


def counts(its: Mapping[str, Resource]) -> dict[str, tuple[int, int]]:
    return {name: (it.capacity, it.allocatable) for name, it in its.items()}


def test_free_cards_are_offered_by_every_resource_that_names_them() -> None:
    assert counts(planned()) == {WHOLE: (2, 2), SHARE: (4, 4), UNIT: (6, 6)}


def test_a_card_in_use_is_offered_by_its_mode_alone_and_still_listed_by_the_others() -> None:
    its = planned({SHARE: {"a::0": "a"}})

    assert counts(its) == {WHOLE: (2, 1), SHARE: (4, 4), UNIT: (6, 3)}
    assert {name: card(it, "a").mode for name, it in its.items()} == {WHOLE: SHARE, SHARE: "", UNIT: SHARE}


def test_a_card_on_which_a_share_lies_by_the_id_of_another_is_in_that_mode() -> None:
    its = planned({SHARE: {"b::0": "b", "b::1": "b"}}, diverged={SHARE: {"a": ["b::0"]}})

    assert [card(its[WHOLE], uuid).mode for uuid in ("a", "b")] == [SHARE, SHARE]


def test_a_card_whose_ids_in_use_all_lie_on_other_cards_is_free_for_every_mode() -> None:
    """The IDs stay well for who has them, also once the card is given out in another way."""
    diverged = {SHARE: {"b": ["a::1"]}}

    free = planned({SHARE: {"a::1": "a"}}, diverged=diverged)
    taken = planned({SHARE: {"a::1": "a"}, WHOLE: {"a": "a"}}, diverged=diverged)

    assert counts(free) == {WHOLE: (2, 1), SHARE: (4, 4), UNIT: (6, 3)}
    assert [card(free[WHOLE], uuid).mode for uuid in ("a", "b")] == ["", SHARE]
    assert card(taken[WHOLE], "a").healthy
    it = card(taken[SHARE], "a")
    assert (it.healthy, it.held, it.mode) == (False, ("a::1",), WHOLE)


def test_a_card_whose_slice_is_in_use_is_in_that_mode() -> None:
    its = planned({SHARE: {"a-1": "a-1"}}, cards=(*CARDS, status("a-1", 0, parent="a", slice=1)))

    assert [card(its[WHOLE], uuid).mode for uuid in ("a", "b")] == [SHARE, ""]


def test_ids_in_use_of_a_card_that_is_in_two_modes_stay_well_for_who_has_them() -> None:
    """After a change of the config: the kubelet must take both pods back after its restart."""
    its = planned({WHOLE: {"a": "a"}, SHARE: {"a::1": "a"}})

    assert [(card(its[name], "a").healthy, card(its[name], "a").held) for name in (WHOLE, SHARE)] == [
        (False, ("a",)),
        (False, ("a::1",)),
    ]


def test_ids_of_an_earlier_config_stay_listed_and_well_on_a_card_in_another_mode() -> None:
    its = planned({WHOLE: {"a": "a"}, SHARE: {"a::7": "a"}})

    it = card(its[SHARE], "a")
    assert (it.kept, it.held, it.mode, it.healthy) == (("a::7",), ("a::7",), WHOLE, False)


def test_a_card_that_fails_is_sick_in_every_mode() -> None:
    its = planned(cards=(status("a", 0, healthy=False), status("b", 1)))

    assert counts(its) == {WHOLE: (2, 1), SHARE: (4, 2), UNIT: (6, 3)}


def test_shares_are_packed_so_that_whole_cards_stay_free() -> None:
    assert {name: it.policy for name, it in planned().items()} == {
        WHOLE: "aligned",
        SHARE: "packed",
        UNIT: "packed",
    }


def test_a_policy_that_the_config_names_wins() -> None:
    rules = (RULES[0], ResourceRule(SHARE, sharing=Sharing("replicas", 2), policy="distributed"))
    assert planned(rules=rules)[SHARE].policy == "distributed"


def test_nobody_waits_for_a_card_that_changes_its_mode_by_itself() -> None:
    held = {SHARE: {"a::0": "a"}, "acme.com/former": {"b": "b"}}

    found = waits_of_resources([Offer("acme", RULES[:2], dynamic=True)], node(*CARDS), usage(held))

    former = "acme.com/former"
    assert found == (
        ResourceWait(WHOLE, former, ("b",), frozenset("b")),
        ResourceWait(SHARE, former, ("b",), frozenset("b")),
    )


def test_with_fixed_modes_a_card_is_the_first_rules_alone() -> None:
    its = plan([Offer("acme", RULES)], node(*CARDS))

    assert counts(its) == {WHOLE: (2, 2)}


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (ResourceRule("a/x"), ResourceRule("a/y"), True),
        (ResourceRule("a/x"), ResourceRule("a/y", ids="minor"), False),
        (ResourceRule("a/x"), ResourceRule("a/y", sharing=Sharing("replicas", 2)), False),
        (ResourceRule("a/x", devices=(0,)), ResourceRule("a/y", devices=(1,)), False),
        (ResourceRule("a/x", devices=(0, 1)), ResourceRule("a/y", devices=(1,)), True),
        (ResourceRule("a/x", devices=1), ResourceRule("a/y", devices=(5,)), True),
        (ResourceRule("a/x", devices=(0,)), ResourceRule("a/x", devices=(0,)), False),
    ],
)
def test_two_resources_that_would_make_the_same_ids_of_a_card_are_found(
    one: ResourceRule, other: ResourceRule, *, alike: bool
) -> None:
    assert [*rules_with_equal_ids((one, other))] == ([(one, other)] if alike else [])


def test_who_has_a_card_by_a_resource_beside_is_found_where_it_really_lies() -> None:
    its = planned()
    on_a = allocation("1", ["a::0"], resource=SHARE)
    moved = replace(allocation("2", ["a::1"], resource=SHARE), diverged=("b",))

    assert holder_in_other_mode(its[WHOLE], "a", [on_a]) == on_a
    assert holder_in_other_mode(its[WHOLE], "b", [on_a, moved]) == moved
    assert holder_in_other_mode(its[WHOLE], "a", [moved]) is None
    assert holder_in_other_mode(its[SHARE], "a", [on_a]) is None


def test_a_request_for_a_card_in_another_mode_is_refused_with_the_mode() -> None:
    scene = Scene(planned({SHARE: {"a::0": "a"}}), node(*CARDS), Topology(), {})

    with pytest.raises(InOtherMode, match="card a is in-other-mode: it is given out as acme"):
        admit(scene, WHOLE, ["a"])
    assert [it.uuid for it in admit(scene, WHOLE, ["b"]).devices] == ["b"]


@given(
    st.lists(st.tuples(st.sampled_from([WHOLE, SHARE, UNIT]), st.integers(0, 2), st.booleans()), max_size=30)
)
def test_whatever_is_taken_and_let_go_no_card_is_ever_in_two_modes(
    steps: list[tuple[str, int, bool]],
) -> None:
    """Somebody takes what the plan offers, or lets go of what it has."""
    held: dict[str, dict[str, str]] = {name: {} for name in (WHOLE, SHARE, UNIT)}
    for name, at, takes in steps:
        its = planned(held)
        free = [(one, it.uuid) for it in its[name].cards if it.healthy for one in it if one not in held[name]]
        if takes and at < len(free):
            held[name][free[at][0]] = free[at][1]
        elif not takes and at < len(held[name]):
            del held[name][[*held[name]][at]]
        modes = {uuid: {key for key, ids in held.items() if uuid in ids.values()} for uuid in ("a", "b")}
        assert all(len(names) <= 1 for names in modes.values())
        after = planned(held)
        for uuid, names in modes.items():
            offering = {key for key, it in after.items() if card(it, uuid).healthy}
            assert offering == (names or {WHOLE, SHARE, UNIT})


@given(
    st.lists(
        st.tuples(
            st.sampled_from([WHOLE, SHARE, UNIT]), st.integers(0, 4), st.booleans(), st.sampled_from("ab")
        ),
        max_size=30,
    )
)
def test_nor_where_shares_lie_on_other_cards_than_those_of_their_ids(
    steps: list[tuple[str, int, bool, str]],
) -> None:
    """A scheduler chooses the card of each share; a whole card is that of its ID."""
    ledger = Ledger()
    for number, (name, at, takes, chosen) in enumerate(steps):
        its = planned(used=ledger.usage())
        held = held_ids(ledger.usage()).get(name, {})
        free = [(one, it.uuid) for it in its[name].cards if it.healthy for one in it if one not in held]
        mine = [it.id for it in ledger.in_use() if it.resource == name]
        if takes and at < len(free):
            one, own = free[at]
            uuid = own if name == WHOLE else chosen
            if holder_in_other_mode(its[name], uuid, ledger.in_use()) is None:
                answer = replace(allocation(f"{number}", [one], resource=name), devices=(own,))
                ledger.record(replace(answer, diverged=(uuid,) if uuid != own else ()))
        elif not takes and at < len(mine):
            ledger.release(mine[at], "over", 1.0)
        after = planned(used=ledger.usage())
        for uuid in ("a", "b"):
            names = {it.resource for it in ledger.in_use() if uuid in it.cards}
            assert len(names) <= 1
            assert {key for key, it in after.items() if card(it, uuid).healthy} == (
                names or {WHOLE, SHARE, UNIT}
            )
        for it in ledger.in_use():  # who has an ID keeps it, well
            at_home = card(after[it.resource], it.devices[0])
            assert it.ids[0] in at_home
            assert at_home.healthy or it.ids[0] in at_home.held
