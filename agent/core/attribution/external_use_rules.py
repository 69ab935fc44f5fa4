"""External use: cards that a scheduler gave to pods by annotations, without an Allocate. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from agent.core.allocation.known_pods import KnownPods
from agent.core.attribution.claim_reading import writable
from agent.core.model import Allocation, AllocationSource, AllocationState, Owner
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards
from agent.scheduler_api.scheduler import ExternalUse, Scheduler


class ReleasedPod(Struct, frozen=True):
    """An allocation that is over, since its pod has ended."""

    allocation: str
    reason: str


class ExternalUseRefused(Struct, frozen=True):
    """Why the cards that a scheduler wrote on a pod do not count. `resource`: as what they would count."""

    resource: str
    why: str


def external_allocations(
    schedulers: Sequence[Scheduler],
    pods: KnownPods,
    served: Collection[str],
    vendors: Mapping[str, Cards],
    now: float,
) -> list[Allocation]:
    """One allocation for each pod that asks no device plugin and got cards of a vendor from its scheduler.

    `served`: the resources that device plugins serve here. `vendors`: vendor to its cards, for vendors where
    schedulers choose cards. A pod that is being deleted still has its cards. Annotations that cannot be read
    and cards that are not known do not count.
    """
    uses, names = _uses(schedulers), frozenset(served)

    def may_have_cards(pod: Candidate) -> bool:
        return bool(pod.annotations) and not pod.ended and not _asks_a_plugin(pod, names)

    external: list[Allocation] = []
    for pod in pods.of_uids(pods.uids_with(("external use",), names, may_have_cards)):
        for vendor, cards in vendors.items():
            allocations = (_allocation(vendor, pod, use, cards, now) for use in uses)
            external += [it for it in allocations if it is not None][:1]
    return external


def objection(
    schedulers: Sequence[Scheduler], pod: Candidate, served: Collection[str], vendors: Mapping[str, Cards]
) -> ExternalUseRefused | None:
    """Why the cards that a scheduler wrote on a pod do not count; None where they count or there are none."""
    wrong: list[ExternalUseRefused] = []
    uses = () if _asks_a_plugin(pod, served) else _uses(schedulers)
    for use in uses:
        for cards in vendors.values():
            try:
                if use.claim(pod, cards) is not None:
                    return None
            except Exception as exc:  # anyone can write annotations, and contributors write schedulers
                wrong.append(ExternalUseRefused(use.resource, str(exc) or repr(exc)))
    return wrong[0] if wrong else None


def external_changes(
    known: Iterable[Allocation],
    annotated: Iterable[Allocation],
    pods: KnownPods,
    *,
    pods_known: bool,
) -> tuple[list[Allocation], list[ReleasedPod]]:
    """The changes of the ledger: allocations to record, and allocations that are over.

    `annotated`: the allocations that pods' annotations name. An allocation is over when its pod has ended or
    is gone, and not before: a pod runs on its cards even if its annotation or the config changes.
    `pods_known`: whether the pods are known at all; otherwise no pod counts as gone.
    """
    before = {it.id: it for it in known}
    changed = [it for it in annotated if it.id not in before or _has_changed(before[it.id], it)]
    gone = [name for name, it in before.items() if it.owner is None or it.owner.uid not in pods.alive]
    return changed, [ReleasedPod(name, "its pod is gone") for name in gone] if pods_known else []


def _has_changed(before: Allocation, after: Allocation) -> bool:
    """Whether the claim has changed. A claim that only lacks cards that are away now has not."""
    return before.claim != after.claim and not set(after.devices) < set(before.devices)


def _uses(schedulers: Iterable[Scheduler]) -> list[ExternalUse]:
    return [it.external for it in schedulers if it.external is not None]


def _asks_a_plugin(pod: Candidate, served: Collection[str]) -> bool:
    return any(name in served for it in pod.containers for name in it.limits)


def _allocation(vendor: str, pod: Candidate, use: ExternalUse, cards: Cards, now: float) -> Allocation | None:
    claim: Claim | None = None
    with suppress(Exception):  # anyone can write annotations, and contributors write schedulers
        written = use.claim(pod, cards)
        claim = writable(written) if written is not None else None
    if claim is None:
        return None
    name = f"annotation-{hashlib.sha256(f'{vendor}/{pod.uid}'.encode()).hexdigest()[:16]}"
    owner = Owner(pod.uid, "", pod.namespace, pod.name)
    return Allocation(
        name,
        use.resource,
        vendor,
        ids=(),
        devices=claim.devices,
        state=AllocationState.DONE,
        since=now,
        source=AllocationSource.ANNOTATION,
        owner=owner,
        claim=claim,
    )
