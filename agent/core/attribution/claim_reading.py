"""Reads the claims in a pod's annotations, once for each version of the pod. Pure.

Each request looks at all waiting pods, so the claims that were read are kept on the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from agent.core.allocation.container_allocations import container_of
from agent.core.allocation.known_pods import KnownPods
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards, Dialect
from agent.vendor_api.text import shorten

#: The most characters of a sentence on what is wrong with annotations.
MAX_SENTENCE = 240


class _Question(Struct, frozen=True):
    """What an answer depends on besides its key: the cards of the node, and the dialect of this name."""

    dialect: Dialect
    cards: Mapping[str, int | None]


class _Answer(Struct, frozen=True):
    question: _Question
    claims: Sequence[Claim] = ()
    #: Why there are no claims, where the annotations cannot be read.
    wrong: str = ""


def claims(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], cards: Cards, wrong: list[str]
) -> Sequence[Claim]:
    """The claims of the pod in the first dialect that has any; none where no dialect has.

    A sentence is added to `wrong` for each dialect that cannot read the annotations.
    """
    for dialect in dialects:
        answer = _remembered_answer(pod, resource, dialect, cards)
        if answer.claims:
            return answer.claims
        if answer.wrong:
            wrong.append(f"{pod.namespace}/{pod.name}: {dialect.name}: {answer.wrong}")
    return ()


def _remembered_answer(pod: Candidate, resource: str, dialect: Dialect, cards: Cards) -> _Answer:
    # Where a lock contradicts the scheduler of the pod, a copy of the pod without that scheduler is read as
    # well. Pod and copy share `claims_cache`; each has an answer of its own there.
    key = (resource, dialect.name, pod.scheduler, pod.over)
    question, known = _Question(dialect, cards), pod.claims_cache.get(key)
    if known is None or known.question != question:
        known = pod.claims_cache[key] = _read_claims(question, pod, resource, cards)
    answer: _Answer = known
    return answer


def _read_claims(question: _Question, pod: Candidate, resource: str, cards: Cards) -> _Answer:
    try:
        read = question.dialect.claims(pod, resource, cards)
        claims = [replace(writable(it), dialect=question.dialect.name) for it in read]
    except Exception as exc:  # anyone can write annotations, and contributors write dialects
        return _Answer(question, wrong=shorten(str(exc) or repr(exc), MAX_SENTENCE))
    return _Answer(question, claims)


def writable(claim: Claim) -> Claim:
    """The claim, if it can be written as UTF-8. Raises ValueError, or what a value of another type raises."""
    texts = (claim.uid, claim.namespace, claim.pod, claim.container, claim.remark, claim.dialect)
    for text in (*texts, *claim.devices, *claim.parameters.keys(), *claim.parameters.values()):
        text.encode()
    return claim


def read_claims(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], devices: Cards
) -> tuple[Sequence[Claim], Sequence[str]]:
    """The claims of a pod; without claims, a sentence for each thing that is wrong in its annotations."""
    wrong: list[str] = []
    found = claims(pod, resource, dialects, devices, wrong)
    return (found, ()) if found else ((), tuple(wrong))


def any_claims(pods: KnownPods, resource: str, dialects: Sequence[Dialect], cards: Cards) -> bool:
    """Whether any pod that is not over has a claim on the resource. Only pods that have changed are read."""

    def has_claims(pod: Candidate) -> bool:
        return not pod.over and bool(claims(pod, resource, dialects, cards, []))

    return bool(pods.uids_with(("claims", resource), (tuple(dialects), cards), has_claims))


def promised_claim(
    resource: str, pod: Candidate, container: str, dialects: Sequence[Dialect], devices: Cards
) -> Claim | None:
    """The claim of this container, as its pod says now."""
    found = () if pod.over else claims(pod, resource, dialects, devices, [])
    return next((it for it in found if container_of(it) == (pod.uid, container)), None)
