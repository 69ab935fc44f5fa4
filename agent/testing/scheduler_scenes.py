"""Holds a scheduler's dialects to the contract: recorded pods in, claims and receipts out.

A scene is a JSON object. `pod` is a pod as the API server shows it, as the scheduler wrote it; `cards` maps
the uuids of a node's cards to their minors. `claims` is what follows: a list of objects with `container`,
`devices` and `parameters`. Or `refused` is part of the reason why nothing does. `given` is what containers
got then, a list of objects with the fields of `ServedClaim`; `receipt` is what the pod is told for its
scheduler.
`terms` are the vendor's, for a dialect that vendors name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.cluster.pods import candidate
from agent.core.publishing.receipt_rules import wrong_key
from agent.scheduler_api import Candidate, Claim, Dialect, Part, Scheduler, ServedClaim, reads
from agent.testing.conformance import Finding

#: What an annotation may be turned into by anybody who may write to the pod.
HOSTILE = (
    "",
    " ",
    "{",
    "[]",
    "{}",
    "null",
    "0",
    "-1",
    "1e999",
    '{"a": 1, "a": 2}',
    "[" * 5000,
    "\ud800",
    "x" * 70_000,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A recorded pod, and what must follow from it."""

    name: str
    dialect: str
    resource: str
    pod: Mapping[str, Any]
    cards: Mapping[str, int | None]
    claims: tuple[Claim, ...] = ()
    refused: str = ""
    given: tuple[ServedClaim, ...] = ()
    receipt: Mapping[str, str] | None = None
    terms: Mapping[str, str] = field(default_factory=dict)


def scenes(path: Path) -> tuple[Scene, ...]:
    """The scenes of a JSON file: a list of the objects above."""
    return tuple(map(_scene, json.loads(path.read_text())))


def check_scheduler(
    scheduler: Scheduler, recorded: Sequence[Scene], others: Sequence[Scheduler] = ()
) -> Iterator[Finding]:
    """Hold the scheduler to each scene. `others`: schedulers that are heard before this one."""
    for scene in recorded:
        dialect = _dialect(scheduler, scene, others)
        if dialect is None:
            yield Finding(scene.name, False, f"the scheduler has no dialect {scene.dialect!r}")
            continue
        for rule, check in _CHECKS.items():
            yield _judged(f"{scene.name}: {rule}", check, _Case(scheduler, dialect, scene))
    untried = {it.name for it in scheduler.dialects} | scheduler.vendor_dialects.keys()
    if untried := untried - {it.dialect for it in recorded}:
        yield Finding("each dialect has a scene", False, f"none is of {', '.join(sorted(untried))}")


@dataclass(frozen=True, slots=True)
class _Case:
    scheduler: Scheduler
    dialect: Dialect
    scene: Scene

    @property
    def pod(self) -> Candidate:
        """The pod as the agent keeps it: with the annotations that scheduler and dialect read."""
        found = candidate(self.scene.pod, reads((self.scheduler,), (self.dialect,)))
        assert found is not None, "the pod has no uid or no name"
        return found

    def claims(self, pod: Candidate) -> Sequence[Claim]:
        return tuple(self.dialect.claims(pod, self.scene.resource, self.scene.cards))


def _claims_are_as_recorded(case: _Case) -> None:
    scene, answer = case.scene, _answer(case, case.pod)
    if scene.refused or isinstance(answer, str):
        refused = answer if isinstance(answer, str) else ""
        assert scene.refused, f"refused: {refused}"
        assert scene.refused in refused, f"refused with {refused!r}" if refused else f"claimed {answer}"
        return
    said = [(it.container, it.devices, dict(it.parameters)) for it in answer]
    wanted = [(it.container, it.devices, dict(it.parameters)) for it in scene.claims]
    assert said == wanted, f"claimed {said}"


def _the_same_is_said_twice(case: _Case) -> None:
    assert _answer(case, case.pod) == _answer(case, case.pod), "the second answer differs"


def _claims_are_of_this_pod_and_of_these_cards(case: _Case) -> None:
    pod = case.pod
    for it in () if case.scene.refused else case.claims(pod):
        assert (it.uid, it.namespace, it.pod) == (pod.uid, pod.namespace, pod.name), (
            f"{it.pod} is claimed for"
        )
        assert it.container in {one.name for one in pod.containers}, (
            f"the pod has no container {it.container!r}"
        )
        assert set(it.devices) <= case.scene.cards.keys(), f"{it.devices} are not all here"
        assert all(isinstance(one, str) for pair in it.parameters.items() for one in pair), (
            "parameters are no texts"
        )


def _nonsense_is_refused(case: _Case) -> None:
    for key in case.pod.annotations:
        for text in HOSTILE:
            _answer(case, replace(case.pod, annotations={**case.pod.annotations, key: text}))
        others = {other: it for other, it in case.pod.annotations.items() if other != key}
        _answer(case, replace(case.pod, annotations=others))


def _a_measure_takes_any_parameters(case: _Case) -> None:
    if case.dialect.measure is None:
        return
    said = [dict(it.parameters) for it in case.scene.claims]
    for parameters in (*said, {}, {"core": "x", "memory": "-1", "": ""}):
        for memory in (0, 1, 1 << 36):
            part = case.dialect.measure(parameters, memory)
            assert part is None or isinstance(part, Part), f"{part!r} is no Part"


def _the_receipt_is_as_recorded(case: _Case) -> None:
    scene, receipt, pod = case.scene, case.dialect.receipt, case.pod
    if scene.receipt is None:
        return
    assert receipt is not None, "the dialect writes none"
    made = dict(receipt(pod, scene.given))
    assert made == dict(scene.receipt), f"it is {made}"
    assert made.keys() <= set(case.dialect.receipt_keys), "a key is not among receipt_keys"
    assert [why for key in made if (why := wrong_key(key))] == [], "a key cannot be written"
    bearing = replace(pod, annotations={**pod.annotations, **made})
    again = dict(receipt(bearing, scene.given))
    assert {key: it for key, it in again.items() if bearing.annotations.get(key) != it} == {}, (
        "it asks for more"
    )


_CHECKS: Mapping[str, Callable[[_Case], None]] = {
    "claims are as recorded": _claims_are_as_recorded,
    "the same is said twice": _the_same_is_said_twice,
    "claims are of this pod and of these cards": _claims_are_of_this_pod_and_of_these_cards,
    "an annotation that makes no sense is refused": _nonsense_is_refused,
    "a measure takes any parameters": _a_measure_takes_any_parameters,
    "the receipt is as recorded": _the_receipt_is_as_recorded,
}


def _answer(case: _Case, pod: Candidate) -> Sequence[Claim] | str:
    """The claims, or why there are none; another error than ValueError is the dialect's fault."""
    try:
        return case.claims(pod)
    except ValueError as exc:
        return str(exc)


def _judged(name: str, check: Callable[[_Case], None], case: _Case) -> Finding:
    try:
        check(case)
    except AssertionError as exc:
        return Finding(name, False, str(exc))
    except Exception as exc:  # contributors' code
        return Finding(name, False, f"{type(exc).__name__}: {exc}")
    return Finding(name, True, "")


def _dialect(scheduler: Scheduler, scene: Scene, others: Sequence[Scheduler]) -> Dialect | None:
    make = scheduler.vendor_dialects.get(scene.dialect)
    if make is not None:
        return make(scene.terms, (*others, scheduler))
    return next((it for it in scheduler.dialects if it.name == scene.dialect), None)


def _scene(said: Mapping[str, Any]) -> Scene:
    metadata = said["pod"]["metadata"]
    place = (metadata["uid"], metadata["namespace"], metadata["name"])
    claims = (
        Claim(*place, it["container"], tuple(it.get("devices", ())), it.get("parameters", {}))
        for it in said.get("claims", ())
    )
    given = (
        ServedClaim(
            it["container"],
            it["resource"],
            it["count"],
            tuple(it["devices"]),
            tuple(it.get("partitions", ())),
        )
        for it in said.get("given", ())
    )
    return Scene(
        said["name"],
        said["dialect"],
        said["resource"],
        said["pod"],
        said["cards"],
        tuple(claims),
        said.get("refused", ""),
        tuple(given),
        said.get("receipt"),
        said.get("terms", {}),
    )
