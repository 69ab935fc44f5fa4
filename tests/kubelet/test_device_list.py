"""The list on the wire is what Google's protobuf would have written, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.devices.memory_units import coarser
from agent.core.model import AdvertisedDevice, IdRange, Resource
from agent.kubelet.device_list import KUBELET_RECEIVE_LIMIT, device_list, fitting_count, list_size, too_long
from agent.vendor_api.agent import ResourceRule, Sharing, Unit

from . import oracle
from .fakes import card, resource

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=150)


def holding(card: AdvertisedDevice) -> st.SearchStrategy[AdvertisedDevice]:
    """The card with some of its IDs held."""
    numbers = st.sets(st.integers(0, max(0, len(card) - 1)), max_size=5)
    return numbers.map(
        lambda chosen: replace(card, held=tuple(it for n, it in enumerate(card) if n in chosen))
    )


RANGES = st.builds(IdRange, TEXT, st.none() | st.integers(0, 1200))
CARDS = st.builds(
    AdvertisedDevice,
    uuid=TEXT,
    ids=st.none() | RANGES,
    healthy=st.booleans(),
    numa=st.none() | st.integers(0, 2**40),
    kept=st.lists(TEXT, max_size=3).map(tuple),
).flatmap(lambda one: holding(one))
RESOURCES = st.lists(CARDS, max_size=4, unique_by=lambda one: one.uuid).map(lambda cards: resource(*cards))


def listed(it: Resource) -> list[tuple[str, AdvertisedDevice]]:
    """Every ID with its card, in the order of the list."""
    apart = [one for one in it.cards if one.held and not one.healthy]
    ranged = [
        (n, device_id, one)
        for one in it.cards
        if one not in apart
        for n, device_id in enumerate(one.ids or ())
    ]
    kept = [(device_id, one) for one in it.cards for device_id in one.kept]
    by_number = [entry[1:] for entry in sorted(ranged, key=lambda entry: entry[0])]
    one_by_one = [(device_id, one) for one in apart for device_id in one.ids or ()]
    return by_number + one_by_one + sorted(kept, key=lambda entry: entry[0])


def judged(it: Resource) -> bytes:
    """The same list by Google's protobuf."""
    pb = oracle.deviceplugin()
    message = pb.ListAndWatchResponse()
    for device_id, one in listed(it):
        well = one.healthy or device_id in one.held
        device = message.devices.add(ID=device_id, health="Healthy" if well else "Unhealthy")
        if one.numa is not None:
            device.topology.nodes.add(ID=one.numa)
    return bytes(message.SerializeToString())


def order(it: Resource) -> list[str]:
    """The IDs as a kubelet reads them."""
    return [
        device.ID for device in oracle.deviceplugin().ListAndWatchResponse.FromString(device_list(it)).devices
    ]


def sick(it: Resource) -> Resource:
    return replace(it, cards=tuple(replace(one, healthy=False, held=()) for one in it.cards))


@given(RESOURCES)
def test_every_list_is_what_protobuf_writes(it: Resource) -> None:
    assert device_list(it) == judged(it)


@given(RESOURCES)
def test_the_size_is_that_of_the_list_with_every_device_unhealthy(it: Resource) -> None:
    assert list_size(it) == len(device_list(sick(it)))


def test_ids_are_listed_replica_by_replica_over_all_cards() -> None:
    """So that a kubelet, or a scheduler, that takes the first IDs spreads them over the cards."""
    it = resource(card("b", count=2), card("a", count=2), card("c", count=2))

    assert order(it) == ["b::0", "a::0", "c::0", "b::1", "a::1", "c::1"]


def test_cards_with_fewer_replicas_and_whole_ones_have_their_place_in_the_first_rows() -> None:
    it = resource(card("a", count=1), card("b", count=12), card("c"), card("d", count=3), card("e", count=0))

    assert order(it) == ["a::0", "b::0", "c", "d::0", "b::1", "d::1", "b::2", "d::2"] + [
        f"b::{n}" for n in range(3, 12)
    ]


def test_ids_of_a_former_plan_come_last() -> None:
    it = resource(
        AdvertisedDevice("a", IdRange("a", 2), True, kept=("b",)),
        AdvertisedDevice("b", None, True, kept=("a::7", "b::9")),
        card("c", count=1),
    )

    assert order(it) == ["a::0", "c::0", "a::1", "a::7", "b", "b::9"]


def test_a_card_that_is_given_to_nobody_new_is_well_for_those_who_have_it() -> None:
    it = resource(replace(card("a", count=12, healthy=False), held=("a::3", "a::11")), card("b", count=1))

    devices = oracle.deviceplugin().ListAndWatchResponse.FromString(device_list(it)).devices

    assert [device.ID for device in devices if device.health == "Healthy"] == ["b::0", "a::3", "a::11"]
    assert len(devices) == 13


def test_numbers_of_every_length_come_in_numeric_order() -> None:
    it = resource(card("c", count=10_001))

    assert device_list(it) == judged(it)


def test_numa_node_0_is_sent_and_an_unknown_one_is_not() -> None:
    # mistake 13
    pb = oracle.deviceplugin()
    raw = device_list(resource(card("a", numa=0), card("b", numa=None)))

    first, second = pb.ListAndWatchResponse.FromString(raw).devices
    assert [node.ID for node in first.topology.nodes] == [0]
    assert not second.HasField("topology")


def test_the_order_of_kept_ids_does_not_matter() -> None:
    # mistake 8: a list that only looks different would be sent again
    a = AdvertisedDevice("a", IdRange("a"), True, kept=("x", "y"))
    b, c = (AdvertisedDevice(uuid, None, True, kept=(uuid,)) for uuid in "bc")

    assert device_list(resource(a, b, c)) == device_list(resource(replace(a, kept=("y", "x")), c, b))


def exactly(size: int) -> Resource:
    """A resource whose longest list has this many bytes."""
    most = fitting_count(resource(card("u" * 40, count=100_000)), size)
    tries = (
        resource(card("a" * length), card("u" * 40, count=most - fewer))
        for fewer in (2, 3)
        for length in range(1, 250)
    )
    return next(it for it in tries if list_size(it) == size)


def _divided(it: Resource, by: int) -> Resource:
    cards = [
        replace(one, ids=replace(one.ids, count=(one.ids.count or 0) // by)) for one in it.cards if one.ids
    ]
    return replace(it, cards=tuple(cards))


def _longer(it: Resource) -> Resource:
    """The same with one more byte in the first ID."""
    ids = it.cards[0].ids
    assert ids is not None
    return replace(it, cards=(replace(it.cards[0], ids=IdRange(ids.stem + "a", ids.count)), *it.cards[1:]))


def test_a_list_of_exactly_the_limit_fits_and_one_byte_more_does_not() -> None:
    # mistake 7
    fits = exactly(KUBELET_RECEIVE_LIMIT)

    assert len(device_list(sick(fits))) == KUBELET_RECEIVE_LIMIT
    assert too_long(fits) is None
    assert too_long(_longer(fits)) is not None


def test_a_list_too_long_names_how_many_ids_per_device_fit() -> None:
    # mistake 7
    it = resource(*(card(f"GPU-{n}", numa=0, count=100_000) for n in range(8)))

    most = fitting_count(it)
    error = too_long(it)

    assert too_long(resource(*(card(f"GPU-{n}", numa=0, count=most) for n in range(8)))) is None
    assert too_long(resource(*(card(f"GPU-{n}", numa=0, count=most + 1) for n in range(8)))) is not None
    assert f"at most {most} IDs per device fit" in str(error)
    assert "800000 IDs" in str(error)


@pytest.mark.parametrize(
    ("counts", "unit", "finest"),
    [((48_000,) * 8, "0.001", "0.01"), ((300_000, 900_000), "0.01", "0.1"), ((1_200_000,), "0.1", "1")],
)
def test_units_too_many_name_the_smallest_unit_that_fits(
    counts: tuple[int, ...], unit: Unit, finest: str
) -> None:
    rule = ResourceRule("a.com/b", sharing=Sharing("memory", unit=unit))
    cards = (card(f"abcde{n}", numa=1, count=count) for n, count in enumerate(counts))
    it = replace(resource(*cards), rule=rule)

    fits = [one for one, of in coarser(unit).items() if too_long(_divided(it, of)) is None]

    assert fits[0] == finest
    assert f"unit '{finest}' is the smallest that fits" in str(too_long(it))
    assert "no unit fits; use fewer cards" in str(too_long(it, limit=50))


def test_where_not_even_one_id_per_device_fits_the_error_says_so() -> None:
    it = resource(card("a" * 90, count=5))

    assert "not even one" in str(too_long(it, limit=50))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 101, 8_191, 8_192, 8_193, 20_000])
def test_ranges_of_every_shape_are_measured_and_written_alike(count: int) -> None:
    it = resource(card("é" * 60, count=count, healthy=False))

    raw = device_list(it)
    assert raw == judged(it)
    assert len(raw) == list_size(it)
