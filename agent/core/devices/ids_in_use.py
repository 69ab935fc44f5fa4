"""The device IDs in use, by resource and card. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from agent.core.devices.held_ids import HeldIds, OutsideRanges
from agent.core.model import AdvertisedDevice, DeviceStatus

#: The IDs of a card without any in use.
NONE = HeldIds()


class ResourceUsage(Struct, frozen=True):
    """The device IDs and cards that allocations have; `Ledger.usage` makes the value."""

    #: Resource to the uuid of each card that IDs in use name, with these IDs.
    held: Mapping[str, Mapping[str, HeldIds]] = field(default_factory=dict)
    #: Resource to the cards of its diverged allocations.
    diverged: Mapping[str, Collection[str]] = field(default_factory=dict)
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
        at_home = (uuid for uuid, held in self.held.get(resource, {}).items() if held.lies_here)
        return frozenset(self.diverged.get(resource, ())).union(at_home)


class IdsInUse:
    """Answers questions about the IDs in use. `HeldIds` keeps the answers for which IDs are read."""

    def __init__(self, usage: ResourceUsage, kin: Mapping[str, Sequence[str]]) -> None:
        self._usage = usage
        self._kin = kin
        self._lies_on = {name: usage.cards_of(name) for name in {*usage.held, *usage.diverged}}

    def cards(self, resource: str) -> Iterable[str]:
        """The cards on which IDs of the resource are in use."""
        return self._usage.held.get(resource, {})

    def on_card(self, resource: str, uuid: str) -> HeldIds:
        """The IDs of the resource in use on the card."""
        return self._usage.held.get(resource, {}).get(uuid, NONE)

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

    def outside_range(self, resource: str, card: AdvertisedDevice) -> Sequence[str]:
        """The IDs of the resource in use on the card that are not in the card's range, sorted."""
        return self.on_card(resource, card.uuid).chosen(OutsideRanges((card.ids,) if card.ids else ()))

    def listed(self, resource: str, card: AdvertisedDevice) -> tuple[str, ...]:
        """The IDs of the resource in use on the card that the card lists, sorted."""
        in_range = self.on_card(resource, card.uuid).in_range(card.ids) if card.ids else ()
        return tuple(sorted((*in_range, *card.kept))) if card.kept else in_range


def kin(statuses: Iterable[DeviceStatus]) -> dict[str, list[str]]:
    """Card uuid to the uuids of its slices, and slice uuid to the uuid of its card."""
    kin: defaultdict[str, list[str]] = defaultdict(list)
    for status in statuses:
        if status.device.parent is not None:
            kin[status.device.parent].append(status.uuid)
            kin[status.uuid].append(status.device.parent)
    return kin
