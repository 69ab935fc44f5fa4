"""The device IDs in use, by resource and card. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field

from agent.core.model import AdvertisedDevice, DeviceStatus, share


class ResourceUsage(Struct, frozen=True):
    """The device IDs and cards that allocations have; `Ledger.usage` makes the value."""

    #: Resource to device ID to the uuid of its card, for every ID in use.
    held: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Resource to the cards of its diverged allocations, each with the IDs of these allocations. IDs by which
    #: another allocation has their own card are left out.
    diverged: Mapping[str, Mapping[str, Collection[str]]] = field(default_factory=dict)
    #: Resource to card to the memory units of the IDs in use there, oldest first. The empty text stands for
    #: IDs that do not count memory.
    units: Mapping[str, Mapping[str, Collection[str]]] = field(default_factory=dict)
    #: Resource to IDs in use that the kubelet regards as free.
    forgotten: Mapping[str, Collection[str]] = field(default_factory=dict)
    #: Resource to vendor.
    vendors: Mapping[str, str] = field(default_factory=dict)
    #: Cards in external use: a scheduler gave them to pods for which the kubelet calls no plugin.
    external: frozenset[str] = frozenset()

    def cards_of(self, resource: str) -> frozenset[str]:
        """The cards on which allocations of the resource lie."""
        held, diverged = self.held.get(resource, {}), self.diverged.get(resource, {})
        if not diverged:
            return frozenset(held.values())
        away = frozenset(chain.from_iterable(diverged.values()))
        return frozenset(diverged).union(uuid for device_id, uuid in held.items() if device_id not in away)


class IdsInUse:
    """Answers questions about the IDs in use. Reads each ID once, as there can be tens of thousands."""

    def __init__(self, usage: ResourceUsage, kin: Mapping[str, Sequence[str]]) -> None:
        self._usage = usage
        self._kin = kin
        self._ids = {resource: _by_card(ids) for resource, ids in usage.held.items()}
        self._lies_on = {name: usage.cards_of(name) for name in {*usage.held, *usage.diverged}}
        self._others: dict[tuple[str, AdvertisedDevice], list[str]] = {}

    def cards(self, resource: str) -> Iterable[str]:
        """The cards on which IDs of the resource are in use."""
        return self._ids.get(resource, {})

    def elsewhere(self, resource: str, uuid: str) -> bool:
        """Whether shares of another resource lie on the card, or of any on its slices or its own card."""
        kin = self._kin.get(uuid, ())
        return any(
            (uuid in cards and name != resource) or any(it in cards for it in kin)
            for name, cards in self._lies_on.items()
        )

    def mode(self, card: AdvertisedDevice, other_modes: Collection[str]) -> str:
        """Which of the other resources has the card or a slice of the card; empty where none has."""
        places = {card.uuid, *self._kin.get(card.uuid, ())}
        cards_by_resource = self._lies_on.items()
        return min(
            (
                name
                for name, cards in cards_by_resource
                if name in other_modes and not places.isdisjoint(cards)
            ),
            default="",
        )

    def has_other_unit(self, resource: str, uuid: str, unit: str) -> bool:
        """Whether IDs of the resource in use on the card have another memory unit than this."""
        return any(it != unit for it in self._usage.units.get(resource, {}).get(uuid, ()))

    def has_shares_of_others(self, uuid: str) -> bool:
        """Whether an allocation with IDs of other cards lies on this card."""
        return any(uuid in cards for cards in self._usage.diverged.values())

    def outside_range(self, resource: str, uuid: str, card: AdvertisedDevice | None) -> list[str]:
        """The IDs of the resource in use on the card that are not in the card's range."""
        ids = self._ids.get(resource, {}).get(uuid, [])
        if card is None or card.ids is None or not ids:
            return ids
        if (resource, card) not in self._others:
            self._others[resource, card] = card.ids.without(ids)
        return self._others[resource, card]

    def listed(self, resource: str, card: AdvertisedDevice) -> tuple[str, ...]:
        """The IDs of the resource in use on the card that the card lists, sorted."""
        ids = self._ids.get(resource, {}).get(card.uuid, [])
        return tuple(sorted(device_id for device_id in ids if device_id in card))

    def numbers(self, resource: str, card: AdvertisedDevice) -> list[int]:
        """The share numbers of the listed IDs that are in use, highest first."""
        listed = (share(it) for it in self.listed(resource, card))
        return sorted((it.number for it in listed if it), reverse=True)


def _by_card(ids: Mapping[str, str]) -> dict[str, list[str]]:
    cards: defaultdict[str, list[str]] = defaultdict(list)
    for device_id, uuid in ids.items():
        cards[uuid].append(device_id)
    return cards


def kin(statuses: Iterable[DeviceStatus]) -> dict[str, list[str]]:
    """Card uuid to the uuids of its slices, and slice uuid to the uuid of its card."""
    kin: defaultdict[str, list[str]] = defaultdict(list)
    for status in statuses:
        if status.device.parent is not None:
            kin[status.device.parent].append(status.uuid)
            kin[status.uuid].append(status.device.parent)
    return kin
