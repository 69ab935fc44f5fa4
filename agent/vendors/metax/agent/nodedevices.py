"""The annotation of the Node by which HAMi's scheduler knows the cards and their free slices. Pure.

Source: HAMi pkg/device/metax/{protocol,sdevice}.go (4707fb02): a field that is missing is zero, and a card
without `healthy` is not healthy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from agent.vendor_api.agent import Device, Grant, ResourceRule
from agent.vendors.metax.shared import constants
from agent.vendors.metax.shared.slice_request import MAX_SLICES, WHOLE, Slice

from .names import DOMAIN, SGPU
from .options import Options
from .slice_room import made, number, room, slices_seen

ANNOTATION = f"{DOMAIN}node-gpu-devices"
_MAX = (1 << 31) - 1


def node_annotations(
    options: Options, rules: Sequence[ResourceRule], devices: Sequence[Device], grants: Sequence[Grant]
) -> Mapping[str, str]:
    """A list of the cards in the order of the devices; no annotation without cards.

    Foreign slices are no part of the totals. The agent's slices on the hardware count as they are, also after
    their allocation has ended; so do slices of `grants` that the hardware has not shown yet. A card with
    allocations of another resource counts as not healthy: no slice of the card is free.
    """
    names = {it.name for it in rules} or {SGPU}
    cards = [it for it in devices if it.parent is None and constants.VIRTUAL_FUNCTIONS not in it.attributes]
    granted = [
        (grant.request.allocation, piece)
        for grant in grants
        if grant.request.resource in names
        for piece in made(options, grant, cards)
    ]
    otherwise = {uuid for grant in grants if grant.request.resource not in names for uuid in grant.uuids}
    listed = [
        _entry(
            card,
            [(allocation, piece) for allocation, piece in granted if piece.card == card.uuid],
            free=card.uuid not in otherwise,
        )
        for card in cards
    ]
    return {ANNOTATION: json.dumps(listed, separators=(",", ":"))} if listed else {}


def _slices_on(card: Device, made: Sequence[tuple[str, Slice]]) -> Sequence[Slice]:
    """The slices on the card: those that the hardware shows, and granted ones that it does not show yet."""
    seen = slices_seen(card)
    return [*seen.values(), *(piece for allocation, piece in made if allocation not in seen)]


def _entry(card: Device, made: Sequence[tuple[str, Slice]], *, free: bool) -> Mapping[str, object]:
    count, compute, memory = (
        max(0, total - number(card, key))
        for total, key in (
            (MAX_SLICES, constants.FOREIGN_SLICES),
            (WHOLE, constants.FOREIGN_COMPUTE),
            (room(card), constants.FOREIGN_MEMORY),
        )
    )
    had = _slices_on(card, made)
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
    """The policies of the card: those of the agent's slices, which may be newer than the last reading, then
    that of the hardware, where a slice on the card follows it.
    """
    yield from (str(it.qos) for it in made if it.qos is not None)
    follows = {constants.FOREIGN_SLICES, constants.OWN_SLICES[0]} & card.attributes.keys()
    if follows or any(not it.whole for it in made):
        yield card.attributes.get(constants.QOS, "")
