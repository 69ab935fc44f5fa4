"""The node's cards in the hands of the campaign, and what is true of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios.cards import OFF, Cards, Nvidia, Simulated
from scenarios.enflame import DRS, GCU, MEMORY, SHARED

from .enflame import EnflameCards
from .invariants import Place
from .metax import MetaXCards

sys.path.append(str(Path(__file__).parents[1] / "vendors" / "nvidia"))

#: Slices on the hardware that are nobody's of ours.
FOREIGN = (
    {"id": "strange/0", "uuid": "", "allocation": None},
    {"id": "strange/1", "uuid": "", "allocation": None},
)


@dataclass(frozen=True, slots=True)
class Card:
    vendor: str
    index: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource of the node, as it is configured."""

    name: str
    vendor: str
    cards: tuple[int, ...]
    replicas: int = 1
    #: Whether hardware is made for each allocation.
    prepares: bool = False
    #: Of memory: GiB of one ID, of which `replicas` are a card.
    unit: str = ""
    #: What its IDs are made of.
    ids: str = "uuid"

    @property
    def rule(self) -> Mapping[str, Any]:
        return {"name": self.name, "devices": list(self.cards), "sharing": self._sharing, "ids": self.ids}

    @property
    def _sharing(self) -> Mapping[str, Any]:
        if self.unit:
            return {"kind": "memory", "unit": self.unit}
        return {"kind": "replicas", "replicas": self.replicas} if self.replicas > 1 else {"kind": "exclusive"}


class SimulatedCards(Simulated):
    """Simulated cards, with slices that outlive every process where they are asked for."""

    def __init__(self, directory: Path, count: int, prepares: bool) -> None:
        super().__init__(directory, count)
        self._devices = self.scenario.read()["devices"]
        self._prepares = prepares
        self.slices = directory / "slices.json"
        self.slices.write_text(
            json.dumps([{**it, "uuid": self.uuids[0]} for it in FOREIGN] if prepares else [])
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        parts = {"prepares": True, "partitions": str(self.slices)} if self._prepares else {}
        return {"settings": {"scenario": str(self.scenario.path), **parts}}

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(
            device["uuid"] for device in (getattr(self, "_devices", None) or self.scenario.read()["devices"])
        )

    def remove(self, index: int) -> None:
        self.scenario.change(devices=[it for n, it in enumerate(self._devices) if n != index])

    def restore(self, index: int) -> None:
        self.scenario.change(devices=self._devices)

    def renumber(self) -> None:
        """Move every minor, and the device node with it, to the next card."""
        old = self._devices
        moved = [old[-1], *old[:-1]]
        keys = ("minor", "paths")
        self._devices = [
            {**it, **{key: other[key] for key in keys}} for it, other in zip(old, moved, strict=True)
        ]
        self.scenario.change(devices=self._devices)

    def write_slices(self, slices: list[dict[str, Any]]) -> None:
        fresh = self.slices.with_suffix(".new")
        fresh.write_text(json.dumps(slices))
        fresh.replace(self.slices)

    def there(self) -> Iterator[Mapping[str, Any]]:
        yield from json.loads(self.slices.read_text())

    def take(self, name: str) -> None:
        """Remove a slice from under whoever has it."""
        self.write_slices([dict(it) for it in self.there() if it["id"] != name])

    def garbage(self) -> None:
        self.scenario.garbage()

    def hang_in(self, call: str) -> None:
        self.scenario.hang(call)

    def heal(self, index: int) -> None:
        """Let the card look well, which proves nothing."""
        self.scenario.heal(self.uuids[index])


class NvidiaCards(Nvidia):
    """NVIDIA's library as the compiled stub plays it."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory, count)
        self.stub = type(self.stub)(directory, count)  # without a trace, which would only grow
        self._minors = list(range(count))

    def remove(self, index: int) -> None:
        self.stub.remove(index)

    def restore(self, index: int) -> None:
        self.stub.restore(index)

    def renumber(self) -> None:
        self._minors = [self._minors[-1], *self._minors[:-1]]
        for index, minor in enumerate(self._minors):
            self.stub.minor(index, minor)

    def garbage(self) -> None:
        """Let every card answer what no driver says."""
        self.stub.fail("nvmlDeviceGetUUID", 999)

    def hang_in(self, call: str) -> None:
        self.hang()

    def fail(self, index: int) -> None:
        """Report XID 79, and ask for a reset until there is one."""
        self.stub.recovery(index, 1, announce=False)
        super().fail(index)

    def heal(self, index: int) -> None:
        """Let the card look well."""
        self.stub.recovery(index, 0, announce=False)


AnyCards = SimulatedCards | NvidiaCards | MetaXCards | EnflameCards


@dataclass
class Hardware:
    """All cards of the node, and the truth of them: which are broken until they are reset."""

    vendors: Mapping[str, AnyCards]
    offers: tuple[Offer, ...]
    broken: set[Card] = field(default_factory=set)
    cordoned: set[Card] = field(default_factory=set)
    #: "dynamic" where a card that several resources offer is the first's that takes of it.
    modes: str = "fixed"
    #: How many times as long one waits for what must hold: each step of a slice may be a program of its own.
    patience: float = 1.0

    def cards(self) -> list[Card]:
        """Every card that is offered, in order."""
        its = (Card(offer.vendor, index) for offer in self.offers for index in offer.cards)
        return list(dict.fromkeys(its))

    @property
    def appended(self) -> tuple[Offer, ...]:
        """The offers of which an allocation goes to the journal; made hardware replaces the checkpoint."""
        return tuple(it for it in self.offers if not it.prepares)

    def well(self) -> list[Card]:
        return [card for card in self.cards() if card not in self.broken | self.cordoned]

    def uuid(self, card: Card) -> str:
        return self.vendors[card.vendor].uuids[card.index]

    def fail(self, card: Card) -> None:
        self.vendors[card.vendor].fail(card.index)
        self.broken.add(card)

    def reset(self, card: Card) -> None:
        self.vendors[card.vendor].reset(card.index)
        self.broken.discard(card)

    def heal(self, card: Card) -> None:
        self.vendors[card.vendor].heal(card.index)

    def announce(self, card: Card) -> None:
        """Say again how a card is: who lost its memory is told by the next event."""
        it = self.vendors[card.vendor]
        if card in self.broken:
            it.fail(card.index)
        else:
            it.reset(card.index)

    def expected(self, held: Mapping[Place, frozenset[str]]) -> Mapping[str, tuple[int, int]]:
        """Resource to capacity and allocatable, where these IDs are held."""
        return {it.name: (len(it.cards) * it.replicas, self._allocatable(it, held)) for it in self.offers}

    def _allocatable(self, offer: Offer, held: Mapping[Place, frozenset[str]]) -> int:
        """A card that is cordoned, or another's for now, offers what is held of it, and no more.

        Where others made a slice, nothing else is offered than slices.
        """
        count = 0
        sliced = frozenset() if offer.prepares else self._sliced_by_others()
        for card in (Card(offer.vendor, index) for index in offer.cards):
            taken = self._taken(card, held)
            if card in self.cordoned - self.broken or card in sliced or taken.keys() - {offer.name}:
                count += taken[offer.name] if card not in self.broken else 0
            elif card not in self.broken:
                count += offer.replicas
        return count

    def _taken(self, card: Card, held: Mapping[Place, frozenset[str]]) -> Counter[str]:
        """How many IDs of the card each resource has given out; an init container hands its own on."""
        names = self._names(card)
        of_card = {it.name for it in self.offers if it.vendor == card.vendor and card.index in it.cards}
        found = {
            (resource, it)
            for (_, _, resource), ids in held.items()
            if resource in of_card
            for it in ids
            if it.partition("::")[0] in names
        }
        return Counter(resource for resource, _ in found)

    def _names(self, card: Card) -> frozenset[str]:
        """What IDs of the card begin with."""
        its = self.vendors[card.vendor]
        minors = {str(its.minors[card.index])} if isinstance(its, EnflameCards) else set()
        return frozenset({self.uuid(card), *minors})

    def rivals(self, offer: Offer) -> frozenset[str]:
        """The other resources that offer some of its cards."""
        its = (it for it in self.offers if it is not offer and it.vendor == offer.vendor)
        return frozenset(it.name for it in its if not set(it.cards).isdisjoint(offer.cards))

    @property
    def environment(self) -> Mapping[str, str]:
        return {name: value for it in self.vendors.values() for name, value in it.environment.items()}

    def settings(self) -> Mapping[str, Any]:
        """The vendors' part of the configuration."""
        vendors: dict[str, Any] = dict(OFF)
        for name, it in self.vendors.items():
            rules = [offer.rule for offer in self.offers if offer.vendor == name]
            if isinstance(it, EnflameCards):  # whose indices change, and not every resource has every card
                rules = [{**rule, "devices": [it.uuids[n] for n in rule["devices"]]} for rule in rules]
            vendors[name] = {"enabled": True, "modes": self.modes, **it.settings, "resources": rules}
        return vendors

    def slices(self) -> list[Mapping[str, Any]]:
        """What is made on the hardware now."""
        return list(self._slices())

    def _slices(self) -> Iterator[Mapping[str, Any]]:
        for it in self.vendors.values():
            if not isinstance(it, NvidiaCards):
                yield from it.there()

    def _sliced_by_others(self) -> frozenset[Card]:
        others = {it["uuid"] for it in self._slices() if it["allocation"] is None}
        cards = (Card(name, n) for name, its in self.vendors.items() for n in range(len(its.uuids)))
        return frozenset(it for it in cards if self.uuid(it) in others)

    def foreign(self) -> frozenset[str]:
        return frozenset(it["id"] for it in self._slices() if it["allocation"] is None)


def sliced(directory: Path) -> Hardware:
    """Simulated cards, whole and shared, with hardware made for each allocation."""
    cards = SimulatedCards(directory, 6, prepares=True)
    return Hardware(
        {"simulated": cards},
        (
            Offer("example.com/slice", "simulated", (0, 1, 2, 3), prepares=True),
            Offer("example.com/slice.shared", "simulated", (4, 5), 4, prepares=True),
        ),
    )


def plain(directory: Path) -> Hardware:
    """Simulated cards, whole and shared."""
    cards = SimulatedCards(directory, 6, prepares=False)
    return Hardware(
        {"simulated": cards},
        (
            Offer("example.com/xpu", "simulated", (0, 1, 2, 3)),
            Offer("example.com/xpu.shared", "simulated", (4, 5), 4),
        ),
    )


def mixed(directory: Path) -> Hardware:
    """NVIDIA's cards, whole and shared, beside simulated ones with slices."""
    return Hardware(
        {"nvidia": NvidiaCards(directory, 4), "simulated": SimulatedCards(directory, 2, prepares=True)},
        (
            Offer("nvidia.com/gpu", "nvidia", (0, 1, 2)),
            Offer("nvidia.com/gpu.shared", "nvidia", (3,), 4),
            Offer("example.com/slice", "simulated", (0, 1), prepares=True),
        ),
    )


def metax(directory: Path) -> Hardware:
    """MetaX's cards in slices."""
    cards = MetaXCards(directory, 4)
    return Hardware(
        {"metax": cards}, (Offer("metax-tech.com/sgpu", "metax", (0, 1, 2, 3), 16, prepares=True),)
    )


def enflame(directory: Path) -> Hardware:
    """Enflame's cards, each the first's that takes of it: whole, in slices of either kind, in units."""
    return Hardware(
        {"enflame": EnflameCards(directory, 5, sliced=2)},
        (
            Offer(DRS, "enflame", (0, 1, 2), 6, prepares=True),
            Offer(SHARED, "enflame", (0, 1, 2), 6, ids="minor"),
            Offer(MEMORY, "enflame", (3, 4), 16, unit="1"),
            Offer(GCU, "enflame", (0, 1, 2, 3, 4)),
        ),
        modes="dynamic",
        patience=3.0,
    )


LAYOUTS: Mapping[str, Callable[[Path], Hardware]] = {
    "sliced": sliced,
    "mixed": mixed,
    "plain": plain,
    "metax": metax,
    "enflame": enflame,
}

__all__ = [
    "FOREIGN",
    "LAYOUTS",
    "AnyCards",
    "Card",
    "Cards",
    "EnflameCards",
    "Hardware",
    "MetaXCards",
    "NvidiaCards",
    "Offer",
    "SimulatedCards",
]
