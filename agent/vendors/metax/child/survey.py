"""All cards of a node, as one look at each of them shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.vendor_api.backend import Fault
from agent.vendors.common import library_cards
from agent.vendors.metax import constants

from . import cards, faults, layouts
from .cards import MetaxCard
from .library import Mxsml, MxsmlError

Settings = Mapping[str, Any]
Known = Mapping[str, MetaxCard]


def survey(mxsml: Mxsml, settings: Settings, known: Known) -> list[MetaxCard]:
    """Every card, and in mode vgpu its virtual functions, each under the uuid that it has or had.

    Raises:
        MxsmlError: The library does not say how many there are.
    """
    at = {card.index: card for card in known.values()}
    limited = _limited(mxsml, settings)
    looks = [
        cards.read(mxsml, settings, index, at.get(index)) for index in mxsml.devices() if index not in limited
    ]
    looks += limited.values()
    named = library_cards.named(looks, known, cards.completed, "metax")
    return _parted(mxsml, settings, named, known)


def _limited(mxsml: Mxsml, settings: Settings) -> dict[int, MetaxCard]:
    """Cards that the driver lets be used in part only, by their numbers; nobody is given one."""
    if not mxsml.has("GetAllLimitedDevices"):
        return {}
    try:
        its = [mxsml.limited_identity(index) for index in mxsml.limited_devices()]
    except MxsmlError:
        return {}  # says nothing of the others
    placed = [cards.placed(settings, it) for it in its]
    return {it.index: MetaxCard(it.index, replace(it, fault=faults.LIMITED)) for it in placed}


# What cards are split into


def _parted(mxsml: Mxsml, settings: Settings, found: Sequence[MetaxCard], known: Known) -> list[MetaxCard]:
    """The cards with what lies on them; of virtual functions only in mode vgpu those whose card is here."""
    mode = settings.get("mode") or constants.NATIVE
    parents = _parents(mxsml, found)
    split = {parent.uuid: 0 for parent, _ in parents.values()}
    for parent, _ in parents.values():
        split[parent.uuid] += 1
    shown: list[MetaxCard] = []
    for card in found:
        if card.index not in parents:
            shown.append(_whole(mxsml, mode, card, known.get(card.uuid), split.get(card.uuid, 0)))
        elif mode == constants.VGPU:
            shown.append(_function(card, *parents[card.index]))
    return shown


def _parents(mxsml: Mxsml, found: Sequence[MetaxCard]) -> dict[int, tuple[MetaxCard, int]]:
    """The card of each virtual function, and its number there, by the library's number of the function."""
    parents: dict[int, tuple[MetaxCard, int]] = {}
    for card in found:
        if card.device.attributes.get(constants.VIRTUALISATION) != constants.PF or not card.reachable:
            continue
        try:
            functions = mxsml.virtual_devices(card.index)
        except MxsmlError:
            continue  # they then count as cards of their own, as they do in a guest
        parents.update({index: (card, number) for number, index in enumerate(sorted(functions))})
    return parents


def _function(card: MetaxCard, parent: MetaxCard, number: int) -> MetaxCard:
    own, its = card.device, parent.device
    attributes = {**own.attributes, constants.VIRTUALISATION: constants.VF, constants.VF_PCI: own.pci or ""}
    device = replace(
        own,
        index=its.index,
        minor=None,
        pci=its.pci,
        numa=its.numa,
        attributes=attributes,
        parent=its.uuid,
        slice=number,
        counters={},  # the card's, which is told of itself
    )
    return replace(card, device=device)


def _whole(mxsml: Mxsml, mode: str, card: MetaxCard, known: MetaxCard | None, functions: int) -> MetaxCard:
    """A card with what lies on it, or what last did; in modes that give it out whole that is a fault."""
    if not card.sliceable:
        return card
    layout, fault = _layout(mxsml, card)
    told = layouts.attributes(layout) if fault is None or layout else _lay(known)
    own = {name: text for name, text in card.device.attributes.items() if name not in constants.LAYOUT}
    said = {**own, **told, **_functions(functions)}
    if mode != constants.VGPU and functions:
        fault = fault or faults.split(mode, functions)
    if mode in (constants.NATIVE, constants.SHARED) and layout and layout.found:
        fault = fault or faults.sliced(mode, len(layout.found))
    device = replace(card.device, attributes=said, fault=card.device.fault or fault)
    return replace(card, device=device)


def _layout(mxsml: Mxsml, card: MetaxCard) -> tuple[layouts.Layout | None, Fault | None]:
    try:
        layout = layouts.look(mxsml, card)
    except MxsmlError as error:
        return None, faults.reading(error)
    return layout, layouts.unsummed(layout)


def _lay(known: MetaxCard | None) -> dict[str, str]:
    """What last lay on a card, as far as it is known."""
    attributes = known.device.attributes if known else {}
    return {name: text for name, text in attributes.items() if name in constants.LAYOUT}


def _functions(count: int) -> dict[str, str]:
    return {constants.VIRTUAL_FUNCTIONS: str(count)} if count else {}
