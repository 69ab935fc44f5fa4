"""What schedulers say of a pod. A request asks all pods that wait: each version of one is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.core.claims import Candidate, Cards, Claim, Dialect
from agent.core.text import shorten

#: Characters of what is wrong with a pod's annotations.
WORDS = 240
#: Answers that are remembered: of a node full of pods, in some dialects and for some resources.
REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class _Question:
    """What decides the answer beside the pod and the resource: two questions alike have one answer.

    All that a pod says is of its version; what is known of it beside that is here.
    """

    version: int
    annotations: int
    scheduler: str
    over: bool
    dialect: Dialect
    cards: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    question: _Question
    claims: Sequence[Claim] = ()
    #: Why there are none, where they make no sense.
    wrong: str = ""


class _Memory:
    """The last answer of each pod, resource and dialect; the one that was needed longest ago goes first."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str, str], _Answer] = {}

    def answer(self, pod: Candidate, resource: str, dialect: Dialect, cards: Cards) -> _Answer:
        its = (*cards.items(),)
        question = _Question(pod.version, len(pod.annotations), pod.scheduler, pod.over, dialect, its)
        key = (pod.uid, resource, dialect.name)
        known = self._answers.pop(key, None)
        if known is None or known.question != question or not pod.version:
            known = _read(question, pod, resource, cards)
        self._answers[key] = known
        if len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]
        return known


_memory = _Memory()


def claims(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], cards: Cards, wrong: list[str]
) -> Sequence[Claim]:
    """What the first dialect that speaks of the pod makes of it; none where none does.

    `wrong` gets a sentence for each dialect that can make no sense of it.
    """
    for dialect in dialects:
        answer = _memory.answer(pod, resource, dialect, cards)
        if answer.claims:
            return answer.claims
        if answer.wrong:
            wrong.append(f"{pod.namespace}/{pod.name}: {dialect.name}: {answer.wrong}")
    return ()


def _read(question: _Question, pod: Candidate, resource: str, cards: Cards) -> _Answer:
    try:
        found = [_fit(it, question.dialect.name) for it in question.dialect.claims(pod, resource, cards)]
    except Exception as exc:  # annotations are strangers' words, and dialects are contributors'
        return _Answer(question, wrong=shorten(str(exc) or repr(exc), WORDS))
    return _Answer(question, found)


def _fit(claim: Claim, dialect: str) -> Claim:
    """The claim with its dialect, fit to be written down; raises ValueError or what else a wrong one does."""
    texts = (claim.uid, claim.namespace, claim.pod, claim.container, claim.remark, *claim.devices)
    for text in (*texts, *claim.parameters.keys(), *claim.parameters.values()):
        text.encode()
    return replace(claim, dialect=dialect)
