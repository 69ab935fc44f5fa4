"""The kinds of slices that a product's hardware makes, and which of them a request wants.

efsmi lists them of a card that can be sliced now and of no other, and to let a card be sliced only to look
would disturb who uses it. So what was seen once is kept, by product; what an S60 has is public.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.vendor_api.backend import Request, RequestRefused
from agent.vendors.common import own_files
from agent.vendors.enflame import constants

from . import efsmi

FILE = "profiles.json"
#: Of a node's dump that is public.
PUBLISHED = {"S60": {"1g.6gb": 0, "3g.20gb": 1, "6g.40gb": 2}}
MAX_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)

Profiles = Mapping[str, int]  # name to number


@dataclass(frozen=True, slots=True)
class WantedProfile:
    """What is asked for: a profile by name, or by how many slices of the card it takes."""

    asked: str
    name: str = ""
    number: int | None = None
    slices: int = 0


def wanted(request: Request) -> WantedProfile:
    """What a scheduler's claim names, else as many slices as IDs were asked for.

    Raises:
        RequestRefused: The claim makes no sense.
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


def chosen(want: WantedProfile, there: Profiles, card: str) -> tuple[str, int]:
    """The profile's name and number.

    Raises:
        RequestRefused: The card has no such profile; says which it has.
    """
    fits = [it for it in there if it == want.name or (not want.name and constants.slices(it) == want.slices)]
    if not fits:
        raise RequestRefused(f"{want.asked}: {card} can have no such slice, it can have {listed(there)}")
    name = min(
        fits, key=constants.gigabytes
    )  # where a number of slices is all that is asked for, the least do
    if want.number not in (None, there[name]):
        raise RequestRefused(
            f"{want.asked} has number {there[name]} on {card}, the claim says {want.number}: let "
            "the scheduler read the node's profiles anew"
        )
    return name, there[name]


def listed(there: Iterable[str]) -> str:
    """The profiles' names, for people."""
    return ", ".join(sorted(there, key=constants.slices)) or "none"


def attribute(there: Profiles) -> str:
    """As devices tell them: NAME:ID, joined by commas."""
    return ",".join(f"{name}:{there[name]}" for name in sorted(there, key=constants.slices))


class KnownProfiles:
    """What was seen of each product; in a file where there is a directory."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / FILE if directory else None
        self._seen = _read(self._path) if self._path else {}

    def of(self, product: str) -> Profiles:
        return self._seen.get(product) or PUBLISHED.get(product, {})

    def has(self, product: str) -> bool:
        """Whether it was seen, and not only published."""
        return product in self._seen

    def learn(self, product: str, rows: Sequence[efsmi.SliceProfile]) -> Profiles:
        there = {it.name: it.id for it in rows}
        if product and there and there != self._seen.get(product):
            self._seen[product] = there
            if self._path is not None:
                with suppress(OSError):  # then it is learned again
                    own_files.write(self._path, self._seen)
        return there


def _read(path: Path) -> dict[str, dict[str, int]]:
    said = own_files.read(path)
    its = said.items() if isinstance(said, dict) else ()
    return {str(product): _numbers(there) for product, there in its if isinstance(there, dict)}


def _numbers(there: Mapping[object, object]) -> dict[str, int]:
    return {
        name: number
        for name, number in there.items()
        if isinstance(name, str) and constants.slices(name) and type(number) is int and number >= 0
    }
