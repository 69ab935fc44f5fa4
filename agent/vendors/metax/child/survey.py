"""Reads all cards of a node once, with their virtual functions and slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.vendor_api.backend import Fault
from agent.vendors.common import library_cards
from agent.vendors.metax.shared import constants

from . import cards, faults, layouts
from .cards import MetaxCard
from .library import Mxsml, MxsmlError

Settings = Mapping[str, Any]
Known = Mapping[str, MetaxCard]


def survey(mxsml: Mxsml, settings: Settings, known: Known) -> list[MetaxCard]:
    """Read every card, and in mode vgpu its virtual functions.

    A device that tells no uuid now keeps the one that it has in `known`.

    Raises:
        MxsmlError: The library does not tell the number of devices.
    """
    before = {card.index: card for card in known.values()}
    limited = _limited(mxsml, settings)
    indices = [index for index in mxsml.devices() if index not in limited]
    read = [cards.read(mxsml, settings, index, before.get(index)) for index in indices]
    read += limited.values()
    named = library_cards.named(read, known, cards.completed, "metax")
    return _parted(mxsml, settings, named, known)


def _limited(mxsml: Mxsml, settings: Settings) -> dict[int, MetaxCard]:
    """The cards that the driver allows to use in part only, by index. Pods never get them."""
    if not mxsml.has("GetAllLimitedDevices"):
        return {}
    try:
        identities = [mxsml.limited_identity(index) for index in mxsml.limited_devices()]
    except MxsmlError:
        return {}  # the other cards are read all the same
    placed = [cards.placed(settings, identity) for identity in identities]
    return {it.index: MetaxCard(it.index, replace(it, fault=faults.LIMITED)) for it in placed}


# Virtual functions and slices


def _parted(mxsml: Mxsml, settings: Settings, found: Sequence[MetaxCard], known: Known) -> list[MetaxCard]:
    """The cards with their layouts, and in mode vgpu the virtual functions of present cards."""
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
    """The card of each virtual function, and the function's number on that card, by the function's index."""
    parents: dict[int, tuple[MetaxCard, int]] = {}
    for card in found:
        if card.device.attributes.get(constants.VIRTUALISATION) != constants.PF or not card.reachable:
            continue
        try:
            functions = mxsml.virtual_devices(card.index)
        except MxsmlError:
            continue  # then virtual functions count as cards, as in a virtual machine
        parents.update({index: (card, number) for number, index in enumerate(sorted(functions))})
    return parents


def _function(card: MetaxCard, parent: MetaxCard, number: int) -> MetaxCard:
    """A virtual function as a slice of its card, with the card's place on the node."""
    own, whole = card.device, parent.device
    attributes = {**own.attributes, constants.VIRTUALISATION: constants.VF, constants.VF_PCI: own.pci or ""}
    device = replace(
        own,
        index=whole.index,
        minor=None,
        pci=whole.pci,
        numa=whole.numa,
        attributes=attributes,
        parent=whole.uuid,
        slice=number,
        counters={},  # they are the card's, and stand at the card
    )
    return replace(card, device=device)


def _whole(mxsml: Mxsml, mode: str, card: MetaxCard, known: MetaxCard | None, functions: int) -> MetaxCard:
    """A card with its layout, or with the last one if it cannot be read now.

    In modes that give out whole cards, slices and virtual functions are a fault.
    """
    if not card.sliceable:
        return card
    layout, fault = _layout(mxsml, card)
    of_layout = layouts.attributes(layout) if fault is None or layout else _last_layout(known)
    own = {name: text for name, text in card.device.attributes.items() if name not in constants.LAYOUT}
    attributes = {**own, **of_layout, **_functions(functions)}
    if mode != constants.VGPU and functions:
        fault = fault or faults.split(mode, functions)
    if mode in (constants.NATIVE, constants.SHARED) and layout and layout.slices:
        fault = fault or faults.sliced(mode, len(layout.slices))
    device = replace(card.device, attributes=attributes, fault=card.device.fault or fault)
    return replace(card, device=device)


def _layout(mxsml: Mxsml, card: MetaxCard) -> tuple[layouts.Layout | None, Fault | None]:
    try:
        layout = layouts.read(mxsml, card)
    except MxsmlError as error:
        return None, faults.reading(error)
    return layout, layouts.unsummed(layout)


def _last_layout(known: MetaxCard | None) -> dict[str, str]:
    """The attributes of the card's last known layout."""
    attributes = known.device.attributes if known else {}
    return {name: text for name, text in attributes.items() if name in constants.LAYOUT}


def _functions(count: int) -> dict[str, str]:
    return {constants.VIRTUAL_FUNCTIONS: str(count)} if count else {}
