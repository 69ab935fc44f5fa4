"""What schedulers say of a pod. A request asks all pods that wait: each version of one is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.scheduler_api import Candidate, Cards, Claim, Dialect
from agent.vendor_api.text import shorten

#: Characters of what is wrong with a pod's annotations.
WORDS = 240


@dataclass(frozen=True, slots=True)
class _Question:
    """What decides the answer beside the pod's own words and the resource."""

    dialect: Dialect
    cards: Mapping[str, int | None]
    #: What is known better than the pod says it.
    scheduler: str
    over: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    question: _Question
    claims: Sequence[Claim] = ()
    #: Why there are none, where they make no sense.
    wrong: str = ""


def claims(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], cards: Cards, wrong: list[str]
) -> Sequence[Claim]:
    """What the first dialect that speaks of the pod makes of it; none where none does.

    `wrong` gets a sentence for each dialect that can make no sense of it.
    """
    for dialect in dialects:
        answer = _answer(pod, resource, dialect, cards)
        if answer.claims:
            return answer.claims
        if answer.wrong:
            wrong.append(f"{pod.namespace}/{pod.name}: {dialect.name}: {answer.wrong}")
    return ()


def _answer(pod: Candidate, resource: str, dialect: Dialect, cards: Cards) -> _Answer:
    question, place = _Question(dialect, cards, pod.scheduler, pod.over), (resource, dialect.name)
    known: _Answer | None = pod.heard.get(place)
    if known is None or known.question != question:
        known = pod.heard[place] = _read(question, pod, resource, cards)
    return known


def _read(question: _Question, pod: Candidate, resource: str, cards: Cards) -> _Answer:
    try:
        said = question.dialect.claims(pod, resource, cards)
        found = [replace(writable(it), dialect=question.dialect.name) for it in said]
    except Exception as exc:  # annotations are strangers' words, and dialects are contributors'
        return _Answer(question, wrong=shorten(str(exc) or repr(exc), WORDS))
    return _Answer(question, found)


def writable(claim: Claim) -> Claim:
    """The claim, fit to be written down; raises ValueError or what else a wrong one does."""
    texts = (claim.uid, claim.namespace, claim.pod, claim.container, claim.remark, claim.dialect)
    for text in (*texts, *claim.devices, *claim.parameters.keys(), *claim.parameters.values()):
        text.encode()
    return claim
