"""What of the config waits until pods end, and the words for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.core.devices.cards_of_resources import Offer, beside, dealt
from agent.core.devices.ids_in_use import ResourceUsage, kin
from agent.core.devices.memory_units import UNKNOWN
from agent.core.model import NodeSnapshot, Owner

#: Pods that a sentence names.
NAMED = 5


@dataclass(frozen=True, slots=True)
class ResourceWait:
    """Cards that are to be one resource's, and that pods hold as another's: theirs until they are free."""

    resource: str
    holder: str
    cards: tuple[str, ...]
    #: The cards or slices on which shares of the holder lie.
    held: frozenset[str]


def waits(offers: Iterable[Offer], snapshot: NodeSnapshot, usage: ResourceUsage) -> tuple[ResourceWait, ...]:
    """What of the config waits until pods end, by resource and holder; that may be the resource itself."""
    slices = kin(snapshot.devices)
    busy = {name: usage.cards_of(name) for name in usage.held}
    found: list[ResourceWait] = []
    for offer, rule, chosen in dealt(offers, snapshot):
        for holder in sorted(busy.keys() - {rule.name} - beside(offer, rule)):
            on = {it.uuid: busy[holder] & {it.uuid, *slices.get(it.uuid, ())} for it in chosen}
            if cards := tuple(uuid for uuid, its in on.items() if its):
                found.append(ResourceWait(rule.name, holder, cards, frozenset().union(*on.values())))
        its = usage.units.get(rule.name, {})
        strange = tuple(it.uuid for it in chosen if UNKNOWN in its.get(it.uuid, ()))
        if strange:
            found.append(ResourceWait(rule.name, rule.name, strange, frozenset(strange)))
    return tuple(found)


def awaited(it: ResourceWait, owners: Sequence[Owner | None]) -> str:
    """The sentence for people; `owners` are those who hold the cards."""
    cards = "1 card" if len(it.cards) == 1 else f"{len(it.cards)} cards"
    how = "in shares of another plugin's size" if it.holder == it.resource else f"as {it.holder}"
    return f"{it.resource} waits for {cards} that pods hold {how}: {named(owners)}"


def named(owners: Sequence[Owner | None]) -> str:
    """The first of these pods by name, and how many more there are."""
    names = [f"{one.namespace}/{one.pod}" if one and one.pod else "one not known yet" for one in owners]
    pods = list(dict.fromkeys(names))
    more = f" and {len(pods) - NAMED} more" if len(pods) > NAMED else ""
    return ", ".join(pods[:NAMED]) + more
