"""What pods say is read once for each version of them, whatever nonsense it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.core import hearing
from agent.core.claims import Candidate, Cards, Claim, Dialect

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
        hearing.claims(pod, resource, [self.dialect], cards, wrong)
        return wrong


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "_memory", hearing._Memory())


POD = Candidate("uid-1", "default", "web", annotations={"a": "b"}, version=7)


def test_a_pod_is_read_once_and_its_claims_are_the_same_each_time() -> None:
    scheduler = Scheduler()
    first, second = (hearing.claims(POD, GPU, [scheduler.dialect], CARDS, []) for _ in range(2))

    assert first == second == [Claim("uid-1", "default", "web", "main", ("a",))]
    assert scheduler.asked == 1


def test_nonsense_is_read_once_and_told_each_time() -> None:
    scheduler = Scheduler(raises=True)

    told = [scheduler.heard(POD) for _ in range(3)]

    assert told == [["default/web: counted: it is nonsense"]] * 3
    assert scheduler.asked == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(POD, version=8),
        replace(POD, over=True),
        replace(POD, scheduler="default-scheduler"),
        replace(POD, annotations={"a": "b", "c": "d"}),
        replace(POD, uid="uid-2"),
    ],
    ids=["version", "over", "scheduler", "annotations that are kept", "uid"],
)
def test_another_pod_or_state_of_it_is_read_anew(other: Candidate) -> None:
    scheduler = Scheduler()
    scheduler.heard(POD)

    scheduler.heard(other)

    assert scheduler.asked == 2


def test_another_resource_and_other_cards_are_another_question() -> None:
    scheduler = Scheduler()
    scheduler.heard(POD)

    scheduler.heard(POD, resource="acme.com/other")
    scheduler.heard(POD, cards={"a": 0})

    assert scheduler.asked == 3


def test_what_has_no_version_is_read_each_time() -> None:
    scheduler = Scheduler()

    for _ in range(3):
        scheduler.heard(replace(POD, version=0))

    assert scheduler.asked == 3


def test_so_many_answers_are_remembered_and_no_more() -> None:
    scheduler = Scheduler()
    pods = [replace(POD, uid=f"uid-{n}") for n in range(hearing.REMEMBERED + 1)]
    for pod in pods:
        scheduler.heard(pod)
    scheduler.heard(pods[-1])
    assert scheduler.asked == len(pods)

    scheduler.heard(pods[0])

    assert scheduler.asked == len(pods) + 1
