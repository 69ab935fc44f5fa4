"""What slices have of the cards, what is left of each, and where a slice fits that names no card. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.scheduler_api import Part
from agent.vendor_api.agent import Device, Grant, NoRoom, Request, RequestRefused
from agent.vendor_api.text import shorten
from agent.vendors.metax import constants
from agent.vendors.metax.slice_request import (
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

#: One of `facts.OWN_SLICES`.
_OWN = re.compile(r"([0-9a-f]{16}):([0-9]{1,9}):([0-9]{1,9})")
#: Cards of which a refusal says what is left.
SAID = 3


@dataclass(frozen=True, slots=True)
class Left:
    """Of a card: MiB, percent, slices; and the policy of those that lie there, None where none does."""

    card: str
    memory: int
    compute: int
    count: int
    qos: str | None = None

    def fits(self, wanted: Slice) -> bool:
        same = wanted.qos is None or self.qos in (None, wanted.qos)
        return same and wanted.memory <= self.memory and wanted.compute <= self.compute and self.count > 0

    def __str__(self) -> str:
        said = f", with slices of {self.qos}" if self.qos else ""
        full = "" if self.count > 0 else ", and no slice more"
        memory, compute = max(0, self.memory), max(0, self.compute)
        return f"{shorten(self.card)} has {memory} MiB and {compute} percent left{said}{full}"


def cards_with_room(
    options: Options, request: Request, devices: Sequence[Device], grants: Sequence[Grant]
) -> Sequence[str]:
    """The cards on which a slice of the request fits, the one with most left first.

    Raises:
        RequestRefused: What is asked for is no slice of any of them.
        NoRoom: It is more than any has left.
    """
    sizes = {it.uuid: room(it) * MIB for it in devices if it.parent is None}
    count = len(request.ids)
    if count > len(sizes):
        raise NoRoom(f"{len(sizes)} cards are well and have an ID left, {count} are asked for")
    if count > 1:  # of several cards only whole ones are to be had
        slices(request, dict([*sizes.items()][:count]), options.unclaimed)
    wanted = _wanted(replace(request, ids=request.ids[:1]), sizes, options)
    rest = {it.uuid: left(options, request.resource, it, grants) for it in devices if it.uuid in wanted}
    found = [it for it in rest.values() if it.fits(wanted[it.card])]
    if len(found) < count:
        raise _short(wanted.values(), rest.values(), count)

    def most(it: Left) -> int:
        return -min(it.compute * WHOLE, it.memory * MIB * WHOLE * WHOLE // max(1, sizes[it.card]))

    return [it.card for it in sorted(found, key=most)]


def _wanted(request: Request, sizes: Mapping[str, int], options: Options) -> dict[str, Slice]:
    """The slice that it is of each card, without those of which it can be none."""
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


def _short(wanted: Iterable[Slice], rest: Iterable[Left], count: int) -> NoRoom:
    its = next(iter(wanted))
    policy = f" as {its.qos}" if its.qos else ""
    on = "no card has as much left" if count == 1 else f"no {count} cards have as much left each"
    most = sorted(rest, key=lambda it: (-it.compute, -it.memory))
    more = [f"and {len(most) - SAID} more"] if len(most) > SAID else []
    told = "; ".join([*map(str, most[:SAID]), *more])
    return NoRoom(f"{its.memory} MiB and {its.compute} percent{policy} are asked for, and {on}: {told}")


def part(parameters: Mapping[str, str], memory: int, unclaimed: Unclaimed = "share") -> Part | None:
    """What the slice of these parameters takes of a card of so many bytes; None: what its ID is of it."""
    asked = {key: parameters[key] for key in (CORE, RATIO, MEMORY) if key in parameters}
    if not all(it.isascii() and it.isdigit() for it in asked.values()) or not (asked or unclaimed == "whole"):
        return None
    try:
        (it,) = slices(Request("", "", ("",), asked), {"": memory}, unclaimed)
    except RequestRefused:  # more memory than there is
        return Part(int(asked.get(CORE, 0)) / WHOLE, 1.0)
    return Part(it.compute / WHOLE, it.memory * MIB / memory if memory else 0.0)


def left(options: Options, resource: str, card: Device, grants: Iterable[Grant]) -> Left:
    """What is left of a card beside what others made there and what of it is given out.

    What has no owner any more counts as gone: the hardware tells late that it is.
    """
    its = [it for it in grants if card.uuid in it.uuids]
    if any(it.request.resource != resource for it in its):
        return Left(card.uuid, 0, 0, 0)
    there = lying(card)
    own: list[Slice] = []
    policies: list[str] = []
    for it in its:
        ours = [one for one in made(options, it, [card]) if one.card == card.uuid]
        policies += [str(one.qos) for one in ours if one.qos is not None]
        seen = there.get(it.request.allocation)
        own += ours if seen is None else [_more(seen, ours if names_amounts(it.request.parameters) else ())]
    foreign = number(card, constants.FOREIGN_SLICES)
    if foreign or any(not it.whole for it in own):
        policies += filter(None, [card.attributes.get(constants.QOS, "")])
    return Left(
        card.uuid,
        room(card) - number(card, constants.FOREIGN_MEMORY) - sum(it.memory for it in own),
        WHOLE - number(card, constants.FOREIGN_COMPUTE) - sum(it.compute for it in own),
        MAX_SLICES - foreign - len(own),
        next(iter(policies), None),
    )


def _more(seen: Slice, claimed: Sequence[Slice]) -> Slice:
    """What lies there, or what it is made into as it is claimed by now: it counts with what is more."""
    its = (seen, *claimed)
    return replace(seen, memory=max(it.memory for it in its), compute=max(it.compute for it in its))


def room(card: Device) -> int:
    """MiB that slices may take of the card."""
    told = card.attributes.get(constants.SLICE_MEMORY, "")
    return int(told) if told.isdecimal() else card.memory // MIB


def made(options: Options, grant: Grant, cards: Sequence[Device]) -> Sequence[Slice]:
    """What slices a grant has. A card that is gone has no memory, and counts as one of the request's."""
    sizes = {it.uuid: room(it) * MIB for it in cards}
    # What was made by another setting than now is no less there.
    unclaimed = "share" if options.unclaimed == "refuse" and grant.partitions else options.unclaimed
    try:
        return slices(grant.request, {uuid: sizes.get(uuid, 0) for uuid in grant.uuids}, unclaimed)
    except ValueError:  # it is being refused
        return ()


def lying(card: Device) -> Mapping[str, Slice]:
    """The slices of ours that were seen on the card: allocation to its slice there."""
    return {
        allocation: Slice(card.uuid, int(memory), int(compute))
        for name in constants.OWN_SLICES
        for allocation, compute, memory in _OWN.findall(card.attributes.get(name, ""))
    }


def number(card: Device, attribute: str) -> int:
    """A count that the hardware told; 0 where it did not."""
    text = card.attributes.get(attribute, "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0
