"""The conformance kit of schedulers: those in tree keep the contract, and each breach is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, Part, Scheduler, ServedClaim
from agent.testing.scheduler_scenes import RecordedScene, check_scheduler, scenes

DATA = Path(__file__).parents[1] / "schedulers/data"
POD = {
    "metadata": {"uid": "u", "namespace": "default", "name": "web", "annotations": {"a.com/card": "c0"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"a.com/x": "1"}}}]},
}
SCENE = RecordedScene(
    "one",
    "acme",
    "a.com/x",
    POD,
    {"c0": 0},
    claims=(Claim("u", "default", "web", "main", ("c0",)),),
    given=(ServedClaim("main", "a.com/x", 1, ("c0",)),),
    receipt={"a.com/given": "main"},
)


@pytest.mark.parametrize("scheduler", registered(), ids=lambda it: it.name)
def test_the_schedulers_in_tree_keep_the_contract(scheduler: Scheduler) -> None:
    found = [*check_scheduler(scheduler, scenes(DATA / f"scenes-{scheduler.name}.json"), registered())]

    assert len(found) > 6
    assert [it for it in found if not it.ok] == []


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    card = pod.annotations.get("a.com/card")
    if card is None:
        return ()
    if card not in cards:
        raise ValueError("the card is not here")
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (card,))]


def receipt(pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    return {"a.com/given": ",".join(it.container for it in given)}


def growing(pod: Candidate, given: Sequence[ServedClaim]) -> Mapping[str, str]:
    return {"a.com/given": pod.annotations.get("a.com/given", "") + "main"}


def read_as_json(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    return [*json.loads(pod.annotations["a.com/card"])]


def taken_for_granted(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    return claims(replace(pod, annotations={"a.com/card": pod.annotations["a.com/card"]}), resource, cards)


TURNS = count()
ACME = Dialect("acme", claims, receipt=receipt, receipt_keys=("a.com/given",))


def checked(dialect: Dialect = ACME, scene: RecordedScene = SCENE, **parts: Any) -> list[str]:
    scheduler = Scheduler("acme", **{"reads": ("a.com/",), "dialects": (dialect,), **parts})
    return [f"{it.name}: {it.detail}" for it in check_scheduler(scheduler, [scene]) if not it.ok]


def saying(change: Callable[[Claim], object]) -> Dialect:
    return replace(ACME, claims=lambda *it: [change(one) for one in claims(*it)])


def test_a_scheduler_that_keeps_the_contract_has_no_finding() -> None:
    assert checked() == []
    refused = replace(SCENE, cards={}, claims=(), refused="is not here", receipt=None)
    assert checked(scene=refused) == []


@pytest.mark.parametrize(
    ("dialect", "says"),
    [
        (
            saying(lambda it: replace(it, devices=("c1",))),
            "claims are as recorded: claimed [('main', ('c1',)",
        ),
        (saying(lambda it: replace(it, devices=("c1",))), "('c1',) are not all here"),
        (saying(lambda it: replace(it, uid="other")), "is claimed for"),
        (saying(lambda it: replace(it, container="other")), "the pod has no container 'other'"),
        (saying(lambda it: replace(it, parameters=cast("dict[str, str]", {"core": 5}))), "are no texts"),
        (saying(lambda it: replace(it, parameters={"at": f"{next(TURNS)}"})), "the second answer differs"),
        (
            replace(ACME, claims=lambda pod, *_: json.loads(pod.annotations["a.com/card"])),
            "claims are as recorded: refused: ",
        ),
        (
            replace(ACME, claims=taken_for_granted),
            "an annotation that makes no sense is refused: KeyError",
        ),
        (replace(ACME, measure=lambda parameters, memory: Part(1 / memory, 0)), "ZeroDivisionError"),
        (replace(ACME, measure=lambda *_: 1.0), "1.0 is no Part"),  # type: ignore[arg-type]
        (replace(ACME, receipt=None), "the dialect writes none"),
        (replace(ACME, receipt=lambda *_: {}), "the receipt is as recorded: it is {}"),
        (replace(ACME, receipt_keys=()), "a key is not among receipt_keys"),
        (replace(ACME, receipt=growing), "it asks for more"),
    ],
)
def test_each_breach_is_found(dialect: Dialect, says: str) -> None:
    assert any(says in it for it in checked(dialect)), checked(dialect)


def test_an_annotation_that_the_scheduler_does_not_say_it_reads_is_not_there() -> None:
    assert any("claims are as recorded: claimed []" in it for it in checked(reads=()))


def test_a_dialect_without_a_scene_and_a_scene_without_a_dialect_are_said() -> None:
    assert checked(vendor_dialects={"other": lambda *_: ACME}) == [
        "each dialect has a scene: none is of other"
    ]
    assert checked(scene=replace(SCENE, dialect="none"))[0] == "one: the scheduler has no dialect 'none'"
