"""The annotation of the Node by which HAMi's scheduler knows the slices that there are to be had. Pure.

Source: HAMi pkg/device/metax/{protocol,sdevice}.go (4707fb02): a field that is missing is zero, and a card
without `healthy` is not well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from agent.vendor_api.agent import Device, Grant, ResourceRule

from . import constants
from .agent.cards_with_room import made, number, room, slices_seen
from .agent.options import Options
from .resource_names import DOMAIN, SGPU
from .slice_request import MAX_SLICES, WHOLE, Slice

ANNOTATION = f"{DOMAIN}node-gpu-devices"
_MAX = (1 << 31) - 1


def node_annotations(
    options: Options, rules: Sequence[ResourceRule], devices: Sequence[Device], grants: Sequence[Grant]
) -> Mapping[str, str]:
    """A list of the cards in the order of the devices; nothing without cards.

    Slices that we did not make are no part of the totals. Of ours those count that lie there, as they are,
    also where nobody has them any more; and of `grants` those with which the hardware was not yet seen.
    What lies on a card by other resources keeps it from being well: it is not to be had in slices.
    """
    names = {it.name for it in rules} or {SGPU}
    cards = [it for it in devices if it.parent is None and constants.VIRTUAL_FUNCTIONS not in it.attributes]
    ours = [
        (it.request.allocation, one)
        for it in grants
        if it.request.resource in names
        for one in made(options, it, cards)
    ]
    otherwise = {uuid for it in grants if it.request.resource not in names for uuid in it.uuids}
    said = [
        _entry(it, [(id_, one) for id_, one in ours if one.card == it.uuid], free=it.uuid not in otherwise)
        for it in cards
    ]
    return {ANNOTATION: json.dumps(said, separators=(",", ":"))} if said else {}


def _had(card: Device, made: Sequence[tuple[str, Slice]]) -> Sequence[Slice]:
    """Of an allocation that lies there nothing else counts: settings and claims may be others by now."""
    there = slices_seen(card)
    return [*there.values(), *(it for allocation, it in made if allocation not in there)]


def _entry(card: Device, made: Sequence[tuple[str, Slice]], *, free: bool) -> Mapping[str, object]:
    count, compute, memory = (
        max(0, total - number(card, key))
        for total, key in (
            (MAX_SLICES, constants.FOREIGN_SLICES),
            (WHOLE, constants.FOREIGN_COMPUTE),
            (room(card), constants.FOREIGN_MEMORY),
        )
    )
    had = _had(card, made)
    fields = {
        "bdf": card.pci,
        "model": card.model,
        "totalDevCount": count,
        "totalCompute": compute,
        "totalVRam": memory,
        "availableDevCount": count - len(had),
        "availableCompute": compute - sum(it.compute for it in had),
        "availableVRam": memory - sum(it.memory for it in had),
        "numa": card.numa,
        "healthy": free and card.fault is None,
        "qosPolicy": next(_policies(card, [it for _, it in made]), ""),
        "linkZone": number(card, constants.LINK_ZONE),
    }
    bounded = {key: max(0, min(it, _MAX)) if type(it) is int else it for key, it in fields.items()}
    return {"uuid": card.uuid, **{key: it for key, it in bounded.items() if it}}


def _policies(card: Device, made: Sequence[Slice]) -> Iterator[str]:
    """Of our slices, which may be newer than what the hardware was last seen with; then that of what lies
    there, and of ours that took whichever there was.
    """
    yield from (str(it.qos) for it in made if it.qos is not None)
    lies = {constants.FOREIGN_SLICES, constants.OWN_SLICES[0]} & card.attributes.keys()
    if lies or any(not it.whole for it in made):
        yield card.attributes.get(constants.QOS, "")
