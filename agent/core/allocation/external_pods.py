"""Cards that a scheduler gave to pods that ask no device plugin: nobody asks us for what they use. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from agent.core.allocation.remembered_claims import writable
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.scheduler_api import Candidate, Cards, Claim, ExternalUse, Scheduler


@dataclass(frozen=True, slots=True)
class ReleasedPod:
    """An allocation whose pod is over."""

    allocation: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExternalUseRefused:
    """Why a pod uses no card here, though a scheduler wrote some. `resource`: what they would count as."""

    resource: str
    why: str


def external(
    schedulers: Sequence[Scheduler],
    pods: Iterable[Candidate],
    served: Collection[str],
    vendors: Mapping[str, Cards],
    now: float,
) -> list[Allocation]:
    """One allocation for each pod that asks no device plugin, and was given cards of a vendor.

    `served`: the resources that device plugins have here. `vendors`: the cards of those where schedulers
    choose the card.
    A pod that is being deleted still has them; what makes no sense is as if it were not there, and so is a
    card that nobody knows here.
    """
    uses = _uses(schedulers)
    found: list[Allocation] = []
    for pod in pods:
        if pod.ended or _asks_a_plugin(pod, served):
            continue
        for vendor, cards in vendors.items():
            its = (_allocation(vendor, pod, use, cards, now) for use in uses)
            found += [it for it in its if it is not None][:1]
    return found


def objection(
    schedulers: Sequence[Scheduler], pod: Candidate, served: Collection[str], vendors: Mapping[str, Cards]
) -> ExternalUseRefused | None:
    """Why such a pod uses no card here, though a scheduler wrote some; None where that is not so."""
    wrong: list[ExternalUseRefused] = []
    uses = () if _asks_a_plugin(pod, served) else _uses(schedulers)
    for use in uses:
        for cards in vendors.values():
            try:
                if use.claim(pod, cards) is not None:
                    return None
            except Exception as exc:  # annotations are strangers' words, and schedulers are contributors'
                wrong.append(ExternalUseRefused(use.resource, str(exc) or repr(exc)))
    return wrong[0] if wrong else None


def changes(
    known: Iterable[Allocation], found: Iterable[Allocation], pods: Collection[Candidate], *, heard: bool
) -> tuple[list[Allocation], list[ReleasedPod]]:
    """What of `found` is new or other than in the ledger, and what of the ledger is over.

    Over is what a pod had that is gone or has ended, and nothing else: it runs on its cards, whatever becomes
    of them, of its annotation or of what is heeded here.
    `heard`: whether the pods are known at all; else nobody is missing.
    """
    before = {it.id: it for it in known if it.source is AllocationSource.ANNOTATION}
    news = [it for it in found if it.id not in before or _is_more(before[it.id], it)]
    there = {it.uid for it in pods if not it.ended}
    gone = [name for name, it in before.items() if it.owner is None or it.owner.uid not in there]
    return news, [ReleasedPod(name, "its pod is gone") for name in gone] if heard else []


def _is_more(before: Allocation, after: Allocation) -> bool:
    """Whether it is another one, not only without cards that are away now."""
    return before.claim != after.claim and not set(after.devices) < set(before.devices)


def _uses(schedulers: Iterable[Scheduler]) -> list[ExternalUse]:
    return [it.external for it in schedulers if it.external is not None]


def _asks_a_plugin(pod: Candidate, served: Collection[str]) -> bool:
    return any(name in served for it in pod.containers for name in it.limits)


def _allocation(vendor: str, pod: Candidate, use: ExternalUse, cards: Cards, now: float) -> Allocation | None:
    claim: Claim | None = None
    with suppress(Exception):  # annotations are strangers' words, and schedulers are contributors'
        found = use.claim(pod, cards)
        claim = writable(found) if found is not None else None
    if claim is None:
        return None
    name = f"annotation-{hashlib.sha256(f'{vendor}/{pod.uid}'.encode()).hexdigest()[:16]}"
    owner = Owner(pod.uid, "", pod.namespace, pod.name)
    done, said, cards_had = AllocationState.DONE, AllocationSource.ANNOTATION, claim.devices
    return Allocation(name, use.resource, vendor, (), cards_had, done, now, said, owner=owner, claim=claim)
