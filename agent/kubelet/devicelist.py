"""The device list that ListAndWatch sends: encoded per card, cached, and measured without being built.

One entry is `0A len{ 0A len ID | 12 len health | 1A len topology }` (ListAndWatchResponse.devices); entries
can be joined freely, so a change re-encodes the cards that changed and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from agent.core.errors import ListTooLong
from agent.core.model import AdvertisedDevice, IdRange, Resource

from .wire import delimited, delimited_size, varint

#: What grpc-go receives by default; the kubelet sets nothing else for device plugins.
KUBELET_RECEIVE_LIMIT = 4_194_304
#: Whole numbers joined in one go: about a millisecond in which no other thread can run.
_CHUNK = 8_192

HEALTHY, UNHEALTHY = b"Healthy", b"Unhealthy"  # exact and case sensitive, constants.go

_Key = tuple[IdRange | None, tuple[str, ...], bool, int | None]


class DeviceList:
    """Encodes a resource; remembers the block of each card as it was last time."""

    def __init__(self) -> None:
        self._blocks: dict[_Key, bytes] = {}

    def encode(self, resource: Resource) -> bytes:
        """The ListAndWatchResponse; the same IDs, health and NUMA nodes always give the same bytes."""
        known, blocks = self._blocks, {}
        for card in _in_order(resource):
            key = _key(card)
            blocks[key] = known.get(key) or card_block(card)
        self._blocks = blocks
        return b"".join(blocks[_key(card)] for card in _in_order(resource))

    def missing(self, resource: Resource) -> int:
        """How many IDs must be encoded anew."""
        return sum(len(card) for card in resource.cards if _key(card) not in self._blocks)


def _in_order(resource: Resource) -> list[AdvertisedDevice]:
    return sorted(resource.cards, key=lambda card: card.uuid)


def _key(card: AdvertisedDevice) -> _Key:
    return card.ids, card.kept, card.healthy, card.numa


def card_block(card: AdvertisedDevice) -> bytes:
    """The entries of one card: its range in numeric order, then what is kept, sorted."""
    rest = delimited(2, HEALTHY if card.healthy else UNHEALTHY) + topology(card.numa)
    ranged = _range_block(card.ids, rest) if card.ids else b""
    return ranged + b"".join(_entry(device_id.encode(), rest) for device_id in sorted(card.kept))


def topology(numa: int | None) -> bytes:
    """The topology field; left out where unknown, for the kubelet stumbles over an empty one."""
    if numa is None:
        return b""
    node = b"\x08" + varint(numa) if numa else b""  # proto3 leaves a zero out: node 0 is an empty message
    return delimited(3, delimited(1, node))


def _entry(device_id: bytes, rest: bytes) -> bytes:
    return delimited(1, delimited(1, device_id) + rest)


def _range_block(ids: IdRange, rest: bytes) -> bytes:
    if ids.count is None:
        return _entry(ids.stem.encode(), rest)
    return b"".join(_numbered(f"{ids.stem}::".encode(), rest, span) for span in _spans(ids.count))


def _spans(count: int) -> Iterator[range]:
    """0..count-1 in pieces whose numbers all have as many digits."""
    start = 0
    while start < count:
        end = min(count, 10 ** len(str(start)), start + _CHUNK)
        yield range(start, end)
        start = end


def _numbered(stem: bytes, rest: bytes, numbers: range) -> bytes:
    """Entries that differ in the number only: everything around it is constant."""
    digits = b"0" * len(str(numbers[0]))
    entry = _entry(stem + digits, rest)
    after = len(entry) - len(rest)
    before = after - len(digits)
    seam = (entry[after:] + entry[:before]).decode("latin-1")
    return entry[:before] + seam.join(map(str, numbers)).encode("latin-1") + entry[after:]


def list_size(resource: Resource) -> int:
    """The bytes of the list with every device unhealthy, which is its longest form."""
    return sum(map(_card_size, resource.cards))


def _card_size(card: AdvertisedDevice) -> int:
    rest = len(delimited(2, UNHEALTHY)) + len(topology(card.numa))
    return sum(n * _entry_size(length, rest) for length, n in _id_lengths(card))


def _entry_size(id_length: int, rest: int) -> int:
    return delimited_size(delimited_size(id_length) + rest)


def _id_lengths(card: AdvertisedDevice) -> Iterator[tuple[int, int]]:
    """Length in bytes and number of the IDs that have it."""
    if card.ids is not None:
        stem = len(card.ids.stem.encode())
        yield from [(stem, 1)] if card.ids.count is None else _numbered_lengths(stem + 2, card.ids.count)
    yield from ((len(device_id.encode()), 1) for device_id in card.kept)


def _numbered_lengths(stem: int, count: int) -> Iterator[tuple[int, int]]:
    digits, start = 1, 0
    while start < count:
        end = min(count, 10**digits)
        yield stem + digits, end - start
        digits, start = digits + 1, end


def too_long(resource: Resource, limit: int = KUBELET_RECEIVE_LIMIT) -> ListTooLong | None:
    """What is wrong with a list that the kubelet would not take, and what would fit; None where it fits."""
    size = list_size(resource)
    if size <= limit:
        return None
    return ListTooLong(resource.name, resource.capacity, size, limit, _remedy(resource, limit))


def _remedy(resource: Resource, limit: int) -> str:
    most = fitting_count(resource, limit)
    if not most:
        return "not even one ID per device fits; use fewer devices or shorter IDs"
    now = max((len(ids) for ids in _ranges(resource)), default=1)
    return f"at most {most} IDs per device fit (replicas: {most}, or a unit {now / most:.2f} times as large)"


def fitting_count(resource: Resource, limit: int = KUBELET_RECEIVE_LIMIT) -> int:
    """The most IDs per device with which the list fits; 0 where not even one does."""
    low, high = 0, max((len(ids) for ids in _ranges(resource)), default=0)
    while low < high:
        middle = math.ceil((low + high) / 2)
        fits = list_size(_with_count(resource, middle)) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _ranges(resource: Resource) -> Iterable[IdRange]:
    return (card.ids for card in resource.cards if card.ids is not None and card.ids.count is not None)


def _with_count(resource: Resource, most: int) -> Resource:
    return replace(resource, cards=tuple(_card_with_count(card, most) for card in resource.cards))


def _card_with_count(card: AdvertisedDevice, most: int) -> AdvertisedDevice:
    if card.ids is None or card.ids.count is None:
        return card
    return replace(card, ids=replace(card.ids, count=min(card.ids.count, most)))
