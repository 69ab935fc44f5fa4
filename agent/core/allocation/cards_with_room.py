"""Where a request lies that says how much of a card it is to have, and not of which. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.core.errors import AllocationError, InsufficientRoom, NotServable, VendorError
from agent.core.model import Resource
from agent.scheduler_api import Claim
from agent.vendor_api.agent import Device, Grant, NoRoom, Request, RequestRefused, Vendor
from agent.vendor_api.text import shorten

#: Parameters of a claim to the cards on which it may lie, the one that suits it best first.
Cards = Callable[[Mapping[str, str]], tuple[str, ...]]


def knows_room(vendor: Vendor, resource: Resource) -> bool:
    """Whether a card is chosen by how much is asked for, where no scheduler chose one."""
    return vendor.offers.cards_with_room is not None and resource.rule.placement == "auto"


def cards_with_room(
    vendor: Vendor,
    request: Request,
    devices: Sequence[Device],
    given: Sequence[Grant],
) -> tuple[str, ...]:
    """Those of the devices on which the request may lie, the one that suits it best first.

    Raises:
        InsufficientRoom: No single one has as much left; with what they have.
        NotServable: It can be had nowhere.
        VendorError: Its code failed.
    """
    assert vendor.offers.cards_with_room is not None
    try:
        return tuple(vendor.offers.cards_with_room(request, devices, given))
    except NoRoom as exc:
        raise InsufficientRoom(request.resource, str(exc)) from exc
    except RequestRefused as exc:
        raise NotServable(request.resource, str(exc)) from exc
    except Exception as exc:  # the vendor's own code: it must not end the agent
        wrong = shorten(f"{type(exc).__name__}: {exc}", 300)
        raise VendorError(f"{vendor.name}: its plugin fails to choose a card: {wrong}") from exc


def first_that_fits(claims: Sequence[Claim], count: int, cards: Cards) -> tuple[Claim, tuple[str, ...]]:
    """The first of these claims that fits on a card, and the cards for it, best first.

    Whose request it is shows later. So of its cards those are taken that would do for the others as well, of
    what fits on the fewest first: that is what asks for most. None is refused for what others ask for.

    Raises:
        AllocationError: What keeps the first one from it; the others fit nowhere, either.
    """
    known: dict[tuple[tuple[str, str], ...], Sequence[str]] = {}
    fitting: list[tuple[Claim, Sequence[str]]] = []
    refusal: AllocationError | None = None
    for claim in claims:
        asked = tuple(sorted(claim.parameters.items()))
        try:
            known[asked] = known[asked] if asked in known else cards(claim.parameters)
        except AllocationError as exc:
            known[asked] = ()
            refusal = refusal or exc
        if known[asked]:
            fitting.append((claim, known[asked]))
    if not fitting:
        assert refusal is not None
        raise refusal
    claim, its = fitting[0]
    return claim, _common(its, known.values(), count)


def _common(first: Sequence[str], others: Iterable[Sequence[str]], count: int) -> tuple[str, ...]:
    left = tuple(first)
    for its in sorted(filter(None, others), key=len):
        both = tuple(it for it in left if it in its)
        left = both if len(both) >= count else left
    return left
