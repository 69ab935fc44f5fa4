"""Pods that have or get other cards than a scheduler chose, or than it was to choose, and are told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent.core.allocation.answered_claims import astray_allocations
from agent.core.allocation.external_pods import objection
from agent.core.allocation.heard_dialects import scheduler_dialects
from agent.core.allocation.pod_attribution import heard
from agent.core.allocation.scheduler_promises import Promises
from agent.core.model import Allocation, Resource
from agent.core.notices import PlacementMismatch, PodRef
from agent.scheduler_api import Candidate, Claim, ContainerRequest, PodContainer, Scheduler
from agent.vendor_api.agent import Vendor
from agent.vendor_api.text import shorten

#: What becomes of a container of which no scheduler speaks, where its vendor says nothing else.
UNCLAIMED = "gets what the kubelet chooses"
#: The same, where its own limits are heeded.
AS_MUCH = "gets as much of a card that has it left, which no scheduler counts"


class MismatchNotices:
    """Looks for them anew only where what decides it has changed: many annotations take long to read."""

    def __init__(
        self, promises: Callable[[], Promises], started: Callable[[], frozenset[str]] = frozenset
    ) -> None:
        """`started`: the allocations whose containers may run."""
        self._promises = promises
        self._started = started
        self._seen: tuple[Any, ...] = ()
        self._found: tuple[PlacementMismatch, ...] = ()

    @property
    def found(self) -> tuple[PlacementMismatch, ...]:
        promises, started = self._promises(), self._started()
        it = promises.scene
        seen = (it.candidates, it.plan, it.snapshot, it.vendors, it.locked, promises.in_use, started)
        if seen != self._seen:
            self._seen, self._found = seen, unheeded(promises, started)
        return self._found

    def moved(self) -> frozenset[str]:
        """The uids of the pods that have other cards than were chosen for them."""
        return frozenset(it.pod.uid for it in self.found if it.moved)


def unheeded(promises: Promises, started: Collection[str] = ()) -> tuple[PlacementMismatch, ...]:
    """Each with why, and what it gets instead; pods of a placement `local` are never heeded.

    `started`: allocations whose containers may run. What others have is made on the chosen card as they
    start, where that can be.
    """
    scene = promises.scene
    plan = {name: it for name, it in scene.plan.items() if it.rule.placement != "local"}
    names = dict.fromkeys(it.vendor for it in plan.values() if it.vendor in scene.vendors)
    vendors = {name: promises.cards(name) for name in names}
    idle = {it.id for it in promises.in_use}.difference(started)
    home = {it.id for name in plan for it, _ in astray_allocations(promises, name, idle)}
    found = []
    for pod in scene.candidates:
        if pod.over:
            continue
        if (pod.namespace, pod.name) in scene.locked:
            pod = replace(pod, scheduler="")  # as who asks for devices is judged
        its = [it for it in plan.values() if it.vendor in vendors]
        one = next(_unheeded(promises, pod, its, home), None)
        if one is None and (wrong := objection(scene.schedulers, pod, scene.plan, vendors)):
            why = f"{wrong.resource}: {wrong.why}; the cards that it uses count as free here"
            one = PlacementMismatch(_ref(pod), why)
        if one is not None:
            found.append(one)
    return tuple(found)


def _ref(pod: Candidate) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


def _unheeded(
    promises: Promises, pod: Candidate, plan: Sequence[Resource], home: Collection[str]
) -> Iterator[PlacementMismatch]:
    """`home`: allocations that are brought to their chosen cards as their containers start."""
    scene = promises.scene
    names = {name for it in pod.containers for name in it.limits}
    for planned in plan:
        if planned.name not in names:
            continue
        vendor = scene.vendors[planned.vendor]
        cards = promises.cards(vendor.name)
        dialects = scheduler_dialects(scene.schedulers, vendor, planned)
        claims, wrong = heard(pod, planned.name, dialects, cards)
        mine = [it for it in promises.in_use if it.resource == planned.name and _is_of(it, pod)]
        asking = [
            (it, asked)
            for it in pod.containers
            if it.limits.get(planned.name) and (asked := _asked(scene.schedulers, it))
        ]
        if not claims and (wrong or asking) and all(it.claim is None or _is_own(it, vendor) for it in mine):
            why = wrong[0] if wrong else f"{_name(pod)}: no scheduler wrote which cards it gets"
            yield PlacementMismatch(
                _ref(pod), f"{planned.name}: {why}; {_instead(planned, vendor, pod, asking)}"
            )
        for claim in claims:
            stay = [it for it in mine if it.id not in home]
            for why in _elsewhere(stay, claim, {card for it in claims for card in it.devices}):
                yield PlacementMismatch(_ref(pod), why, moved=True)


def _is_own(it: Allocation, vendor: Vendor) -> bool:
    """Whether its claim is what the pod's own limits say."""
    limits = vendor.pod_limits
    return it.claim is not None and limits is not None and it.claim.dialect == limits.name


def _asked(schedulers: Sequence[Scheduler], container: PodContainer) -> ContainerRequest | None:
    """What the container asks of the first scheduler of which it asks for cards, or for parts of one."""
    for it in schedulers:
        with suppress(Exception):  # contributors' code
            if it.asks is not None and (asked := it.asks(container.limits)) is not None:
                return asked
    return None


def _instead(
    planned: Resource, vendor: Vendor, pod: Candidate, asking: Sequence[tuple[PodContainer, ContainerRequest]]
) -> str:
    """What a container gets without a choice; and what the container asks for, where it asks a scheduler."""
    its = [it for it, _ in asking] or [it for it in pod.containers if it.limits.get(planned.name)]
    gets = _unclaimed(planned, vendor, its[0].limits[planned.name])
    by_limits = vendor.pod_limits is not None and planned.rule.placement == "auto"
    if not asking:
        return f"it gets what its limits name of a card, and else {gets}" if by_limits else f"it {gets}"
    container, asked = asking[0]
    gets = AS_MUCH if by_limits else gets
    of = "a card" if asked.cards == 1 else f"each of {asked.cards} cards"
    return f"container {shorten(container.name)} asks for {asked.each} of {of}, and {gets}"


def _unclaimed(planned: Resource, vendor: Vendor, count: int) -> str:
    if planned.rule.placement == "claim":
        return "is refused"
    try:
        without_choice = vendor.offers.without_choice
        return without_choice(count) if without_choice else UNCLAIMED
    except Exception:  # contributors' code
        return UNCLAIMED


def _name(pod: Candidate) -> str:
    return f"{shorten(pod.namespace)}/{shorten(pod.name)}"


def _is_of(it: Allocation, pod: Candidate) -> bool:
    return it.place is not None and it.place[0] == pod.uid


def _elsewhere(mine: Sequence[Allocation], claim: Claim, chosen: Collection[str]) -> Iterator[str]:
    """That its container has cards that were not chosen for its pod."""
    for it in mine:
        if it.place == (claim.uid, claim.container) and claim.devices and not {*it.cards} <= {*chosen}:
            has, were = (", ".join(map(shorten, its)) for its in (it.cards, claim.devices))
            yield f"{it.resource}: container {shorten(claim.container)} has {has}, chosen was {were}"
