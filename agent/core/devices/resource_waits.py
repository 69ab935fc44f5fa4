"""Resources that wait for cards until pods end, and the sentences about them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from agent.core.devices.cards_of_resources import Offer, cards_of_rules, other_modes
from agent.core.devices.ids_in_use import ResourceUsage, kin
from agent.core.devices.memory_units import UNKNOWN
from agent.core.model import NodeSnapshot, Owner
from agent.core.named_list import named_list

#: How many pods a sentence names.
MAX_NAMED_PODS = 5


class ResourceWait(Struct, frozen=True):
    """Cards that `resource` is to have, but that pods still hold by `holder`; the two may be the same."""

    resource: str
    holder: str
    cards: tuple[str, ...]
    #: The cards and slices on which the pods of `holder` have devices.
    held: frozenset[str]


def waits_of_resources(
    offers: Iterable[Offer], snapshot: NodeSnapshot, usage: ResourceUsage
) -> tuple[ResourceWait, ...]:
    """All waits, one for each resource and holder. A resource waits for itself where its unit changed."""
    slices = kin(snapshot.devices)
    busy = {name: usage.cards_of(name) for name in usage.held}
    found: list[ResourceWait] = []
    for offer, rule, chosen in cards_of_rules(offers, snapshot):
        for holder in sorted(busy.keys() - {rule.name} - other_modes(offer, rule)):
            held = {it.uuid: busy[holder] & {it.uuid, *slices.get(it.uuid, ())} for it in chosen}
            if cards := tuple(uuid for uuid, places in held.items() if places):
                found.append(ResourceWait(rule.name, holder, cards, frozenset().union(*held.values())))
        units = usage.units.get(rule.name, {})
        uncounted = tuple(it.uuid for it in chosen if UNKNOWN in units.get(it.uuid, ()))
        if uncounted:
            found.append(ResourceWait(rule.name, rule.name, uncounted, frozenset(uncounted)))
    return tuple(found)


def wait_sentence(wait: ResourceWait, owners: Sequence[Owner | None]) -> str:
    """The sentence for people; `owners` are the containers that hold the cards."""
    cards = "1 card" if len(wait.cards) == 1 else f"{len(wait.cards)} cards"
    how = "in shares of another plugin's size" if wait.holder == wait.resource else f"as {wait.holder}"
    return f"{wait.resource} waits for {cards} that pods hold {how}: {pod_names(owners)}"


def pod_names(owners: Sequence[Owner | None]) -> str:
    """The names of the first pods, and how many more there are."""
    names = [f"{it.namespace}/{it.pod}" if it and it.pod else "one not known yet" for it in owners]
    return named_list(list(dict.fromkeys(names)), MAX_NAMED_PODS)
