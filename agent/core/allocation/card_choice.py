"""Chooses a card for a request that asks for an amount of a card, and not for a certain card. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from agent.core.allocation.room_on_cards import free_ids_by_card
from agent.core.allocation.scene import Scene
from agent.core.allocation.taken_room import TakenRoom
from agent.core.allocation.vendor_requests import devices_of, request_of
from agent.core.errors import AllocationError, InsufficientRoom, NotServable, VendorError
from agent.core.model import Allocation, Resource
from agent.scheduler_api.claims import Claim
from agent.vendor_api.agent import Device, Grant, NoRoom, Request, RequestRefused, Vendor
from agent.vendor_api.text import shorten

#: Parameters of a claim to the cards on which it may lie, the best one first.
FindCards = Callable[[Mapping[str, str]], tuple[str, ...]]


def knows_room(vendor: Vendor, resource: Resource) -> bool:
    """Whether the vendor chooses a card by the amount that is asked for, where no scheduler chose one."""
    return vendor.offers.cards_with_room is not None and resource.rule.placement == "auto"


def card_finder(
    scene: Scene,
    in_use: Iterable[Allocation],
    planned: Resource,
    count: int,
    taken: TakenRoom,
    due: Iterable[Claim],
    first: Collection[str] = (),
) -> FindCards:
    """Finds the cards with room for a container that asks for `count` IDs.

    `taken`: what takes room of the resource's cards. `due`: claims of waiting pods, which take room too.
    `first`: cards that come before others that are as good.
    """
    vendor = scene.vendors[planned.vendor]
    roomy = {uuid for uuid, left in free_ids_by_card(planned, taken).items() if left > 0}
    uuids = (card.uuid for card in planned.cards if card.uuid in roomy)
    devices = devices_of(scene, sorted(uuids, key=lambda uuid: uuid not in first))
    of_vendor = (it for it in in_use if it.vendor == vendor.name)
    grants = [
        *(Grant(request_of(it), it.cards, it.partitions) for it in of_vendor),
        *(Grant(Request("", planned.name, it.devices, it.parameters), it.devices) for it in due),
    ]

    def find(parameters: Mapping[str, str]) -> tuple[str, ...]:
        request = Request("", planned.name, tuple(f"{n}" for n in range(count)), parameters)
        return cards_with_room(vendor, request, devices, grants)

    return find


def cards_with_room(
    vendor: Vendor,
    request: Request,
    devices: Sequence[Device],
    grants: Sequence[Grant],
) -> tuple[str, ...]:
    """The devices on which the request may lie, the best one first.

    Raises:
        InsufficientRoom: No single device has enough room left; the text says how much each has.
        NotServable: The request cannot be served on any device.
        VendorError: The vendor's code failed.
    """
    assert vendor.offers.cards_with_room is not None
    try:
        return tuple(vendor.offers.cards_with_room(request, devices, grants))
    except NoRoom as exc:
        raise InsufficientRoom(request.resource, str(exc)) from exc
    except RequestRefused as exc:
        raise NotServable(request.resource, str(exc)) from exc
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = shorten(f"{type(exc).__name__}: {exc}", 300)
        raise VendorError(f"{vendor.name}: its plugin fails to choose a card: {wrong}") from exc


def first_that_fits(claims: Sequence[Claim], count: int, find: FindCards) -> tuple[Claim, tuple[str, ...]]:
    """The first of these claims that fits on a card, and the cards for it, best first.

    Any of the pods may have asked, and the kubelet shows later which one did. So the cards are preferred that
    can serve the other claims as well, beginning with the claim that fits on the fewest cards. No pod is
    refused because of what another pod asks for.

    Raises:
        AllocationError: No claim fits on any card. The error is that of the first claim.
    """
    known: dict[tuple[tuple[str, str], ...], Sequence[str]] = {}
    fitting: list[tuple[Claim, Sequence[str]]] = []
    refusal: AllocationError | None = None
    for claim in claims:
        asked = tuple(sorted(claim.parameters.items()))
        try:
            known[asked] = known[asked] if asked in known else find(claim.parameters)
        except AllocationError as exc:
            known[asked] = ()
            refusal = refusal or exc
        if known[asked]:
            fitting.append((claim, known[asked]))
    if not fitting:
        assert refusal is not None
        raise refusal
    claim, cards = fitting[0]
    return claim, _common_cards(cards, known.values(), count)


def _common_cards(first: Sequence[str], others: Iterable[Sequence[str]], count: int) -> tuple[str, ...]:
    """The cards of `first` that are in the other sets, too. A set that leaves under `count` is skipped."""
    left = tuple(first)
    for cards in sorted(filter(None, others), key=len):
        both = tuple(uuid for uuid in left if uuid in cards)
        left = both if len(both) >= count else left
    return left
