"""The cards that a pod asks for, as koord-scheduler counts them, and the part of them for each container.

Source: koordinator-sh/koordinator, pkg/scheduler/plugins/deviceshare/{utils,devicehandler_gpu}.go (a7a1b76b).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.scheduler_api import Candidate, PodContainer
from agent.schedulers.common.grants import CardGrant
from agent.schedulers.common.resource_names import CORE, GPU, MEMORY, PREFIX, RATIO, SHARED, WHOLE_CARDS

_NAMES = (GPU, SHARED, CORE, MEMORY, RATIO, *WHOLE_CARDS)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A number of cards, and for all of them together percent of cores, bytes, and percent of memory.

    None: the pod does not ask for this amount.
    """

    cards: int = 0
    core: int | None = None
    memory: int | None = None
    ratio: int | None = None

    @property
    def each(self) -> CardGrant:
        """The amount of one card."""
        count = max(1, self.cards)
        amounts = (self.core, self.memory, self.ratio)
        core, memory, ratio = (None if it is None else it // count for it in amounts)
        return CardGrant(0, "", core, memory, ratio)


def requested(limits: Mapping[str, int]) -> PodRequest:
    """The request that these limits make: of one container, or of a whole pod."""
    whole = sum(limits.get(name, 0) for name in WHOLE_CARDS)
    if not any(limits.get(name) for name in (GPU, SHARED, CORE, MEMORY, RATIO)):
        return PodRequest(whole, 100 * whole, None, 100 * whole) if whole else PodRequest()
    percent = limits.get(GPU)
    ratio = limits.get(RATIO, percent)
    cards = limits.get(SHARED) or max(1, (ratio or 0) // 100)
    return PodRequest(cards, limits.get(CORE, percent), limits.get(MEMORY), ratio)


def requested_by(pod: Candidate) -> PodRequest:
    """The request of the whole pod, by which the scheduler places the pod."""
    return requested({name: count for name in _NAMES if (count := _sum(pod, name))})


def _sum(pod: Candidate, name: str) -> int:
    return split(pod, lambda it: it.limits.get(name, 0))[1]


def most_cards(pod: Candidate) -> int:
    """The most cards that the pod can have, by the sum of its limits or by its containers."""
    return max(requested_by(pod).cards, split(pod, lambda it: requested(it.limits).cards)[1])


def asks_koordinator(pod: Candidate) -> bool:
    """Whether the pod asks for anything by Koordinator's own names."""
    return any(name.startswith(PREFIX) for it in pod.containers for name in it.limits)


def split(
    pod: Candidate, count: Callable[[PodContainer], int]
) -> tuple[list[tuple[PodContainer, slice]], int]:
    """The slice of the pod's devices that each container gets, and the number of devices in all.

    `count` is the number of a container. Schedulers do not say which container gets which device. Init
    containers pass their devices on; sidecars keep their devices.
    """
    parts, taken, most = [], 0, 0
    for container in pod.containers:
        own = count(container)
        parts.append((container, slice(taken, taken + own)))
        most = max(most, taken + own)
        if not container.init or container.restartable:
            taken += own
    return parts, most


def believed(wanted: PodRequest, grants: Sequence[CardGrant], key: str) -> tuple[CardGrant, ...]:
    """The grants in the units of the request. An amount that a grant lacks is a share of the request.

    A scheduler divides the request by the number of cards and rounds down.

    Raises:
        ValueError: The annotation `key` gives more than the pod asks for, or nothing.
    """
    if wanted.memory is None and wanted.ratio is None:
        raise ValueError(f"{key} stands on a pod that asks for neither {MEMORY} nor {RATIO}")
    cores = _believed([it.core for it in grants], wanted.core, CORE, key)
    memories = _believed([it.memory for it in grants], wanted.memory, MEMORY, key)
    ratios = _believed([it.ratio for it in grants], wanted.ratio, RATIO, key)
    amounts = zip(grants, cores, memories, ratios, strict=True)
    return tuple(replace(it, core=core, memory=memory, ratio=ratio) for it, core, memory, ratio in amounts)


def _believed(granted: Sequence[int | None], most: int | None, name: str, key: str) -> Sequence[int | None]:
    if most is None:
        return [None] * len(granted)
    amounts = [most // len(granted) if it is None else it for it in granted]
    if sum(amounts) > most or not all(amounts):
        raise ValueError(f"{key} gives {sum(amounts)} of {name}, its containers ask for {most}")
    return amounts


def shared_out(
    pod: Candidate, grants: Sequence[CardGrant], key: str
) -> list[tuple[PodContainer, tuple[CardGrant, ...]]]:
    """The grants of a pod, shared out to its containers.

    Containers get cards of their own in the order of the containers. Containers that ask for parts of a card
    without `gpu.shared` may share one card, because the scheduler counts cards by the pod's sums.

    Raises:
        ValueError: The annotation `key` does not fit what the pod asks for.
    """
    wanted = requested_by(pod)
    parts, most = split(pod, lambda it: requested(it.limits).cards)
    if len(grants) != min(most, wanted.cards):
        raise ValueError(f"{key} names {len(grants)} cards, its containers ask for {min(most, wanted.cards)}")
    amounts = believed(wanted, grants, key)
    if most == len(amounts):
        return [(container, _at_one_time(pod, container, amounts[part])) for container, part in parts]
    return _packed(pod, amounts, key)


def _at_one_time(
    pod: Candidate, container: PodContainer, grants: Sequence[CardGrant]
) -> tuple[CardGrant, ...]:
    """The grants, limited to what the containers of one time ask for. The pod has the most of any time."""
    running = _running_with(pod, container)
    names = {name for one in running for name in one.limits}
    own = requested({name: sum(one.limits.get(name, 0) for one in running) for name in names}).each
    return tuple(
        replace(
            grant,
            core=_lesser(grant.core, own.core),
            memory=_lesser(grant.memory, own.memory),
            ratio=_lesser(grant.ratio, own.ratio),
        )
        for grant in grants
    )


def _running_with(pod: Candidate, container: PodContainer) -> list[PodContainer]:
    """The container and those that run at the same time: with an init container the sidecars before it."""
    if not container.init or container.restartable:
        return [one for one in pod.containers if not one.init or one.restartable]
    before = pod.containers[: pod.containers.index(container)]
    return [*(one for one in before if one.restartable), container]


def _lesser(granted: int | None, requested_by: int | None) -> int | None:
    return granted if granted is None or requested_by is None else min(granted, requested_by)


def _packed(
    pod: Candidate, grants: Sequence[CardGrant], key: str
) -> list[tuple[PodContainer, tuple[CardGrant, ...]]]:
    """Each container, in order, on the first cards with enough room left for its request."""
    left = list(grants)
    found = []
    for container in pod.containers:
        wanted = requested(container.limits)
        own = wanted.each
        places = [n for n, card in enumerate(left) if _fits(own, card)][: wanted.cards]
        if len(places) < wanted.cards:
            raise ValueError(f"{key} leaves too little of its cards for container {container.name}")
        cards = [replace(own, minor=left[n].minor, uuid=left[n].uuid) for n in places]
        found.append((container, believed(wanted, cards, key) if cards else ()))
        if not container.init or container.restartable:
            for n in places:
                left[n] = _less(left[n], own)
    return found


def _fits(own: CardGrant, card: CardGrant) -> bool:
    rest = _less(card, own)
    return min(rest.core or 0, rest.memory or 0, rest.ratio or 0) >= 0


def _less(card: CardGrant, own: CardGrant) -> CardGrant:
    return replace(
        card,
        core=(card.core or 0) - (own.core or 0),
        memory=(card.memory or 0) - (own.memory or 0),
        ratio=(card.ratio or 0) - (own.ratio or 0),
    )
