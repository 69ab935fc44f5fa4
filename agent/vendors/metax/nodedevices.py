"""The annotation of the Node that tells HAMi's scheduler which slices the cards offer. Pure.

Source: HAMi pkg/device/metax/{protocol,sdevice}.go (4707fb02). There a missing field is zero, and a card
without `healthy` is unhealthy.
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
    """The annotation with a list of the cards in their order; no annotation without cards.

    Foreign slices are subtracted from the totals. Own slices count as the hardware shows them, even if no pod
    has them any more. Slices of `grants` that the hardware does not show yet count as they were asked for. A
    card that pods have by another resource is unhealthy here, because it has no room for slices.
    """
    names = {it.name for it in rules} or {SGPU}
    cards = [it for it in devices if it.parent is None and constants.VIRTUAL_FUNCTIONS not in it.attributes]
    granted = [
        (grant.request.allocation, part)
        for grant in grants
        if grant.request.resource in names
        for part in made(options, grant, cards)
    ]
    in_other_use = {uuid for it in grants if it.request.resource not in names for uuid in it.uuids}
    described = [
        _card(
            card,
            [(allocation, part) for allocation, part in granted if part.card == card.uuid],
            free=card.uuid not in in_other_use,
        )
        for card in cards
    ]
    return {ANNOTATION: json.dumps(described, separators=(",", ":"))} if described else {}


def _own_slices(card: Device, granted: Sequence[tuple[str, Slice]]) -> Sequence[Slice]:
    """The own slices of a card: what the hardware shows, and granted slices that it does not show yet.

    Settings and claims may have changed since a slice was made, so the hardware decides where it shows one.
    """
    shown = slices_seen(card)
    return [*shown.values(), *(part for allocation, part in granted if allocation not in shown)]


def _card(card: Device, granted: Sequence[tuple[str, Slice]], *, free: bool) -> Mapping[str, object]:
    """One card of the annotation, without fields that are zero or empty."""
    count, compute, memory = (
        max(0, total - number(card, key))
        for total, key in (
            (MAX_SLICES, constants.FOREIGN_SLICES),
            (WHOLE, constants.FOREIGN_COMPUTE),
            (room(card), constants.FOREIGN_MEMORY),
        )
    )
    own = _own_slices(card, granted)
    fields = {
        "bdf": card.pci,
        "model": card.model,
        "totalDevCount": count,
        "totalCompute": compute,
        "totalVRam": memory,
        "availableDevCount": count - len(own),
        "availableCompute": compute - sum(it.compute for it in own),
        "availableVRam": memory - sum(it.memory for it in own),
        "numa": card.numa,
        "healthy": free and card.fault is None,
        "qosPolicy": next(_policies(card, [it for _, it in granted]), ""),
        "linkZone": number(card, constants.LINK_ZONE),
    }
    bounded = {key: max(0, min(it, _MAX)) if type(it) is int else it for key, it in fields.items()}
    return {"uuid": card.uuid, **{key: it for key, it in bounded.items() if it}}


def _policies(card: Device, granted: Sequence[Slice]) -> Iterator[str]:
    """The possible policies of the card, the best source first.

    Granted slices can be newer than the last reading of the hardware. The policy of the hardware is the next
    source, also for granted slices without a policy of their own.
    """
    yield from (str(it.qos) for it in granted if it.qos is not None)
    has_slices = {constants.FOREIGN_SLICES, constants.OWN_SLICES[0]} & card.attributes.keys()
    if has_slices or any(not it.whole for it in granted):
        yield card.attributes.get(constants.QOS, "")
