"""What pods say is read once for each version of them, whatever nonsense it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.core.attribution import claim_reading
from agent.scheduler_api import Candidate, Cards, Claim, Dialect
from agent.scheduler_api.candidate import PodList, merged

GPU = "acme.com/gpu"
CARDS = {"a": 0, "b": 1}


class Scheduler:
    """A dialect that counts how often it is asked."""

    def __init__(self, *, raises: bool = False) -> None:
        self.asked = 0
        self._raises = raises
        self.dialect = Dialect("counted", self._claims)

    def _claims(self, pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
        self.asked += 1
        if self._raises:
            raise ValueError("it is nonsense")
        return [Claim(pod.uid, pod.namespace, pod.name, "main", (next(iter(cards)),))]

    def heard(self, pod: Candidate, resource: str = GPU, cards: Cards = CARDS) -> list[str]:
        wrong: list[str] = []
        claim_reading.claims(pod, resource, [self.dialect], cards, wrong)
        return wrong


def pod(**more: Any) -> Candidate:
    return Candidate("uid-1", "default", "web", annotations={"a": "b"}, **more)


def test_a_pod_is_read_once_and_its_claims_are_the_same_each_time() -> None:
    scheduler, it = Scheduler(), pod()
    first, second = (claim_reading.claims(it, GPU, [scheduler.dialect], CARDS, []) for _ in range(2))

    assert first == second == [Claim("uid-1", "default", "web", "main", ("a",))]
    assert scheduler.asked == 1


def test_nonsense_is_read_once_and_told_each_time() -> None:
    scheduler, it = Scheduler(raises=True), pod()

    told = [scheduler.heard(it) for _ in range(3)]

    assert told == [["default/web: counted: it is nonsense"]] * 3
    assert scheduler.asked == 1


def test_what_is_known_of_a_pod_beside_its_own_words_has_it_read_anew_where_it_may_count() -> None:
    scheduler, it = Scheduler(), pod()

    for other in (it, replace(it, appeared=7), replace(it, over=True), replace(it, scheduler="another")):
        scheduler.heard(other)

    assert scheduler.asked == 3


def test_another_version_of_a_pod_is_read_anew() -> None:
    scheduler = Scheduler()

    for version in (7, 8):
        scheduler.heard(pod(version=version))

    assert scheduler.asked == 2


def test_another_resource_other_cards_and_another_dialect_are_another_question() -> None:
    scheduler, other, it = Scheduler(), Scheduler(), pod()
    scheduler.heard(it)

    scheduler.heard(it, resource="acme.com/other")
    scheduler.heard(it, cards={"a": 0})
    other.heard(it)

    assert (scheduler.asked, other.asked) == (3, 1)


def test_a_list_that_shows_the_version_that_is_known_has_nothing_read_anew() -> None:
    scheduler, known, listed = Scheduler(), pod(version=7), pod(version=7)
    scheduler.heard(known)

    [it] = merged([known], 7, PodList((listed,), 9))
    scheduler.heard(it)

    assert scheduler.asked == 1


def test_a_pod_and_its_copy_without_a_scheduler_are_read_in_turn_and_each_once() -> None:
    scheduler, it = Scheduler(), pod()
    copy = replace(it, scheduler="")

    for _ in range(3):
        scheduler.heard(replace(it, scheduler="acme"))
        scheduler.heard(copy)

    assert scheduler.asked == 2
