"""Each group is what a look at all allocations finds, whatever happened before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.allocations_in_use import AllocationsInUse
from agent.core.allocation.ledger import Ledger
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.scheduler_api import Claim
from core.values import GPU, allocation, grouped, held_ids

OTHER = "acme.com/other"
CARDS = ("c0", "c1")
NAMES = ("one", "two", "three")

DEVICE_IDS = st.lists(
    st.sampled_from([f"{card}::{n}" for card in CARDS for n in range(3)]), max_size=3, unique=True
)
OWNERS = st.sampled_from(
    [None, Owner("", "main", "default", "web"), *(Owner(f"u{n}", "main") for n in range(2))]
)
CLAIMS = st.sampled_from(
    [
        None,
        *(
            Claim(f"u{n}", "default", "web", "main", cards, {}, "", "half")
            for n in range(2)
            for cards in ((), CARDS[:1])
        ),
    ]
)


@st.composite
def any_allocation(draw: st.DrawFn) -> Allocation:
    """An allocation of one of a few names, with all that decides on its groups."""
    source = draw(st.sampled_from([AllocationSource.ALLOCATE, AllocationSource.ANNOTATION]))
    is_external = source is AllocationSource.ANNOTATION
    known = allocation(
        draw(st.sampled_from(NAMES)),
        () if is_external else draw(DEVICE_IDS),
        devices=("c0",) if is_external else None,
        resource=draw(st.sampled_from([GPU, OTHER])),
        owner=draw(OWNERS),
        state=draw(st.sampled_from([AllocationState.DONE, AllocationState.INTENT])),
        source=source,
        partitions=draw(st.sampled_from([(), ("s0",)])),
        claim=draw(CLAIMS),
    )
    return replace(
        known,
        diverged=draw(st.sampled_from([(), ("c1",), CARDS])),
        handed=draw(st.sampled_from([None, {}, {"core": "5"}])),
        unit=draw(st.sampled_from(["", "1"])),
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["record", "confirm", "release", "drop", "revive", "forget"]), any_allocation()
    ),
    max_size=12,
)


def take(ledger: Ledger, verb: str, wanted: Allocation) -> None:
    """Take one step, if the ledger can."""
    known = ledger.get(wanted.id)
    if verb == "record":
        ledger.record(wanted)
    elif verb == "drop":
        ledger.drop(wanted.id)
    elif known is not None and verb == "confirm":
        ledger.confirm(wanted.id, wanted.owner or Owner("u0", "main"))
    elif known is not None and verb == "release":
        ledger.release(wanted.id, "over", now=1)
    elif known is not None and verb == "revive":
        ledger.revive(wanted.id)
    elif known is not None and known.state is not AllocationState.RELEASED:
        ledger.set_forgotten(wanted.id, forgotten=True)


def ids_taken(allocations: Sequence[Allocation], resource: str, uuid: str) -> int:
    """The IDs on a card as a look at all allocations counts them: of a pod each ID once, made ones each."""
    ids: defaultdict[str, set[str]] = defaultdict(set)
    made = 0
    for it in allocations:
        lying = [one for n, one in enumerate(it.ids) if it.cards and it.cards[n % len(it.cards)] == uuid]
        if it.resource == resource and it.partitions:
            made += len(lying)
        elif it.resource == resource:
            ids[it.container_key[0] if it.container_key else ""].update(lying)
    return made + sum(map(len, ids.values()))


def held(allocations: Sequence[Allocation]) -> dict[str, dict[str, str]]:
    """Resource to device ID to card as a look at all allocations finds them; the newest one counts."""
    found: dict[str, dict[str, str]] = {}
    for it in allocations:
        if it.ids:
            found.setdefault(it.resource, {}).update(zip(it.ids, it.devices, strict=True))
    return found


def cards_with_shares(allocations: Sequence[Allocation]) -> dict[str, frozenset[str]]:
    """Resource to the cards of diverged allocations, and those of the IDs that any other allocation has."""
    found: dict[str, frozenset[str]] = {}
    for resource in (GPU, OTHER):
        its = [it for it in allocations if it.resource == resource]
        at_home = {one for it in its if not it.diverged for one in it.ids}
        named = {uuid for one, uuid in held(its).get(resource, {}).items() if one in at_home}
        found[resource] = frozenset(named.union(*(it.diverged for it in its)))
    return found


def units(allocations: Sequence[Allocation]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Resource to card to units as a look at all allocations finds them, oldest first."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for it in allocations:
        for uuid in {*it.devices, *it.diverged} if it.source is not AllocationSource.ANNOTATION else ():
            cards = found.setdefault(it.resource, {})
            cards[uuid] = tuple(dict.fromkeys((*cards.get(uuid, ()), it.unit)))
    return found


def assert_as_a_look_finds(in_use: AllocationsInUse, known: Sequence[Allocation]) -> None:
    """Each question has the answer that a look at all allocations gives, oldest first."""
    assert [in_use.get(name) for name in NAMES] == [
        next((it for it in known if it.id == name), None) for name in NAMES
    ]
    assert [*in_use.external()] == [it for it in known if it.source is AllocationSource.ANNOTATION]
    assert [*in_use.astray().values()] == [
        it for it in known if it.claim and it.claim.devices and {*it.claim.devices} != {*it.cards}
    ]
    for resource in (GPU, OTHER):
        its = [it for it in known if it.resource == resource]
        assert [*in_use.without_owner(resource)] == [it for it in its if it.owner is None]
        assert [*in_use.without_pod(resource)] == [it for it in its if it.container_key is None]
        assert [*in_use.diverged(resource)] == [it for it in its if it.diverged]
        assert [*in_use.forgotten(resource)] == [it for it in its if it.forgotten]
        for key in (("u0", "main"), ("u1", "main"), ("u0", "other")):
            assert in_use.of_container(resource, key) == [it for it in its if it.container_key == key]
            claimed = [it for it in its if it.claim and (it.claim.uid, it.claim.container) == key]
            assert in_use.with_claim(resource, key) == claimed
        for uuid in CARDS:
            on_card = [it for it in its if uuid in it.cards]
            assert [*in_use.on_card(resource, uuid)] == on_card
            assert in_use.of_others_on_card(resource, uuid) == [
                it for it in known if it.resource != resource and uuid in it.cards
            ]
            assert [*in_use.claimed_on_card(resource, uuid, "half")] == [it for it in on_card if it.claim]
            assert [*in_use.answered_otherwise_on_card(resource, uuid)] == [
                it for it in on_card if it.handed is not None
            ]
            assert in_use.ids_taken(resource, uuid) == ids_taken(its, resource, uuid)
            if any(it.container_key for it in on_card):
                assert uuid in in_use.cards_of_pods(resource)


def groups(in_use: AllocationsInUse) -> dict[tuple[str, ...], list[Allocation]]:
    """The groups by their keys."""
    return {key: [*group.values()] for part in in_use.parts for key, group in part.items()}


@given(st.lists(any_allocation(), max_size=3, unique_by=lambda it: it.id), STEPS)
def test_each_group_is_what_a_look_at_all_allocations_finds_after_every_history(
    loaded: list[Allocation], steps: list[tuple[str, Allocation]]
) -> None:
    ledger = Ledger(loaded)
    handed_out: list[tuple[AllocationsInUse, list[Allocation]]] = []
    used: list[tuple[ResourceUsage, object, object]] = []

    for verb, wanted in [("", wanted) for wanted in loaded[:1]] + steps:
        take(ledger, verb, wanted)
        in_use = ledger.in_use()
        known = [it for it in ledger.all() if it.state is not AllocationState.RELEASED]
        handed_out.append((in_use, known))
        assert [*in_use] == known
        assert len(in_use) == len(known)
        assert_as_a_look_finds(in_use, known)
        usage = ledger.usage()
        assert (held_ids(usage), usage.units) == (held(known), units(known))
        assert {name: usage.cards_of(name) for name in (GPU, OTHER)} == cards_with_shares(known)
        assert usage.vendors == dict.fromkeys(usage.held, "acme")
        assert usage.forgotten.keys() == {it.resource for it in known if it.forgotten}
        assert ledger.devices_in_use() == {uuid for it in known for uuid in (*it.devices, *it.diverged)}
        used.append((usage, held(known), units(known)))
    for usage, ids, units_then in used:
        assert (held_ids(usage), usage.units) == (ids, units_then)
    for in_use, known in handed_out:  # later changes alter no value that was handed out
        assert [*in_use] == known
        assert groups(in_use) == groups(grouped(known))
        assert_as_a_look_finds(in_use, known)


@given(st.lists(any_allocation(), max_size=3, unique_by=lambda it: it.id), st.sampled_from(NAMES))
def test_without_some_allocations_the_value_is_as_if_they_had_never_been(
    allocations: list[Allocation], name: str
) -> None:
    left = grouped(allocations).without(it for it in allocations if it.id == name)

    rest = [it for it in allocations if it.id != name]
    assert left == AllocationsInUse.of((age, it) for age, it in enumerate(allocations) if it.id != name)
    assert groups(left) == groups(grouped(rest))
    assert [*left] == rest


def test_an_allocation_that_is_revived_comes_first_in_its_groups() -> None:
    ledger = Ledger([allocation(f"a{n}", [f"c0::{n}"], devices=("c0",)) for n in range(40)])
    ledger.release("a39", "pod gone", now=1)

    ledger.revive("a39")

    first = [it.id for it in ledger.in_use()][:2]
    assert first == ["a39", "a0"]
    assert [it.id for it in ledger.in_use().on_card(GPU, "c0")][:2] == first


def test_the_allocations_of_other_resources_on_a_card_are_found_oldest_first() -> None:
    its = [
        allocation("own", ["c0"]),
        allocation("late", ["c0::1"], resource="acme.com/b"),
        allocation("later", ["c0::0"], resource="acme.com/a"),
        allocation("far", ["c1::0"], resource="acme.com/a"),
    ]

    assert [it.id for it in grouped(its).of_others_on_card(GPU, "c0")] == ["late", "later"]
    assert grouped(its).get("far") == its[3]
    assert grouped(its).get("none") is None
    assert grouped(its)[-1] == its[3]
    assert grouped(its)[:2] == (its[0], its[1])
