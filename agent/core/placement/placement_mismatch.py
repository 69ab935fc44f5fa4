"""Placement mismatches: pods with other cards than their scheduler chose, or without a choice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent.core.attribution.answered_claims import astray_allocations
from agent.core.attribution.claim_reading import read_claims
from agent.core.attribution.dialects_of_resource import scheduler_dialects
from agent.core.attribution.external_use_rules import objection
from agent.core.attribution.scheduler_promises import Promises
from agent.core.event_notices import PlacementMismatch, PodRef
from agent.core.model import Allocation, Resource
from agent.scheduler_api.candidate import Candidate, PodContainer
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards
from agent.scheduler_api.scheduler import ContainerRequest, Scheduler
from agent.vendor_api.agent import Vendor
from agent.vendor_api.text import shorten

#: What a container gets without a choice of a scheduler, where its vendor has no other words.
UNCLAIMED = "gets what the kubelet chooses"
#: The same, where the limits of the pod say how much it gets.
UNCOUNTED = "gets that amount on any card with room, and no scheduler counts it"


class MismatchNotices:
    """The present placement mismatches. Annotations are read again only after a change that may matter."""

    def __init__(
        self, promises: Callable[[], Promises], started: Callable[[], frozenset[str]] = frozenset
    ) -> None:
        """`promises` returns the present promises, `started` allocations with a container that may run."""
        self._promises = promises
        self._started = started
        self._seen: tuple[Any, ...] = ()
        self._mismatches: tuple[PlacementMismatch, ...] = ()

    @property
    def mismatches(self) -> tuple[PlacementMismatch, ...]:
        """The present mismatches, at most one for each pod."""
        promises, started = self._promises(), self._started()
        scene = promises.scene
        seen = (
            scene.candidates,
            scene.plan,
            scene.snapshot,
            scene.vendors,
            scene.locked,
            promises.in_use,
            started,
        )
        if seen != self._seen:
            self._seen, self._mismatches = seen, placement_mismatches(promises, started)
        return self._mismatches

    def moved_pods(self) -> frozenset[str]:
        """The uids of the pods that have other cards than were chosen for them."""
        return frozenset(it.pod.uid for it in self.mismatches if it.moved)


def placement_mismatches(promises: Promises, started: Collection[str] = ()) -> tuple[PlacementMismatch, ...]:
    """At most one mismatch for each pod, with the reason and what the pod gets instead.

    Resources with placement `local` have none. `started`: ids of allocations with a running container. The
    hardware of other allocations is made on the chosen card when their container starts, where that is
    possible.
    """
    scene = promises.scene
    plan = {name: it for name, it in scene.plan.items() if it.rule.placement != "local"}
    names = dict.fromkeys(it.vendor for it in plan.values() if it.vendor in scene.vendors)
    vendors = {name: promises.cards(name) for name in names}
    idle = {it.id for it in promises.in_use}.difference(started)
    moving = {it.id for name in plan for it, _ in astray_allocations(promises, name, idle)}
    mismatches = []
    for pod in scene.candidates:
        if pod.over:
            continue
        if (pod.namespace, pod.name) in scene.locked:
            pod = replace(pod, scheduler="")  # as in pod attribution
        resources = [it for it in plan.values() if it.vendor in vendors]
        mismatch = next(_mismatches(promises, pod, resources, vendors, moving), None)
        if mismatch is None and (wrong := objection(scene.schedulers, pod, scene.plan, vendors)):
            why = f"{wrong.resource}: {wrong.why}; the cards that it uses count as free here"
            mismatch = PlacementMismatch(_ref(pod), why)
        if mismatch is not None:
            mismatches.append(mismatch)
    return tuple(mismatches)


def _ref(pod: Candidate) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


def _mismatches(
    promises: Promises,
    pod: Candidate,
    plan: Sequence[Resource],
    cards: Mapping[str, Cards],
    moving: Collection[str],
) -> Iterator[PlacementMismatch]:
    """`cards`: vendor to its cards.

    `moving`: ids of allocations that get their hardware on the chosen card when their container starts.
    """
    scene = promises.scene
    names = {name for it in pod.containers for name in it.limits}
    for planned in plan:
        if planned.name not in names:
            continue
        vendor = scene.vendors[planned.vendor]
        dialects = scheduler_dialects(scene.schedulers, vendor, planned)
        claims, wrong = read_claims(pod, planned.name, dialects, cards[vendor.name])
        allocations = promises.in_use.of_pod(planned.name, pod.uid)
        asking = [
            (container, asked)
            for container in pod.containers
            if container.limits.get(planned.name)
            and (asked := _request_of_container(scene.schedulers, container))
        ]
        if (
            not claims
            and (wrong or asking)
            and all(it.claim is None or _is_own(it, vendor) for it in allocations)
        ):
            why = wrong[0] if wrong else f"{_name_pod(pod)}: no scheduler wrote which cards it gets"
            yield PlacementMismatch(
                _ref(pod), f"{planned.name}: {why}; {_describe_outcome(planned, vendor, pod, asking)}"
            )
        for claim in claims:
            staying = [it for it in allocations if it.id not in moving]
            for why in _describe_other_cards(staying, claim, {card for it in claims for card in it.devices}):
                yield PlacementMismatch(_ref(pod), why, moved=True)


def _is_own(allocation: Allocation, vendor: Vendor) -> bool:
    """Whether the claim of the allocation comes from the pod's own limits."""
    limits = vendor.pod_limits
    return allocation.claim is not None and limits is not None and allocation.claim.dialect == limits.name


def _request_of_container(
    schedulers: Sequence[Scheduler], container: PodContainer
) -> ContainerRequest | None:
    """What the container asks the first scheduler for; None where it asks no scheduler for cards."""
    for scheduler in schedulers:
        with suppress(Exception):  # contributors' code
            if scheduler.asks is not None and (asked := scheduler.asks(container.limits)) is not None:
                return asked
    return None


def _describe_outcome(
    planned: Resource, vendor: Vendor, pod: Candidate, asking: Sequence[tuple[PodContainer, ContainerRequest]]
) -> str:
    """What a container asks a scheduler for, if it does, and what it gets without a choice."""
    containers = [it for it, _ in asking] or [it for it in pod.containers if it.limits.get(planned.name)]
    gets = _describe_without_claim(planned, vendor, containers[0].limits[planned.name])
    by_limits = vendor.pod_limits is not None and planned.rule.placement == "auto"
    if not asking:
        limited = "it gets the part of a card that its limits ask for; without such limits "
        return f"{limited if by_limits else ''}it {gets}"
    container, asked = asking[0]
    gets = UNCOUNTED if by_limits else gets
    of = "a card" if asked.cards == 1 else f"each of {asked.cards} cards"
    return f"container {shorten(container.name)} asks for {asked.each} of {of}, and {gets}"


def _describe_without_claim(planned: Resource, vendor: Vendor, count: int) -> str:
    """What a container gets that asks for `count` IDs and has no claim."""
    if planned.rule.placement == "claim":
        return "is refused"
    try:
        without_choice = vendor.offers.without_choice
        return without_choice(count) if without_choice else UNCLAIMED
    except Exception:  # contributors' code
        return UNCLAIMED


def _name_pod(pod: Candidate) -> str:
    return f"{shorten(pod.namespace)}/{shorten(pod.name)}"


def _describe_other_cards(
    allocations: Sequence[Allocation], claim: Claim, chosen: Collection[str]
) -> Iterator[str]:
    """A sentence for each allocation of the claim's container on cards that were not chosen for its pod."""
    for allocation in allocations:
        if (
            allocation.container_key == (claim.uid, claim.container)
            and claim.devices
            and not {*allocation.cards} <= {*chosen}
        ):
            yield f"{allocation.resource}: {differing_cards(claim, allocation.cards)}"


def differing_cards(claim: Claim, actual: Sequence[str]) -> str:
    """The sentence about a container that has other cards than its claim names."""
    has, chosen = map(_cards, (actual, claim.devices))
    return f"container {shorten(claim.container)} has {has}; the scheduler chose {chosen}"


def _cards(uuids: Sequence[str]) -> str:
    return f"{'card' if len(uuids) == 1 else 'cards'} {', '.join(map(shorten, uuids))}"
