"""The device list of ListAndWatch: encoded within milliseconds, and measured without being built.

One entry is `0A len{ 0A len ID | 12 len health | 1A len topology }` (ListAndWatchResponse.devices). Entries
can be joined in any order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter

from agent.core.devices.memory_units import coarser, counted_in
from agent.core.errors import ListTooLong
from agent.core.model import AdvertisedDevice, IdRange, Resource

from .protobuf import delimited, delimited_size, varint

#: grpc-go's default; the kubelet sets no other limit for device plugins.
KUBELET_RECEIVE_LIMIT = 4_194_304
#: Replicas that are written in one step: about a millisecond in which no other thread can run.
_CHUNK = 8_192

HEALTHY, UNHEALTHY = b"Healthy", b"Unhealthy"  # exact and case sensitive, constants.go


def device_list(resource: Resource) -> bytes:
    """Encode the ListAndWatchResponse. Equal resources always give equal bytes.

    The order is: replica by replica over all cards, so that the first IDs come from all cards; then cards
    with only their held IDs healthy; then kept IDs, sorted.
    """
    alike = [card for card in resource.cards if card.healthy or not card.held]
    cards = [(card.ids, _rest(card, card.healthy)) for card in alike if card.ids is not None]
    rows = (_rows(cards, numbers) for numbers in _spans([len(ids) for ids, _ in cards]))
    holding = (_one_by_one(card) for card in resource.cards if card.held and not card.healthy)
    kept = chain.from_iterable(map(_kept, resource.cards))
    last = (_entry(device_id.encode(), rest) for device_id, rest in sorted(kept, key=itemgetter(0)))
    return b"".join([*rows, *holding, *last])


def _kept(card: AdvertisedDevice) -> Iterator[tuple[str, bytes]]:
    """The kept IDs of a card, each with the part of its entry after the ID."""
    held, well, sick = frozenset(card.held), _rest(card, healthy=True), _rest(card, healthy=False)
    return ((it, well if card.healthy or it in held else sick) for it in card.kept)


def _rest(card: AdvertisedDevice, healthy: bool) -> bytes:
    """The part of a card's entry after the ID."""
    return delimited(2, HEALTHY if healthy else UNHEALTHY) + topology(card.numa)


def _one_by_one(card: AdvertisedDevice) -> bytes:
    """The entries of a card that is unhealthy but for the IDs that pods hold."""
    held, well, sick = frozenset(card.held), _rest(card, healthy=True), _rest(card, healthy=False)
    ids = [device_id.encode() for device_id in card.ids or ()]
    heads = {n: (_head(n, sick), _head(n, well)) for n in set(map(len, ids))}
    return b"".join(
        heads[len(raw)][1] + raw + well if device_id in held else heads[len(raw)][0] + raw + sick
        for device_id, raw in zip(card.ids or (), ids, strict=True)
    )


def _head(length: int, rest: bytes) -> bytes:
    """The part of an entry before an ID of `length` bytes."""
    return _entry(bytes(length), rest)[: -length - len(rest)]


def topology(numa: int | None) -> bytes:
    """The topology field; left out where unknown, because the kubelet fails on an empty one."""
    if numa is None:
        return b""
    node = b"\x08" + varint(numa) if numa else b""  # proto3 omits a zero: node 0 is an empty message
    return delimited(3, delimited(1, node))


def _entry(device_id: bytes, rest: bytes) -> bytes:
    return delimited(1, delimited(1, device_id) + rest)


def _spans(counts: Sequence[int]) -> Iterator[range]:
    """The replica numbers in ranges, each with one number of digits and one set of cards."""
    start, most = 0, max(counts, default=0)
    for end in sorted({*counts, *(10**digits for digits in range(1, len(str(most))))}):
        yield from (range(at, min(end, at + _CHUNK)) for at in range(start, end, _CHUNK))
        start = end


def _rows(cards: Sequence[tuple[IdRange, bytes]], numbers: range) -> bytearray:
    """A row of entries for each number. Rows differ in their digits alone, which are set by column."""
    width = len(str(numbers[0]))
    digits = "".join(map(str, numbers)).encode()
    row, places = bytearray(), []
    for ids, rest in cards:
        if len(ids) > numbers[0]:
            number = b"" if ids.count is None else b"::" + digits[:width]
            row += _entry(ids.stem.encode() + number, rest)
            places += [len(row) - len(rest) - at for at in range(width, 0, -1)] if number else []
    rows = row * len(numbers)
    for n, place in enumerate(places):
        rows[place :: len(row)] = digits[n % width :: width]
    return rows


def list_size(resource: Resource) -> int:
    """Bytes of the list with every device unhealthy, its longest form."""
    return sum(map(_card_size, resource.cards))


def _card_size(card: AdvertisedDevice) -> int:
    rest = len(delimited(2, UNHEALTHY)) + len(topology(card.numa))
    return sum(n * _entry_size(length, rest) for length, n in _id_lengths(card))


def _entry_size(id_length: int, rest: int) -> int:
    return delimited_size(delimited_size(id_length) + rest)


def _id_lengths(card: AdvertisedDevice) -> Iterator[tuple[int, int]]:
    """Pairs of a length in bytes and the number of IDs with that length."""
    if card.ids is not None:
        stem = len(card.ids.stem.encode())
        yield from [(stem, 1)] if card.ids.count is None else _numbered_lengths(stem + 2, card.ids.count)
    yield from _counted_lengths(card.kept).items()


@lru_cache(maxsize=16)
def _counted_lengths(ids: tuple[str, ...]) -> Mapping[int, int]:
    """Length in bytes to the number of IDs with that length. The kept IDs of a card seldom change."""
    return Counter(map(len, map(str.encode, ids)))


def _numbered_lengths(stem: int, count: int) -> Iterator[tuple[int, int]]:
    digits, start = 1, 0
    while start < count:
        end = min(count, 10**digits)
        yield stem + digits, end - start
        digits, start = digits + 1, end


def too_long(resource: Resource, limit: int = KUBELET_RECEIVE_LIMIT) -> ListTooLong | None:
    """The error for a list above the kubelet's limit, with what would fit; None where the list fits."""
    size = list_size(resource)
    if size <= limit:
        return None
    return ListTooLong(resource.name, resource.capacity, size, limit, _remedy(resource, limit))


def _remedy(resource: Resource, limit: int) -> str:
    if unit := counted_in(resource.rule.sharing):
        units = coarser(unit).items()
        fitting = (name for name, factor in units if list_size(_divided(resource, factor)) <= limit)
        finest = next(fitting, None)
        return f"unit '{finest}' is the smallest that fits" if finest else "no unit fits; use fewer cards"
    most = fitting_count(resource, limit)
    if not most:
        return "not even one ID per device fits; use fewer devices or shorter IDs"
    return f"at most {most} IDs per device fit (replicas: {most})"


def fitting_count(resource: Resource, limit: int = KUBELET_RECEIVE_LIMIT) -> int:
    """The most IDs for each device with which the list fits; 0 where not even one does."""
    low, high = 0, max((len(ids) for ids in _ranges(resource)), default=0)
    while low < high:
        middle = math.ceil((low + high) / 2)
        fits = list_size(_with_count(resource, middle)) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _ranges(resource: Resource) -> Iterable[IdRange]:
    return (card.ids for card in resource.cards if card.ids is not None and card.ids.count is not None)


def _divided(resource: Resource, by: int) -> Resource:
    """The resource with memory units that are `by` times as large."""
    cards = (
        replace(card, ids=replace(card.ids, count=card.ids.count // by))
        if card.ids and card.ids.count
        else card
        for card in resource.cards
    )
    return replace(resource, cards=tuple(cards))


def _with_count(resource: Resource, most: int) -> Resource:
    return replace(resource, cards=tuple(_card_with_count(card, most) for card in resource.cards))


def _card_with_count(card: AdvertisedDevice, most: int) -> AdvertisedDevice:
    if card.ids is None or card.ids.count is None:
        return card
    return replace(card, ids=replace(card.ids, count=min(card.ids.count, most)))
