"""Conformance checks of a scheduler's dialects: recorded pods in, claims and receipts out.

A scene is a JSON object with these keys:

- `pod`: a pod as the API server shows it, with the scheduler's annotations.
- `cards`: card uuid to minor number, for all cards of the node.
- `claims`: the expected claims, a list of objects with `container`, `devices` and `parameters`.
- `refused`: instead of `claims`, a part of the expected reason why the annotations are no claims.
- `given`: what the containers got, a list of objects with the fields of `ServedClaim`.
- `receipt`: the expected annotations of the receipt.
- `terms`: the vendor's terms, for a dialect that vendors name.
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

#: Values that anyone with the right to write the pod can give an annotation.
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
class RecordedScene:
    """A recorded pod with the expected claims and receipt."""

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


def scenes(path: Path) -> tuple[RecordedScene, ...]:
    """The scenes of a JSON file: a list of the objects above."""
    return tuple(map(_scene, json.loads(path.read_text())))


def check_scheduler(
    scheduler: Scheduler, recorded: Sequence[RecordedScene], others: Sequence[Scheduler] = ()
) -> Iterator[Finding]:
    """Check the scheduler against each scene. `others`: schedulers with claims that come before its own."""
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
    scene: RecordedScene

    @property
    def pod(self) -> Candidate:
        """The pod as the agent keeps it, with only the annotations that scheduler and dialect read."""
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
    claimed = [(it.container, it.devices, dict(it.parameters)) for it in answer]
    wanted = [(it.container, it.devices, dict(it.parameters)) for it in scene.claims]
    assert claimed == wanted, f"claimed {claimed}"


def _the_same_is_said_twice(case: _Case) -> None:
    assert _answer(case, case.pod) == _answer(case, case.pod), "the second answer differs"


def _claims_are_of_this_pod_and_of_these_cards(case: _Case) -> None:
    pod = case.pod
    for claim in () if case.scene.refused else case.claims(pod):
        assert (claim.uid, claim.namespace, claim.pod) == (pod.uid, pod.namespace, pod.name), (
            f"{claim.pod} is claimed for"
        )
        assert claim.container in {one.name for one in pod.containers}, (
            f"the pod has no container {claim.container!r}"
        )
        assert set(claim.devices) <= case.scene.cards.keys(), f"{claim.devices} are not all here"
        assert all(isinstance(one, str) for pair in claim.parameters.items() for one in pair), (
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
    recorded = [dict(it.parameters) for it in case.scene.claims]
    for parameters in (*recorded, {}, {"core": "x", "memory": "-1", "": ""}):
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
    """The claims, or the text of a ValueError. Any other error is a fault of the dialect and propagates."""
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


def _dialect(scheduler: Scheduler, scene: RecordedScene, others: Sequence[Scheduler]) -> Dialect | None:
    make = scheduler.vendor_dialects.get(scene.dialect)
    if make is not None:
        return make(scene.terms, (*others, scheduler))
    return next((it for it in scheduler.dialects if it.name == scene.dialect), None)


def _scene(document: Mapping[str, Any]) -> RecordedScene:
    metadata = document["pod"]["metadata"]
    place = (metadata["uid"], metadata["namespace"], metadata["name"])
    claims = (
        Claim(
            *place, recorded["container"], tuple(recorded.get("devices", ())), recorded.get("parameters", {})
        )
        for recorded in document.get("claims", ())
    )
    given = (
        ServedClaim(
            recorded["container"],
            recorded["resource"],
            recorded["count"],
            tuple(recorded["devices"]),
            tuple(recorded.get("partitions", ())),
        )
        for recorded in document.get("given", ())
    )
    return RecordedScene(
        **{key: document[key] for key in ("name", "dialect", "resource", "pod", "cards")},
        claims=tuple(claims),
        refused=document.get("refused", ""),
        given=tuple(given),
        receipt=document.get("receipt"),
        terms=document.get("terms", {}),
    )
