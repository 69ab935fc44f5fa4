"""Cards that a scheduler gave to pods that ask no device plugin: nobody asks us for what they use."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.core.claims import Candidate, Cards, Claim
from agent.core.koordinator.allocated import ALLOCATED, PREFIX, allocated, split
from agent.core.koordinator.dialect import KOORDINATOR, OTHER, share, uuid_of
from agent.core.model import Allocation, AllocationState, Owner, Source

#: What such an allocation is of, in the ledger.
RESOURCE = f"{PREFIX}gpu"


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
    A pod that is being deleted still has them; what makes no sense is as if it were not there.
    """
    found = []
    for pod in pods:
        if pod.ended or not _asks_koordinator_alone(pod, served):
            continue
        for vendor, cards in vendors.items():
            if (claim := _claim(pod, cards)) is not None:
                found.append(_allocation(vendor, pod, claim, now))
    return found


def changes(
    known: Iterable[Allocation], found: Iterable[Allocation], *, heard: bool
) -> tuple[list[Allocation], list[Released]]:
    """What of `found` is new or other than in the ledger, and what of the ledger is over.

    `heard`: whether the pods are known at all; else nobody is missing.
    """
    before = {it.id: it for it in known if it.source is Source.ANNOTATION}
    now = {it.id: it for it in found}
    news = [it for it in now.values() if it.id not in before or before[it.id].claim != it.claim]
    gone = [Released(name, "its pod is gone") for name in before if name not in now] if heard else []
    return news, gone


def _asks_koordinator_alone(pod: Candidate, served: Collection[str]) -> bool:
    names = {name for it in pod.containers for name in it.limits}
    return names.isdisjoint(served) and any(name.startswith(PREFIX) for name in names)


def _allocation(vendor: str, pod: Candidate, claim: Claim, now: float) -> Allocation:
    name = f"annotation-{hashlib.sha256(f'{vendor}/{pod.uid}'.encode()).hexdigest()[:16]}"
    owner = Owner(pod.uid, "", pod.namespace, pod.name)
    done, said = AllocationState.DONE, Source.ANNOTATION
    return Allocation(name, RESOURCE, vendor, (), claim.devices, done, now, said, owner=owner, claim=claim)


def _claim(pod: Candidate, cards: Cards) -> Claim | None:
    """What the pod was given of these cards, all its containers together."""
    text = pod.annotations.get(ALLOCATED)
    if text is None or pod.scheduler == OTHER:
        return None
    try:
        grants = allocated(text)
        uuids = tuple(uuid_of(it, cards) for it in grants)
    except ValueError:
        return None
    if not 0 < len(uuids) <= split(pod)[1]:
        return None
    return Claim(pod.uid, pod.namespace, pod.name, "", uuids, share(grants), dialect=KOORDINATOR.name)
