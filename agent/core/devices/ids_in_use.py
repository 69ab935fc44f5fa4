"""What of the cards is in use, and in which way: device IDs by resource and card. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from agent.core.model import AdvertisedDevice, DeviceStatus, share

#: Resource name to device ID to the uuid of its card.
Held = Mapping[str, Mapping[str, str]]
#: Resource name to the cards on which shares of it lie by IDs of other cards, with these IDs.
Lying = Mapping[str, Mapping[str, Collection[str]]]
#: Resource to card to what the IDs in use there count memory in, empty of those that do not.
Counted = Mapping[str, Mapping[str, Collection[str]]]


class Uses:
    """The device IDs in use, by resource and card. There may be tens of thousands: each is looked at once."""

    def __init__(self, held: Held, kin: Mapping[str, Sequence[str]], lying: Lying, counted: Counted) -> None:
        self._kin = kin
        self._lying = lying
        self._counted = counted
        self._ids = {resource: _by_card(ids) for resource, ids in held.items()}
        self._lies_on = {name: lies_on(held.get(name, {}), lying.get(name, {})) for name in {*held, *lying}}
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

    def mode(self, resource: str, card: AdvertisedDevice, beside: Collection[str]) -> str:
        """Which of the resources beside this one has the card, or a slice of it; empty where none has."""
        places = {card.uuid, *self._kin.get(card.uuid, ())}
        its = self._lies_on.items()
        return min(
            (name for name, cards in its if name in beside and not places.isdisjoint(cards)), default=""
        )

    def counts_otherwise(self, resource: str, uuid: str, unit: str) -> bool:
        """Whether IDs of the resource in use on the card stand for something else than this much memory."""
        return any(it != unit for it in self._counted.get(resource, {}).get(uuid, ()))

    def has_shares_of_others(self, uuid: str) -> bool:
        """Whether shares lie on the card by IDs of other cards."""
        return any(uuid in cards for cards in self._lying.values())

    def beyond(self, resource: str, uuid: str, card: AdvertisedDevice | None) -> list[str]:
        """IDs of the resource in use on the card that its rule does not make."""
        ids = self._ids.get(resource, {}).get(uuid, [])
        if card is None or card.ids is None or not ids:
            return ids
        if (resource, card) not in self._others:
            self._others[resource, card] = card.ids.without(ids)
        return self._others[resource, card]

    def listed(self, resource: str, card: AdvertisedDevice) -> tuple[str, ...]:
        """IDs of the resource in use on the card that it lists."""
        ids = self._ids.get(resource, {}).get(card.uuid, [])
        return tuple(sorted(device_id for device_id in ids if device_id in card))

    def numbers(self, resource: str, card: AdvertisedDevice) -> list[int]:
        """Those of its range's IDs that are in use, highest first."""
        its = (share(it) for it in self.listed(resource, card))
        return sorted((it.number for it in its if it), reverse=True)


def lies_on(ids: Mapping[str, str], lying: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The cards on which a resource's shares lie. `ids`: those in use, to their cards."""
    if not lying:
        return frozenset(ids.values())
    away = frozenset(chain.from_iterable(lying.values()))
    return frozenset(lying).union(uuid for one, uuid in ids.items() if one not in away)


def _by_card(ids: Mapping[str, str]) -> dict[str, list[str]]:
    cards: defaultdict[str, list[str]] = defaultdict(list)
    for device_id, uuid in ids.items():
        cards[uuid].append(device_id)
    return cards


def kin(statuses: Iterable[DeviceStatus]) -> dict[str, list[str]]:
    """A card to the slices made of it, and a slice to its card."""
    kin: defaultdict[str, list[str]] = defaultdict(list)
    for status in statuses:
        if status.device.parent is not None:
            kin[status.device.parent].append(status.uuid)
            kin[status.uuid].append(status.device.parent)
    return kin
