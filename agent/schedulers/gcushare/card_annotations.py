"""Annotations that every generation of GCUShare writes on a pod: a card, and the sum of the containers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.scheduler_api import Candidate, Cards, Claim, PodContainer, ServedClaim
from agent.vendor_api.text import shorten

#: Nanoseconds since 1970 have 19 digits; a minor or a number of slices has few.
_TIME = re.compile(r"[0-9]{1,19}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")
_ASSIGNED = ("false", "true")


@dataclass(frozen=True, slots=True)
class AnnotationKeys:
    """The annotations of one generation."""

    card: str
    size: str
    assigned: str
    time: str


def number(annotations: Mapping[str, str], key: str) -> int | None:
    """The number in the annotation; None without the annotation.

    Raises:
        ValueError: The annotation is no decimal number of up to seven digits.
    """
    text = annotations.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{key} is '{shorten(text, 40)}', awaited is a number such as 3")
    return int(text)


def asking(pod: Candidate, resources: Collection[str]) -> list[PodContainer]:
    """The containers with a limit of any of these resources, in the order of the pod."""
    return [it for it in pod.containers if any(it.limits.get(name) for name in resources)]


def total(containers: Iterable[PodContainer], resources: Collection[str]) -> int:
    """The sum of the containers' limits. No generation of GCUShare counts init containers."""
    return sum(it.limits.get(name, 0) for it in containers if not it.init for name in resources)


def is_served(pod: Candidate, served: Iterable[ServedClaim], resources: Collection[str]) -> bool:
    """Whether each container has all that it asks for of these resources."""
    has = {(it.container, it.resource) for it in served}
    wanted = {(it.name, name) for it in pod.containers for name in resources if it.limits.get(name)}
    return wanted <= has


def check(pod: Candidate, keys: AnnotationKeys) -> None:
    """Refuse annotations that no scheduler of these generations writes.

    Raises:
        ValueError: With the annotation, its value, and the expected value.
    """
    assigned, time = (pod.annotations.get(key) for key in (keys.assigned, keys.time))
    if assigned is not None and assigned not in _ASSIGNED:
        raise ValueError(f"{keys.assigned} is '{shorten(assigned, 40)}', awaited is 'false' or 'true'")
    if time is None or not _TIME.fullmatch(time):
        found = "is missing" if time is None else f"is '{shorten(time, 40)}'"
        raise ValueError(
            f"{keys.time} {found}, awaited is the time in nanoseconds: its scheduler writes both"
        )


def card(minor: int, key: str, cards: Cards) -> str:
    """The uuid of the card with this number of `/dev/gcuN`.

    Raises:
        ValueError: No card of the node has the number.
    """
    found = next((uuid for uuid, number in cards.items() if number == minor), None)
    if found is None:
        known = ", ".join(str(it) for it in cards.values() if it is not None) or "none"
        raise ValueError(f"{key} names card {minor}, which is not here; the cards here: {known}")
    return found


def claim(pod: Candidate, container: PodContainer, uuid: str, parameters: Mapping[str, str]) -> Claim:
    return Claim(pod.uid, pod.namespace, pod.name, container.name, (uuid,), parameters)
