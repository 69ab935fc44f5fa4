"""What each resource lists: snapshot, rules and IDs in use in, resources out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.devices.cards_of_resources import Offer, missing_cards
from agent.core.devices.device_ids import short_forms
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.plan import plan
from agent.core.devices.resource_waits import ResourceWait, wait_sentence, waits_of_resources
from agent.core.model import (
    Cordon,
    DeviceStatus,
    NodeSnapshot,
    Owner,
    Plan,
    Resource,
    VendorState,
    VendorStatus,
)
from agent.vendor_api.agent import FOREIGN_SLICES, IdForm, Placement, ResourceRule, Sharing
from core.values import GPU, node, status, usage

CARDS = (
    status("GPU-a", 0, minor=4, numa=1),
    status("GPU-b", 1, minor=5, numa=0),
    status("GPU-c", 2, minor=6),
)
#: SHA-256 of these begins alike: sv54m6gwg..., sv54m6qgv... and nolbbn4gj..., nolbbnpsb...
TWINS = ("GPU-000092a0-0000-0000-0000-000000000000", "GPU-000087eb-0000-0000-0000-000000000000")
OTHER_TWINS = ("GPU-0000d28b-0000-0000-0000-000000000000", "GPU-00006c3f-0000-0000-0000-000000000000")


def planned(
    *rules: ResourceRule,
    cards: tuple[DeviceStatus, ...] = CARDS,
    held: Mapping[str, Mapping[str, str]] | None = None,
    before: Plan | None = None,
    external: tuple[str, ...] = (),
    diverged: Mapping[str, Mapping[str, Collection[str]]] | None = None,
    units: Mapping[str, Mapping[str, Collection[str]]] | None = None,
) -> dict[str, Resource]:
    its, offers = node(*cards), [Offer("acme", rules)]
    return plan(
        offers,
        its,
        before=before or {},
        usage=usage(held, diverged, units, external=external),
    )


def listed(resource: Resource) -> dict[str, list[str]]:
    return {card.uuid: list(card) for card in resource.cards}


def replicas(count: int) -> Sharing:
    return Sharing("replicas", count)


def test_an_exclusive_card_has_one_id_its_uuid() -> None:
    it = planned(ResourceRule(GPU))[GPU]

    assert listed(it) == {"GPU-a": ["GPU-a"], "GPU-b": ["GPU-b"], "GPU-c": ["GPU-c"]}
    assert (it.capacity, it.allocatable, it.policy) == (3, 3, "aligned")


def test_replicas_are_numbered_ids_of_their_card() -> None:
    it = planned(ResourceRule(GPU, sharing=replicas(2)))[GPU]

    assert listed(it)["GPU-a"] == ["GPU-a::0", "GPU-a::1"]
    assert (it.capacity, it.policy) == (6, "distributed")


def sized(it: DeviceStatus, gib: int) -> DeviceStatus:
    return replace(it, device=replace(it.device, memory=gib << 30))


SIZED = (sized(CARDS[0], 2), sized(CARDS[1], 3), sized(CARDS[2], 0))
BY_MEMORY = ResourceRule(GPU, sharing=Sharing("memory", unit="1"))


def test_units_of_memory_are_numbered_ids_of_their_card_as_many_as_each_has() -> None:
    it = planned(BY_MEMORY, cards=SIZED)[GPU]

    assert listed(it) == {
        "GPU-a": ["bl62ea::0", "bl62ea::1"],
        "GPU-b": ["u6v54g::0", "u6v54g::1", "u6v54g::2"],
        "GPU-c": [],
    }
    assert (it.capacity, it.allocatable, it.policy) == (5, 5, "packed")


@pytest.mark.parametrize(
    ("rule", "unit", "offered"),
    [
        (BY_MEMORY, "1", True),
        (BY_MEMORY, "0.1", False),
        (BY_MEMORY, "", False),
        (ResourceRule(GPU, ids="short", sharing=replicas(2)), "", True),
        (ResourceRule(GPU, ids="short", sharing=replicas(2)), "1", False),
    ],
)
def test_a_card_whose_ids_in_use_count_something_else_is_offered_once_free(
    rule: ResourceRule, unit: str, offered: bool
) -> None:
    held = {GPU: {"bl62ea::1": "GPU-a"}}

    it = plan(
        [Offer("acme", (rule,))],
        node(*SIZED),
        usage=usage(held=held, units={GPU: {"GPU-a": (unit,)}}),
    )[GPU]

    assert listed(it)["GPU-a"] == (["bl62ea::0", "bl62ea::1"] if offered else ["bl62ea::1"])
    assert len(listed(it)["GPU-b"]) == len(listed(planned(rule, cards=SIZED)[GPU])["GPU-b"])


def test_the_policy_of_the_rule_wins() -> None:
    assert planned(ResourceRule(GPU, policy="packed"))[GPU].policy == "packed"


@pytest.mark.parametrize(
    ("devices", "cards"),
    [
        ("all", ["GPU-a", "GPU-b", "GPU-c"]),
        (2, ["GPU-a", "GPU-b"]),
        (9, ["GPU-a", "GPU-b", "GPU-c"]),
        ((0, 2), ["GPU-a", "GPU-c"]),
        (("GPU-b",), ["GPU-b"]),
        (("GPU-c", 0), ["GPU-a", "GPU-c"]),
        ((7, "GPU-x"), []),
    ],
)
def test_devices_are_all_or_a_count_or_named_by_index_or_uuid(
    devices: Literal["all"] | int | tuple[int | str, ...], cards: list[str]
) -> None:
    it = planned(ResourceRule(GPU, devices=devices))

    assert [card.uuid for name in it for card in it[name].cards] == cards


def test_the_first_rule_that_names_a_card_wins_it() -> None:
    it = planned(ResourceRule("acme.com/a", devices=(1,)), ResourceRule("acme.com/b"))

    assert list(listed(it["acme.com/a"])) == ["GPU-b"]
    assert list(listed(it["acme.com/b"])) == ["GPU-a", "GPU-c"]


def test_a_count_counts_cards_that_are_left() -> None:
    it = planned(ResourceRule("acme.com/a", devices=1), ResourceRule("acme.com/b", devices=2))

    assert list(listed(it["acme.com/a"])) == ["GPU-a"]
    assert list(listed(it["acme.com/b"])) == ["GPU-b", "GPU-c"]


def test_a_vendor_offers_only_its_own_cards() -> None:
    cards = (*CARDS, status("X-0", 0, vendor="bolt"))

    it = plan(
        [Offer("acme", (ResourceRule(GPU),)), Offer("bolt", (ResourceRule("bolt.com/x"),))], node(*cards)
    )

    assert list(listed(it["bolt.com/x"])) == ["X-0"]
    assert it[GPU].capacity == 3


@pytest.mark.parametrize(
    ("form", "ids"),
    [
        ("uuid", ["GPU-a", "GPU-b", "GPU-c"]),
        ("minor", ["4", "5", "6"]),
        ("short", ["bl62ea", "u6v54g", "i32fyi"]),
    ],
)
def test_ids_are_uuid_or_minor_or_short(form: IdForm, ids: list[str]) -> None:
    exclusive = planned(ResourceRule(GPU, ids=form))[GPU]
    shared = planned(ResourceRule(GPU, ids=form, sharing=replicas(2)))[GPU]

    assert [device_id for card in exclusive.cards for device_id in card] == ids
    assert [next(iter(card)) for card in shared.cards] == [f"{stem}::0" for stem in ids]


def test_a_card_without_a_minor_of_its_own_is_left_out_where_ids_are_minors() -> None:
    cards = (status("GPU-a", 0, minor=1), status("GPU-b", 1), status("GPU-c", 2, minor=1))

    it = planned(ResourceRule(GPU, ids="minor"), cards=cards)[GPU]

    assert listed(it) == {"GPU-a": ["1"]}


def test_short_forms_that_collide_grow_and_no_others() -> None:
    alone = short_forms(["GPU-a", TWINS[0]])

    together = short_forms(["GPU-a", *TWINS, *OTHER_TWINS])

    assert alone[TWINS[0]] == "sv54m6"
    assert together[TWINS[0]] == "sv54m6g"
    assert together[TWINS[1]] == "sv54m6q"
    assert together["GPU-a"] == alone["GPU-a"]
    assert len(set(together.values())) == 5


def test_short_forms_of_two_vendors_do_not_collide() -> None:
    cards = (status(TWINS[0], 0), status(TWINS[1], 0, vendor="bolt"))
    offers = [
        Offer("acme", (ResourceRule(GPU, ids="short"),)),
        Offer("bolt", (ResourceRule("b.com/x", ids="short"),)),
    ]

    it = plan(offers, node(*cards))

    assert [*it[GPU].cards[0]] != [*it["b.com/x"].cards[0]]


@pytest.mark.parametrize(
    ("placement", "numa"), [("local", [1, 0, None]), ("claim", [None] * 3), ("auto", [None] * 3)]
)
def test_numa_is_told_only_where_the_kubelet_places(placement: Placement, numa: list[int | None]) -> None:
    it = planned(ResourceRule(GPU, placement=placement))[GPU]

    assert [card.numa for card in it.cards] == numa


def test_health_fans_out_to_all_ids_of_a_card() -> None:
    cards = (status("GPU-a", 0, healthy=False), status("GPU-b", 1))

    it = planned(ResourceRule(GPU, sharing=replicas(4)), cards=cards)[GPU]

    assert [card.healthy for card in it.cards] == [False, True]
    assert (it.capacity, it.allocatable) == (8, 4)


def test_ids_in_use_stay_listed_when_replicas_shrink_and_count_among_those_that_are_left() -> None:
    held = {GPU: {"GPU-a::3": "GPU-a", "GPU-a::0": "GPU-a"}}

    it = planned(ResourceRule(GPU, sharing=replicas(2)), held=held)[GPU]
    freed = planned(ResourceRule(GPU, sharing=replicas(2)), before={GPU: it})[GPU]

    assert listed(it)["GPU-a"] == ["GPU-a::0", "GPU-a::3"]
    assert listed(freed)["GPU-a"] == ["GPU-a::0", "GPU-a::1"]


def test_ids_in_use_stay_listed_when_the_card_goes_to_another_resource_or_away() -> None:
    held = {GPU: {"GPU-a": "GPU-a", "GPU-z": "GPU-z"}}

    it = planned(ResourceRule(GPU, devices=(1, 2)), held=held)[GPU]

    assert listed(it) == {"GPU-b": ["GPU-b"], "GPU-c": ["GPU-c"], "GPU-a": ["GPU-a"], "GPU-z": ["GPU-z"]}
    assert [card.healthy for card in it.cards] == [True, True, True, False]


def test_a_removed_resource_lists_what_is_in_use_then_nothing_then_ends() -> None:
    served = planned(ResourceRule(GPU))
    held = {GPU: {"GPU-b": "GPU-b"}}

    retired = planned(held=held, before=served)
    still = planned(held=held, before=retired)
    emptied = planned(before=still)
    ended = planned(before=emptied)

    assert retired[GPU].retired
    assert listed(retired[GPU]) == listed(still[GPU]) == {"GPU-b": ["GPU-b"]}
    assert listed(emptied[GPU]) == {}
    assert emptied[GPU].retired
    assert ended == {}


def test_a_removed_resource_that_comes_back_is_whole_again() -> None:
    served = planned(ResourceRule(GPU))
    retired = planned(before=served)

    assert planned(ResourceRule(GPU), before=retired) == served


def test_a_resource_never_served_and_without_devices_is_not_planned() -> None:
    assert planned(ResourceRule(GPU), cards=()) == {}


def test_a_resource_served_before_is_planned_without_devices_the_kubelet_must_see_it_empty() -> None:
    served = planned(ResourceRule(GPU))

    it = planned(ResourceRule(GPU), cards=(), before=served)[GPU]

    assert it.cards == ()
    assert not it.retired


def test_after_a_restart_ids_in_use_are_listed_even_while_no_card_is_seen() -> None:
    it = planned(ResourceRule(GPU), cards=(), held={GPU: {"GPU-a": "GPU-a"}})[GPU]

    assert listed(it) == {"GPU-a": ["GPU-a"]}
    assert it.allocatable == 0


@pytest.mark.parametrize(
    ("device_id", "is_given_out"),
    [
        *(("GPU-a-1", True), ("GPU-a-_-1", True), ("0-1", True), ("GPU-a::1", True)),
        *(("GPU-a-7", False), ("GPU-a::7", False), ("0::1", False), ("GPU-a", False)),
    ],
)
def test_a_card_is_known_by_its_ids_in_every_plugins_writing(device_id: str, is_given_out: bool) -> None:
    card = status("GPU-a", 0)
    cards = (replace(card, device=replace(card.device, minor=0)),)
    it = planned(ResourceRule(GPU, sharing=replicas(2)), cards=cards)[GPU]

    assert it.index.by_stem(device_id) == it.cards[0]
    assert it.card_of(device_id) == (it.cards[0] if is_given_out else None)


@pytest.mark.parametrize(
    "device_id", ["GPU-a-01", "GPU-a-", "GPU-a-x", "-1", "GPU-b-1", "1-1", "GPU-a--1", ""]
)
def test_what_is_no_card_of_ours_in_any_writing_is_none(device_id: str) -> None:
    it = planned(ResourceRule(GPU, sharing=replicas(2)), cards=(status("GPU-a", 0),))[GPU]

    assert it.index.by_stem(device_id) is None


MEMORY = ResourceRule(GPU, sharing=Sharing("memory", unit="1"), ids="short")


def minored(uuid: str, n: int, gib: int = 4) -> DeviceStatus:
    it = status(uuid, n)
    return replace(it, device=replace(it.device, minor=n, memory=gib << 30))


@pytest.mark.parametrize("theirs", ["GPU-a-_-{}", "0-{}", "GPU-a-{}"])
def test_units_of_another_plugins_pods_are_listed_in_the_place_of_as_many_of_ours(
    theirs: str,
) -> None:
    ids = [theirs.format(n) for n in (0, 3)]
    cards = (minored("GPU-a", 0), minored("GPU-b", 1))
    whole = planned(MEMORY, cards=cards)[GPU]
    stem = next(iter(whole.cards[0])).partition("::")[0]

    held = {GPU: dict.fromkeys(ids, "GPU-a")}
    it = planned(MEMORY, cards=cards, held=held, units=units_of_1("GPU-a"))[GPU]

    assert sorted(it.cards[0]) == sorted([f"{stem}::0", f"{stem}::1", *ids])
    assert (it.capacity, it.allocatable, it.cards[0].shares) == (8, 8, 4)
    assert it.cards[1] == whole.cards[1]


def test_ids_of_ours_that_are_in_use_make_no_way_for_another_plugins() -> None:
    whole = planned(MEMORY, cards=(minored("GPU-a", 0),))[GPU]
    stem = next(iter(whole.cards[0])).partition("::")[0]
    held = {GPU: dict.fromkeys(["0-0", f"{stem}::3", f"{stem}::1"], "GPU-a")}

    it = planned(MEMORY, cards=(minored("GPU-a", 0),), held=held, units=units_of_1("GPU-a"))[GPU]

    assert sorted(it.cards[0]) == sorted(["0-0", f"{stem}::0", f"{stem}::1", f"{stem}::3"])


@pytest.mark.parametrize(
    ("device_id", "unit"), [("0-4", "1"), ("GPU-a", "1"), ("0", "1"), ("0-1", "unknown")]
)
def test_a_card_with_another_plugins_ids_that_are_no_units_of_it_waits(device_id: str, unit: str) -> None:
    held = {GPU: {device_id: "GPU-a"}}
    cards = (minored("GPU-a", 0), minored("GPU-b", 1))

    it = planned(MEMORY, cards=cards, held=held, units={GPU: {"GPU-a": (unit,)}})[GPU]

    assert {card.uuid: len(card) for card in it.cards} == {"GPU-a": 1, "GPU-b": 4}
    assert device_id in next(card for card in it.cards if card.uuid == "GPU-a")


def units_of_1(uuid: str) -> dict[str, dict[str, tuple[str, ...]]]:
    return {GPU: {uuid: ("1",)}}


def test_an_id_known_exactly_wins_before_a_suffix_is_cut() -> None:
    cards = (status("GPU-a", 0), status("GPU-a-1", 1))
    rule = ResourceRule(GPU, devices=(0,), sharing=replicas(2))
    mixed = planned(rule, cards=cards, held={GPU: {"GPU-a-1": "GPU-a-1"}})[GPU]
    exclusive = planned(ResourceRule(GPU), cards=cards)[GPU]
    shared = planned(replace(rule, devices="all"), cards=cards)[GPU]

    for resource, device_id, uuid in (
        (exclusive, "GPU-a-1", "GPU-a-1"),
        (shared, "GPU-a-1::1", "GPU-a-1"),
        (mixed, "GPU-a::1", "GPU-a"),
        (mixed, "GPU-a-1", "GPU-a-1"),
    ):
        found = resource.card_of(device_id)
        assert found is not None
        assert found.uuid == uuid


NOT_IDS = """
    GPU-a GPU-a:: ::0 GPU-x::0 GPU-a::0::0 GPU-a::2 GPU-a::-1 GPU-a::+1 GPU-a::01 GPU-a::1e0 GPU-a::¹ GPU-a::١
"""


@pytest.mark.parametrize(
    "device_id", [*NOT_IDS.split(), "", "GPU-a:: 1", "GPU-a::1 ", "GPU-a::" + "9" * 10_000]
)
def test_only_canonical_replica_numbers_are_ids(device_id: str) -> None:
    it = planned(ResourceRule(GPU, sharing=replicas(2)))[GPU]

    assert it.card_of(device_id) is None


@given(
    rules=st.lists(
        st.builds(
            ResourceRule,
            name=st.sampled_from(["acme.com/a", "acme.com/b", "acme.com/c"]),
            devices=st.just("all")
            | st.integers(0, 4)
            | st.lists(st.integers(0, 4) | st.sampled_from(["GPU-a", "GPU-b"]), max_size=3).map(tuple),
            sharing=st.just(Sharing()) | st.integers(1, 3).map(replicas),
            ids=st.sampled_from(["uuid", "minor", "short"]),
        ),
        max_size=4,
    ),
    seen=st.integers(0, 3),
    held=st.dictionaries(
        st.sampled_from(["acme.com/a", "acme.com/b"]),
        st.dictionaries(
            st.sampled_from(["GPU-a", "GPU-b::1", "GPU-c::7", "4", "gone"]),
            st.sampled_from(["GPU-a", "GPU-b", "GPU-z"]),
            min_size=1,
        ),
    ),
)
def test_whatever_the_config_says_ids_are_distinct_and_those_in_use_are_listed(
    rules: list[ResourceRule], seen: int, held: Mapping[str, Mapping[str, str]]
) -> None:
    served = planned(ResourceRule("acme.com/a"), ResourceRule("acme.com/b", sharing=replicas(2)))
    served["acme.com/b"] = replace(served["acme.com/a"], name="acme.com/b")

    it = planned(*rules, cards=CARDS[:seen], held=held, before=served)

    for name, resource in it.items():
        ids = [device_id for card in resource.cards for device_id in card]
        assert len(ids) == len(set(ids)) == resource.capacity
        assert resource.allocatable <= resource.capacity
        for device_id in held.get(name, {}):
            assert resource.card_of(device_id) is not None
    assert set(held) <= set(it)
    ruled = [card.uuid for resource in it.values() for card in resource.cards if card.ids is not None]
    assert len(ruled) == len(set(ruled))


def test_what_waits_for_pods_is_told_with_their_resource_and_cards() -> None:
    rules = (ResourceRule(GPU, devices=(1,)), ResourceRule("acme.com/new"))
    held = {"acme.com/old": {"GPU-a::0": "GPU-a", "GPU-b::0": "GPU-b"}, GPU: {"GPU-b": "GPU-b"}}

    found = waits_of_resources([Offer("acme", rules)], node(*CARDS), usage(held=held))

    assert found == (
        ResourceWait(GPU, "acme.com/old", ("GPU-b",), frozenset({"GPU-b"})),
        ResourceWait("acme.com/new", "acme.com/old", ("GPU-a",), frozenset({"GPU-a"})),
    )


def test_slices_wait_for_their_card_and_cards_for_their_slices() -> None:
    whole = waits_of_resources(
        [Offer("acme", (SLICES,))], node(*SLICED), usage(held={GPU: {"GPU-a": "GPU-a"}})
    )
    sliced = waits_of_resources(
        [Offer("acme", (WHOLE,))], node(*SLICED), usage(held={"acme.com/slice": {"MIG-a1": "MIG-a1"}})
    )

    assert whole == (ResourceWait("acme.com/slice", GPU, ("MIG-a0", "MIG-a1"), frozenset({"GPU-a"})),)
    assert sliced == (ResourceWait(GPU, "acme.com/slice", ("GPU-a",), frozenset({"MIG-a1"})),)


@pytest.mark.parametrize(
    ("pods", "cards", "told"),
    [
        (1, 1, "1 card that pods hold as acme.com/old: a/p0"),
        (5, 4, "4 cards that pods hold as acme.com/old: a/p0, a/p1, a/p2, a/p3, a/p4"),
        (7, 2, "2 cards that pods hold as acme.com/old: a/p0, a/p1, a/p2, a/p3, a/p4 and 2 more"),
    ],
)
def test_the_sentence_names_some_of_the_pods_that_are_waited_for(pods: int, cards: int, told: str) -> None:
    wait = ResourceWait(GPU, "acme.com/old", tuple(f"GPU-{n}" for n in range(cards)), frozenset())
    owners = [Owner(str(n), name, "a", f"p{n}") for n in range(pods) for name in ("main", "sidecar")]

    assert wait_sentence(wait, owners) == f"{GPU} waits for {told}"
    assert wait_sentence(wait, [None]).endswith("as acme.com/old: one not known yet")


def test_a_card_in_use_is_not_offered_by_another_resource_until_it_is_free() -> None:
    moved = (ResourceRule(GPU, devices=(1, 2)), ResourceRule("example.com/other", devices=(0,)))
    held = {GPU: {"GPU-a": "GPU-a"}}

    busy = planned(*moved, held=held)
    freed = planned(*moved, before=busy)

    assert listed(busy[GPU]) == {"GPU-b": ["GPU-b"], "GPU-c": ["GPU-c"], "GPU-a": ["GPU-a"]}
    assert (busy["example.com/other"].cards, busy["example.com/other"].retired) == ((), False)
    assert listed(freed["example.com/other"]) == {"GPU-a": ["GPU-a"]}


@pytest.mark.parametrize(
    ("rule", "held", "then"),
    [
        (ResourceRule(GPU, sharing=replicas(2)), "GPU-a", ["GPU-a::0", "GPU-a::1"]),
        (ResourceRule(GPU), "GPU-a::1", ["GPU-a"]),
    ],
    ids=["whole to shared", "shared to whole"],
)
def test_a_card_in_use_changes_its_sharing_when_it_is_free(
    rule: ResourceRule, held: str, then: list[str]
) -> None:
    busy = planned(rule, held={GPU: {held: "GPU-a"}})
    freed = planned(rule, before=busy)

    assert listed(busy[GPU])["GPU-a"] == [held]
    assert listed(freed[GPU])["GPU-a"] == then


def test_ids_in_use_wait_for_their_vendor_to_be_heard_after_a_restart() -> None:
    held = {GPU: {"GPU-a": "GPU-a"}}
    starting = NodeSnapshot((VendorStatus("acme", VendorState.STARTING),))
    failed = NodeSnapshot((VendorStatus("acme", VendorState.FAILED),))
    offers = [Offer("acme", (ResourceRule(GPU),))]

    assert plan(offers, starting, usage=usage(held=held)) == {}
    assert listed(plan(offers, failed, usage=usage(held=held))[GPU]) == {"GPU-a": ["GPU-a"]}


@given(
    st.lists(st.none() | st.integers(0, 3), max_size=6),
    st.lists(st.sampled_from(["uuid", "minor", "short"]), min_size=2, max_size=2),
    st.integers(0, 6),
    st.sampled_from([Sharing(), replicas(2)]),
)
def test_no_id_is_listed_twice_on_the_cards_of_a_vendor(
    minors: list[int | None], forms: list[IdForm], count: int, sharing: Sharing
) -> None:
    cards = tuple(status(f"GPU-{n}", n, minor=minor) for n, minor in enumerate(minors))
    rules = [ResourceRule(GPU, count, sharing, ids=forms[0]), ResourceRule("acme.com/rest", ids=forms[1])]

    it = planned(*rules, cards=cards)

    ids = [device_id for resource in it.values() for card in resource.cards for device_id in card]
    assert len(ids) == len(set(ids))


def test_after_a_restart_ids_in_use_of_a_resource_that_left_the_config_are_listed_until_freed() -> None:
    held = {"acme.com/old": {"GPU-b::1": "GPU-b"}}

    busy = planned(ResourceRule(GPU), held=held)
    freed = planned(ResourceRule(GPU), before=busy)

    assert listed(busy["acme.com/old"]) == {"GPU-b": ["GPU-b::1"]}
    assert (busy["acme.com/old"].vendor, busy["acme.com/old"].retired) == ("acme", True)
    assert list(listed(busy[GPU])) == ["GPU-a", "GPU-c"]
    assert listed(freed["acme.com/old"]) == {}
    assert planned(ResourceRule(GPU), before=freed).keys() == {GPU}


def test_ids_in_use_of_a_resource_that_left_the_config_wait_until_their_card_is_seen() -> None:
    held = {"acme.com/old": {"GPU-b": "GPU-b"}}

    assert planned(ResourceRule(GPU), cards=CARDS[:1], held=held).keys() == {GPU}


@pytest.mark.parametrize(
    "uuids", [("GPU-a", "GPU-a::0", "GPU-a-1"), ("GPU-a::0", "GPU-a", "GPU-a::0::1")], ids=str
)
def test_cards_whose_names_look_like_anothers_ids_are_found_exactly(uuids: tuple[str, ...]) -> None:
    cards = tuple(status(uuid, n) for n, uuid in enumerate(uuids))

    for sharing in (Sharing(), replicas(2)):
        it = planned(ResourceRule(GPU, sharing=sharing), cards=cards)[GPU]
        for card in it.cards:
            assert all(it.card_of(device_id) == card for device_id in card)


def test_ids_in_use_that_the_rule_makes_need_no_search() -> None:
    held = {f"GPU-{'abc'[n % 3]}::{n // 3}": f"GPU-{'abc'[n % 3]}" for n in range(50_000)}

    it = planned(ResourceRule(GPU, sharing=replicas(20_000)), held={GPU: held})[GPU]

    assert it.capacity == 60_000
    assert "index" not in vars(it)


def test_cards_that_a_rule_names_and_nobody_lists_are_told() -> None:
    rules = (ResourceRule(GPU, devices=(0, 9, "GPU-z")), ResourceRule("example.com/many", devices=17))

    told = missing_cards([Offer("acme", rules)], node(*CARDS))

    assert told == (
        f"{GPU} names 9, GPU-z, which acme does not list",
        "example.com/many asks for 17 cards, acme lists 3",
    )
    assert missing_cards([Offer("acme", rules)], NodeSnapshot()) == ()


SLICED = (
    status("GPU-a", 0),
    status("MIG-a0", 0, parent="GPU-a", slice=0),
    status("MIG-a1", 0, parent="GPU-a", slice=1),
    status("GPU-b", 1),
)
WHOLE = ResourceRule(GPU)
SLICES = ResourceRule("acme.com/slice", ("MIG-a0", "MIG-a1"))


def test_all_a_count_and_an_index_mean_whole_cards() -> None:
    for devices in ("all", 2, (0, 1)):
        assert list(listed(planned(ResourceRule(GPU, devices), cards=SLICED)[GPU])) == ["GPU-a", "GPU-b"]


def test_a_slice_is_chosen_by_its_uuid() -> None:
    it = planned(SLICES, ResourceRule(GPU, ("GPU-b",)), cards=SLICED)

    assert list(listed(it["acme.com/slice"])) == ["MIG-a0", "MIG-a1"]
    assert list(listed(it[GPU])) == ["GPU-b"]


def test_a_count_of_cards_that_are_not_there_counts_no_slice() -> None:
    told = missing_cards([Offer("acme", (ResourceRule(GPU, 3),))], node(*SLICED))

    assert told == (f"{GPU} asks for 3 cards, acme lists 2",)


def test_slices_of_a_card_in_use_whole_are_offered_once_it_is_free() -> None:
    held = {GPU: {"GPU-a": "GPU-a"}}

    busy = planned(SLICES, cards=SLICED, held=held)
    free = planned(SLICES, cards=SLICED)

    assert busy["acme.com/slice"].cards == ()
    assert list(listed(free["acme.com/slice"])) == ["MIG-a0", "MIG-a1"]


def test_a_card_with_a_slice_in_use_is_offered_whole_once_that_is_free() -> None:
    held = {"acme.com/slice": {"MIG-a1": "MIG-a1"}}

    assert list(listed(planned(WHOLE, cards=SLICED, held=held)[GPU])) == ["GPU-b"]


def test_slices_under_the_name_of_the_whole_cards_wait_too() -> None:
    """NVIDIA's MIG strategy `single` gives both the same name."""
    single = ResourceRule(GPU, ("MIG-a0", "MIG-a1"))

    it = planned(single, cards=SLICED, held={GPU: {"GPU-a": "GPU-a"}})[GPU]

    assert listed(it) == {"GPU-a": ["GPU-a"]}


def test_two_rules_of_one_name_are_one_resource_in_the_order_of_the_node() -> None:
    some = ResourceRule(GPU, ("GPU-b",), replicas(2))
    rest = ResourceRule(GPU, ("GPU-a", "GPU-c"))

    for rules in ((some, rest), (rest, some)):
        it = planned(*rules)[GPU]
        assert listed(it) == {"GPU-a": ["GPU-a"], "GPU-b": ["GPU-b::0", "GPU-b::1"], "GPU-c": ["GPU-c"]}
        assert list(listed(it)) == ["GPU-a", "GPU-b", "GPU-c"]
        assert (it.rule.sharing, it.policy) == (replicas(2), "distributed")


def test_a_card_that_can_not_tell_its_name_is_offered_to_nobody() -> None:
    lost = status("acme-nameless-1", 1, healthy=False)
    nameless = replace(lost, device=replace(lost.device, nameless=True))

    it = planned(ResourceRule(GPU), cards=(status("GPU-a", 0), nameless))[GPU]

    assert list(listed(it)) == ["GPU-a"]


def test_ids_in_use_are_listed_though_their_vendor_can_not_be_asked_since_the_start() -> None:
    failed = NodeSnapshot((VendorStatus("acme", VendorState.FAILED, "hung"),))
    held = {GPU: {"GPU-a": "GPU-a"}}

    it = plan([Offer("acme", ())], failed, usage=usage(held=held, vendors={GPU: "acme"}))[GPU]

    assert listed(it) == {"GPU-a": ["GPU-a"]}
    assert it.allocatable == 0


def test_ids_in_use_are_not_listed_before_their_vendor_was_heard() -> None:
    starting = NodeSnapshot((VendorStatus("acme", VendorState.STARTING),))

    assert (
        plan(
            [Offer("acme", ())],
            starting,
            usage=usage(held={GPU: {"GPU-a": "GPU-a"}}, vendors={GPU: "acme"}),
        )
        == {}
    )


def test_nothing_is_given_out_of_a_vendor_that_is_withheld() -> None:
    offers = [Offer("acme", (ResourceRule(GPU),)), Offer("bolt", (ResourceRule("bolt.com/x"),))]
    both = node(status("GPU-a"), status("B", vendor="bolt"))

    it = plan(offers, both, withheld={"acme"})

    assert (it[GPU].capacity, it[GPU].allocatable) == (1, 0)
    assert it["bolt.com/x"].allocatable == 1


# What the kubelet has forgotten


def test_an_id_that_the_kubelet_takes_for_free_and_is_not_is_well_for_nobody() -> None:
    offers = [Offer("acme", (ResourceRule(GPU, sharing=Sharing("replicas", 3)),))]

    planned = plan(
        offers, node(status("a"), status("b", 1)), usage=ResourceUsage(forgotten={GPU: frozenset({"a::1"})})
    )

    first, second = planned[GPU].cards
    assert (first.healthy, first.held) == (False, ("a::0", "a::2"))
    assert (second.healthy, second.held) == (True, ())
    assert (planned[GPU].capacity, planned[GPU].allocatable) == (6, 5)


# Cordons


def cordoned(uuid: str, *, healthy: bool = True) -> DeviceStatus:
    return replace(status(uuid, healthy=healthy), cordon=Cordon("alice", "maintenance"))


def shown(resource: Resource) -> dict[str, tuple[bool, tuple[str, ...]]]:
    return {card.uuid: (card.healthy, card.held) for card in resource.cards}


def test_a_cordoned_card_is_well_for_who_has_it_and_for_nobody_else() -> None:
    rule = ResourceRule(GPU, sharing=replicas(3))
    cards = (cordoned("GPU-a"), status("GPU-b", 1))

    it = planned(rule, cards=cards, held={GPU: {"GPU-a::2": "GPU-a", "GPU-b::0": "GPU-b"}})[GPU]

    assert shown(it) == {"GPU-a": (False, ("GPU-a::2",)), "GPU-b": (True, ())}
    assert (it.capacity, it.allocatable) == (6, 4)


def test_ids_of_a_cordoned_card_are_for_nobody_once_they_are_free() -> None:
    it = planned(ResourceRule(GPU), cards=(cordoned("GPU-a"),), held={GPU: {}})[GPU]

    assert shown(it) == {"GPU-a": (False, ())}
    assert (it.capacity, it.allocatable) == (1, 0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            ResourceRule(GPU, placement="auto"),
            {"GPU-a": (False, ()), "GPU-b": (False, ("GPU-b",)), "GPU-c": (True, ())},
        ),
        (ResourceRule(GPU), dict.fromkeys(("GPU-a", "GPU-b", "GPU-c"), (True, ()))),
        (
            ResourceRule(GPU, sharing=replicas(2), placement="claim"),
            dict.fromkeys(("GPU-a", "GPU-b", "GPU-c"), (True, ())),
        ),
    ],
    ids=["whole", "no scheduler is heeded", "shared anyway"],
)
def test_a_card_that_a_scheduler_shares_out_itself_is_whole_for_nobody_new(
    rule: ResourceRule, expected: dict[str, tuple[bool, tuple[str, ...]]]
) -> None:
    it = planned(rule, held={GPU: {"GPU-b": "GPU-b"}}, external=("GPU-a", "GPU-b"))[GPU]

    assert {uuid: one for uuid, one in shown(it).items() if uuid in expected} == expected


def test_what_a_scheduler_shares_out_itself_hides_no_fault_from_who_has_the_card() -> None:
    rule = ResourceRule(GPU, placement="auto")
    sick = status("GPU-a", healthy=False)

    it = planned(rule, cards=(sick,), held={GPU: {"GPU-a": "GPU-a"}}, external=("GPU-a",))

    assert shown(it[GPU]) == {"GPU-a": (False, ())}


def test_a_cordon_hides_no_fault_from_who_has_the_card() -> None:
    it = planned(ResourceRule(GPU), cards=(cordoned("GPU-a", healthy=False),), held={GPU: {"GPU-a": "GPU-a"}})

    assert shown(it[GPU]) == {"GPU-a": (False, ())}


def test_ids_of_a_former_plan_in_use_on_a_cordoned_card_stay_well() -> None:
    rule = ResourceRule(GPU, sharing=replicas(2))
    held = {GPU: {"GPU-a::7": "GPU-a", "GPU-a-1": "GPU-a"}}

    it = planned(rule, cards=(cordoned("GPU-a"),), held=held)[GPU]

    assert it.cards[0].kept == ("GPU-a-1", "GPU-a::7")
    assert it.cards[0].held == ("GPU-a-1", "GPU-a::7")
    assert (it.capacity, it.allocatable) == (2, 2)


def test_of_a_card_with_more_pods_than_shares_no_id_is_given_to_a_new_one() -> None:
    rule = ResourceRule(GPU, sharing=replicas(2))
    three, two = (dict.fromkeys([f"GPU-a::{n}" for n in its], "GPU-a") for its in ((0, 2, 3), (0, 3)))

    full, even = (planned(rule, cards=(status("GPU-a"),), held={GPU: it})[GPU] for it in (three, two))

    assert full.outdated_ids == {*three}
    assert even.outdated_ids == frozenset(), "as many of its own make way"
    assert even.capacity == 2


def sliced_by_others(uuid: str, *, healthy: bool = True) -> DeviceStatus:
    it = status(uuid, healthy=healthy)
    return replace(it, device=replace(it.device, attributes={FOREIGN_SLICES: "1"}))


def test_a_card_on_which_others_made_slices_is_neither_whole_nor_shared_for_anybody_new() -> None:
    cards = (sliced_by_others("GPU-a"), status("GPU-b", 1))
    rules = (ResourceRule(GPU), ResourceRule("shares", sharing=replicas(3)))
    offers = [Offer("acme", (*rules, ResourceRule("made", sharing=replicas(6))), True, frozenset({"made"}))]

    its = plan(offers, node(*cards))

    assert shown(its[GPU]) == shown(its["shares"]) == {"GPU-a": (False, ()), "GPU-b": (True, ())}
    assert shown(its["made"]) == {"GPU-a": (True, ()), "GPU-b": (True, ())}
    assert (its[GPU].capacity, its[GPU].allocatable) == (2, 1)


def test_a_card_on_which_others_made_slices_stays_with_who_has_it() -> None:
    shares = ResourceRule(GPU, sharing=replicas(3))
    held = {GPU: {"GPU-a::1": "GPU-a"}}

    well, sick = (
        planned(shares, cards=(sliced_by_others("GPU-a", healthy=it),), held=held) for it in (True, False)
    )

    assert shown(well[GPU]) == {"GPU-a": (False, ("GPU-a::1",))}
    assert shown(sick[GPU]) == {"GPU-a": (False, ())}
    assert well[GPU].cards[0].closed, "the kubelet may take the ID for free"


def test_what_is_given_out_to_nobody_at_all_is_well_for_nobody() -> None:
    held = {GPU: {"GPU-a": "GPU-a"}}

    it = plan(
        [Offer("acme", (ResourceRule(GPU),))],
        node(cordoned("GPU-a")),
        usage=usage(held=held),
        withheld={"acme"},
    )[GPU]

    assert shown(it) == {"GPU-a": (False, ())}


SHARES, WHOLES = "example.com/share", "example.com/whole"
#: By its ID the share is of GPU-a; it lies on GPU-b.
HELD, DIVERGED = {SHARES: {"GPU-a::0": "GPU-a"}}, {SHARES: {"GPU-b": ["GPU-a::0"]}}


@pytest.mark.parametrize("sharing", [Sharing(), replicas(2)])
def test_a_card_on_which_a_share_lies_by_the_id_of_another_is_nobody_elses(sharing: Sharing) -> None:
    rules = (
        ResourceRule(SHARES, devices=("GPU-a",), sharing=replicas(2)),
        ResourceRule(WHOLES, devices=("GPU-b", "GPU-c"), sharing=sharing),
    )

    assert [*listed(planned(*rules, held=HELD, diverged=DIVERGED)[WHOLES])] == ["GPU-c"]
    (wait,) = waits_of_resources([Offer("acme", rules)], node(*CARDS), usage(HELD, DIVERGED))
    assert wait == ResourceWait(WHOLES, SHARES, ("GPU-b",), frozenset({"GPU-b"}))


def test_a_card_on_which_a_share_lies_is_not_whole_where_its_resource_is_shared_no_more() -> None:
    it = planned(ResourceRule(SHARES), held=HELD, diverged=DIVERGED)[SHARES]

    assert {card.uuid for card in it.cards if card.healthy and card.uuid in card} == {"GPU-c"}


def test_a_card_on_which_a_share_lies_stays_shared() -> None:
    it = planned(ResourceRule(SHARES, sharing=replicas(2)), held=HELD, diverged=DIVERGED)[SHARES]

    assert listed(it)["GPU-b"] == ["GPU-b::0", "GPU-b::1"]
