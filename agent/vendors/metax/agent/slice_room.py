"""What slices take of the cards, what is left of each card, and where a slice without a card fits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.scheduler_api import Part
from agent.vendor_api.agent import Device, Grant, NoRoom, Request, RequestRefused
from agent.vendor_api.text import shorten
from agent.vendors.metax.shared import constants
from agent.vendors.metax.shared.slice_request import (
    CORE,
    MAX_SLICES,
    MEMORY,
    MIB,
    RATIO,
    WHOLE,
    Slice,
    Unclaimed,
    names_amounts,
    slices,
)

from .options import Options

#: One element of the attributes `OWN_SLICES`: allocation, percent, MiB.
_OWN = re.compile(r"([0-9a-f]{16}):([0-9]{1,9}):([0-9]{1,9})")
#: How many cards a refusal names with what is left of them.
MAX_NAMED_CARDS = 3


@dataclass(frozen=True, slots=True)
class RemainingRoom:
    """What is left of a card: MiB, percent, slices; and the policy of the slices on it, None without any."""

    card: str
    memory: int
    compute: int
    count: int
    qos: str | None = None

    def fits(self, wanted: Slice) -> bool:
        """Whether the card has room for the slice."""
        same = wanted.qos is None or self.qos in (None, wanted.qos)
        return same and wanted.memory <= self.memory and wanted.compute <= self.compute and self.count > 0

    def __str__(self) -> str:
        with_policy = f", with slices of {self.qos}" if self.qos else ""
        full = "" if self.count > 0 else ", and no slice more"
        memory, compute = max(0, self.memory), max(0, self.compute)
        return f"{shorten(self.card)} has {memory} MiB and {compute} percent left{with_policy}{full}"


def cards_with_room(
    options: Options, request: Request, devices: Sequence[Device], grants: Sequence[Grant]
) -> Sequence[str]:
    """The cards on which a slice of the request fits, the one with most left first.

    Raises:
        RequestRefused: No card can have such a slice.
        NoRoom: The slice is larger than what is left of each card.
    """
    sizes = {it.uuid: room(it) * MIB for it in devices if it.parent is None}
    count = len(request.ids)
    if count > len(sizes):
        raise NoRoom(f"{len(sizes)} cards are well and have an ID left, {count} are asked for")
    if count > 1:  # a request for several cards gets whole cards alone
        slices(request, dict([*sizes.items()][:count]), options.unclaimed)
    wanted = _wanted(replace(request, ids=request.ids[:1]), sizes, options)
    listed = [card for card in devices if card.uuid in wanted]
    rest = {card.uuid: remaining_room(options, request.resource, card, grants) for card in listed}
    found = [it for it in rest.values() if it.fits(wanted[it.card])]
    if len(found) < count:
        raise _short(wanted.values(), rest.values(), count)

    def most(rest: RemainingRoom) -> int:
        return -min(rest.compute * WHOLE, rest.memory * MIB * WHOLE * WHOLE // max(1, sizes[rest.card]))

    return [it.card for it in sorted(found, key=most)]


def _wanted(request: Request, sizes: Mapping[str, int], options: Options) -> dict[str, Slice]:
    """The slice that the request means on each card, without the cards that cannot have such a slice."""
    found: dict[str, Slice] = {}
    refusal: RequestRefused | None = None
    for uuid, size in sizes.items():
        try:
            (found[uuid],) = slices(request, {uuid: size}, options.unclaimed)
        except RequestRefused as exc:
            refusal = exc
    if refusal is not None and not found:
        raise refusal
    return found


def _short(wanted: Iterable[Slice], rest: Iterable[RemainingRoom], count: int) -> NoRoom:
    asked = next(iter(wanted))
    policy = f" as {asked.qos}" if asked.qos else ""
    on = "no card has as much left" if count == 1 else f"no {count} cards have as much left each"
    most = sorted(rest, key=lambda it: (-it.compute, -it.memory))
    more = [f"and {len(most) - MAX_NAMED_CARDS} more"] if len(most) > MAX_NAMED_CARDS else []
    left = "; ".join([*map(str, most[:MAX_NAMED_CARDS]), *more])
    return NoRoom(f"{asked.memory} MiB and {asked.compute} percent{policy} are asked for, and {on}: {left}")


def part(parameters: Mapping[str, str], memory: int, unclaimed: Unclaimed = "share") -> Part | None:
    """The part of a card that the slice of these parameters takes; None: the part that its ID stands for.

    `memory`: bytes of the card.
    """
    asked = {key: parameters[key] for key in (CORE, RATIO, MEMORY) if key in parameters}
    if not all(it.isascii() and it.isdigit() for it in asked.values()) or not (asked or unclaimed == "whole"):
        return None
    try:
        (made,) = slices(Request("", "", ("",), asked), {"": memory}, unclaimed)
    except RequestRefused:  # more memory than there is
        return Part(int(asked.get(CORE, 0)) / WHOLE, 1.0)
    return Part(made.compute / WHOLE, made.memory * MIB / memory if memory else 0.0)


def remaining_room(options: Options, resource: str, card: Device, grants: Iterable[Grant]) -> RemainingRoom:
    """What is left of a card without the foreign slices and the allocations on it.

    Slices without an allocation count as gone: the hardware reports late that they are.
    """
    granted = [it for it in grants if card.uuid in it.uuids]
    if any(it.request.resource != resource for it in granted):
        return RemainingRoom(card.uuid, 0, 0, 0)
    seen = slices_seen(card)
    own: list[Slice] = []
    policies: list[str] = []
    for grant in granted:
        claimed = [it for it in made(options, grant, [card]) if it.card == card.uuid]
        policies += [str(it.qos) for it in claimed if it.qos is not None]
        on_card = seen.get(grant.request.allocation)
        if on_card is None:
            own += claimed
        else:
            own.append(_more(on_card, claimed if names_amounts(grant.request.parameters) else ()))
    foreign = number(card, constants.FOREIGN_SLICES)
    if foreign or any(not it.whole for it in own):
        policies += filter(None, [card.attributes.get(constants.QOS, "")])
    return RemainingRoom(
        card.uuid,
        room(card) - number(card, constants.FOREIGN_MEMORY) - sum(it.memory for it in own),
        WHOLE - number(card, constants.FOREIGN_COMPUTE) - sum(it.compute for it in own),
        MAX_SLICES - foreign - len(own),
        next(iter(policies), None),
    )


def _more(seen: Slice, claimed: Sequence[Slice]) -> Slice:
    """The slice with the larger of both amounts: those on the card, and those of a newer claim."""
    both = (seen, *claimed)
    return replace(seen, memory=max(it.memory for it in both), compute=max(it.compute for it in both))


def room(card: Device) -> int:
    """MiB of the card that slices may take."""
    reserved = card.attributes.get(constants.SLICE_MEMORY, "")
    return int(reserved) if reserved.isdecimal() else card.memory // MIB


def made(options: Options, grant: Grant, cards: Sequence[Device]) -> Sequence[Slice]:
    """The slices of a grant. A card that is gone counts with no memory."""
    sizes = {it.uuid: room(it) * MIB for it in cards}
    # Slices that were made with an earlier setting are still there.
    unclaimed = "share" if options.unclaimed == "refuse" and grant.partitions else options.unclaimed
    try:
        return slices(grant.request, {uuid: sizes.get(uuid, 0) for uuid in grant.uuids}, unclaimed)
    except ValueError:  # this request is being refused
        return ()


def slices_seen(card: Device) -> Mapping[str, Slice]:
    """The slices of the agent that the hardware showed on the card: allocation to slice."""
    return {
        allocation: Slice(card.uuid, int(memory), int(compute))
        for name in constants.OWN_SLICES
        for allocation, compute, memory in _OWN.findall(card.attributes.get(name, ""))
    }


def number(card: Device, attribute: str) -> int:
    """A count that the hardware reported; 0 where it reported none."""
    text = card.attributes.get(attribute, "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0
