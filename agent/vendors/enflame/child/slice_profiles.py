"""The profiles of slices that a product's hardware offers, and the profile that a request asks for.

efsmi lists the profiles of a card only while DRS is on there. To turn DRS on only for that would disturb the
pods on the card. So a list is kept by product once it was read. The profiles of an S60 are published.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.vendor_api.backend import Request, RequestRefused
from agent.vendors.common import own_files
from agent.vendors.enflame.shared import constants

from . import efsmi

FILE = "profiles.json"
#: The profiles by product, from a published dump of a node.
PUBLISHED = {"S60": {"1g.6gb": 0, "3g.20gb": 1, "6g.40gb": 2}}
MAX_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)

Profiles = Mapping[str, int]  # name to number


@dataclass(frozen=True, slots=True)
class WantedProfile:
    """The profile that a request asks for: by `name`, or by the number of `slices` of the card.

    `asked` is the request in words, for messages. `number` is the profile's number in the claim, or None.
    """

    asked: str
    name: str = ""
    number: int | None = None
    slices: int = 0


def wanted(request: Request) -> WantedProfile:
    """The profile of a scheduler's claim, or else a profile with as many slices as the request has IDs.

    Raises:
        RequestRefused: The claim has no valid profile.
    """
    name, number = (
        request.parameters.get(constants.PROFILE, ""),
        request.parameters.get(constants.PROFILE_ID, ""),
    )
    if not name:
        count = len(request.ids)
        return WantedProfile(f"{count} of {request.resource}", slices=count)
    if not constants.PROFILE_NAME.fullmatch(name):
        raise RequestRefused(f"{name[:40]!r} is no profile of a slice, such as 3g.20gb")
    if number and not MAX_NUMBER.fullmatch(number):
        raise RequestRefused(f"{number[:40]!r} is no number of the profile {name}")
    return WantedProfile(f"profile {name}", name, int(number) if number else None)


def chosen(want: WantedProfile, offered: Profiles, card: str) -> tuple[str, int]:
    """Name and number of the wanted profile among those that the card offers.

    Raises:
        RequestRefused: The card has no such profile; the message names those that it has.
    """
    if want.name:
        fits = [name for name in offered if name == want.name]
    else:
        fits = [name for name in offered if constants.slices(name) == want.slices]
    if not fits:
        raise RequestRefused(f"{want.asked}: {card} can have no such slice, it can have {listed(offered)}")
    name = min(fits, key=constants.gigabytes)  # of several profiles with so many slices the smallest one
    if want.number not in (None, offered[name]):
        raise RequestRefused(
            f"{want.asked} has number {offered[name]} on {card}, the claim says {want.number}: let "
            "the scheduler read the node's profiles again"
        )
    return name, offered[name]


def listed(names: Iterable[str]) -> str:
    """The names of profiles, smallest first, for messages."""
    return ", ".join(sorted(names, key=constants.slices)) or "none"


def attribute(offered: Profiles) -> str:
    """The profiles as a device's attribute: NAME:ID, joined by commas."""
    return ",".join(f"{name}:{offered[name]}" for name in sorted(offered, key=constants.slices))


class KnownProfiles:
    """The profiles of each product. With a directory they are kept in a file."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / FILE if directory else None
        self._listed = _read(self._path) if self._path else {}

    def of(self, product: str) -> Profiles:
        """The profiles that efsmi listed for the product, or the published ones."""
        return self._listed.get(product) or PUBLISHED.get(product, {})

    def has(self, product: str) -> bool:
        """Whether efsmi has listed the profiles of the product."""
        return product in self._listed

    def keep(self, product: str, rows: Sequence[efsmi.SliceProfile]) -> Profiles:
        """Keep the profiles that efsmi lists for a card of the product, and return them."""
        offered = {row.name: row.id for row in rows}
        if product and offered and offered != self._listed.get(product):
            self._listed[product] = offered
            if self._path is not None:
                with suppress(OSError):  # then efsmi is asked again after a restart
                    own_files.write(self._path, self._listed)
        return offered


def _read(path: Path) -> dict[str, dict[str, int]]:
    content = own_files.read(path)
    products = content.items() if isinstance(content, dict) else ()
    return {str(product): _numbers(profiles) for product, profiles in products if isinstance(profiles, dict)}


def _numbers(profiles: Mapping[object, object]) -> dict[str, int]:
    """Number by name of each profile with a valid name and number."""
    return {
        name: number
        for name, number in profiles.items()
        if isinstance(name, str) and constants.slices(name) and type(number) is int and number >= 0
    }
