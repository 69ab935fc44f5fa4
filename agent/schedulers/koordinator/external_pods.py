"""Cards that a scheduler gave to pods that ask no device plugin: nobody asks us for what they use."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from agent.core.model import Allocation, AllocationState, Owner, Source
from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, Grant, allocated
from agent.schedulers.koordinator.dialect import KOORDINATOR, share, uuid_of
from agent.schedulers.koordinator.pod_request import asked, asks_koordinator, believed, most_cards
from agent.schedulers.koordinator.resource_names import GPU

#: What such an allocation is of, in the ledger.
RESOURCE = GPU


@dataclass(frozen=True, slots=True)
class Released:
    """An allocation whose pod is over."""

    allocation: str
    reason: str


def external(
    pods: Iterable[Candidate], served: Collection[str], vendors: Mapping[str, Cards], now: float
) -> list[Allocation]:
    """One allocation for each pod that asks only for `koordinator.sh/*` and was given cards.

    `served`: the resources that device plugins have here. `vendors`: the cards of those where schedulers
    choose the card.
    A pod that is being deleted still has them; what makes no sense is as if it were not there, and so is a
    card that nobody knows here.
    """
    found = []
    for pod in pods:
        if pod.ended or not _asks_koordinator_alone(pod, served):
            continue
        for vendor, cards in vendors.items():
            with suppress(ValueError):
                if (claim := _claim(pod, cards)) is not None:
                    found.append(_allocation(vendor, pod, claim, now))
    return found


def objection(pod: Candidate, served: Collection[str], vendors: Mapping[str, Cards]) -> str:
    """Why such a pod uses no card here, though a scheduler wrote some; empty where that is not so."""
    wrong = []
    for cards in vendors.values() if _asks_koordinator_alone(pod, served) else ():
        try:
            if _claim(pod, cards) is not None:
                return ""
        except ValueError as exc:
            wrong.append(str(exc))
    return wrong[0] if wrong else ""


def changes(
    known: Iterable[Allocation], found: Iterable[Allocation], pods: Collection[Candidate], *, heard: bool
) -> tuple[list[Allocation], list[Released]]:
    """What of `found` is new or other than in the ledger, and what of the ledger is over.

    Over is what a pod had that is gone or has ended, and nothing else: it runs on its cards, whatever becomes
    of them, of its annotation or of what is heeded here.
    `heard`: whether the pods are known at all; else nobody is missing.
    """
    before = {it.id: it for it in known if it.source is Source.ANNOTATION}
    news = [it for it in found if it.id not in before or _is_more(before[it.id], it)]
    there = {it.uid for it in pods if not it.ended}
    gone = [name for name, it in before.items() if it.owner is None or it.owner.uid not in there]
    return news, [Released(name, "its pod is gone") for name in gone] if heard else []


def _is_more(before: Allocation, after: Allocation) -> bool:
    """Whether it is another one, not only without cards that are away now."""
    return before.claim != after.claim and not set(after.devices) < set(before.devices)


def _asks_koordinator_alone(pod: Candidate, served: Collection[str]) -> bool:
    names = {name for it in pod.containers for name in it.limits}
    return names.isdisjoint(served) and asks_koordinator(pod)


def _allocation(vendor: str, pod: Candidate, claim: Claim, now: float) -> Allocation:
    name = f"annotation-{hashlib.sha256(f'{vendor}/{pod.uid}'.encode()).hexdigest()[:16]}"
    owner = Owner(pod.uid, "", pod.namespace, pod.name)
    done, said = AllocationState.DONE, Source.ANNOTATION
    return Allocation(name, RESOURCE, vendor, (), claim.devices, done, now, said, owner=owner, claim=claim)


def _claim(pod: Candidate, cards: Cards) -> Claim | None:
    """What the pod was given of these cards, all its containers together.

    More than it asks for is no less in use.

    Raises:
        ValueError: The annotation makes no sense, or names no card that is among these.
    """
    text = pod.annotations.get(ALLOCATED)
    if text is None or not (grants := allocated(text)):
        return None
    if pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{ALLOCATED} is not believed of a pod of {DEFAULT_SCHEDULER}")
    if len(grants) > (most := most_cards(pod)):
        raise ValueError(f"{ALLOCATED} names {len(grants)} cards, its containers ask for {most}")
    here = {uuid: it for it in grants if (uuid := _here(it, cards))}
    if not here:
        uuid_of(grants[0], cards)
    return Claim(
        pod.uid,
        pod.namespace,
        pod.name,
        "",
        tuple(here),
        share(_in_asked(pod, grants)),
        dialect=KOORDINATOR.name,
    )


def _here(grant: Grant, cards: Cards) -> str:
    """The card that is meant; empty where it is not among these."""
    try:
        return uuid_of(grant, cards)
    except ValueError:
        return ""


def _in_asked(pod: Candidate, grants: Sequence[Grant]) -> Sequence[Grant]:
    """In the amounts that were asked for; as they stand there where they do not fit."""
    try:
        return believed(asked(pod), grants, ALLOCATED)
    except ValueError:
        return grants
