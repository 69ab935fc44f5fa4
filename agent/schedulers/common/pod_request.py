"""What a pod asks of cards, as koord-scheduler counts it, and what of its cards each of its containers gets.

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
    """So many cards, and of all of them together percent of cores, bytes, and percent of memory.

    None: it is not asked for.
    """

    cards: int = 0
    core: int | None = None
    memory: int | None = None
    ratio: int | None = None

    @property
    def each(self) -> CardGrant:
        """Of one card."""
        count = max(1, self.cards)
        core, memory, ratio = (
            None if it is None else it // count for it in (self.core, self.memory, self.ratio)
        )
        return CardGrant(0, "", core, memory, ratio)


def wish(limits: Mapping[str, int]) -> PodRequest:
    """What these limits mean: of a container, or of a pod in all."""
    whole = sum(limits.get(name, 0) for name in WHOLE_CARDS)
    if not any(limits.get(name) for name in (GPU, SHARED, CORE, MEMORY, RATIO)):
        return PodRequest(whole, 100 * whole, None, 100 * whole) if whole else PodRequest()
    percent = limits.get(GPU)
    ratio = limits.get(RATIO, percent)
    cards = limits.get(SHARED) or max(1, (ratio or 0) // 100)
    return PodRequest(cards, limits.get(CORE, percent), limits.get(MEMORY), ratio)


def asked(pod: Candidate) -> PodRequest:
    """What the pod asks for in all, which is what the scheduler goes by."""
    return wish({name: count for name in _NAMES if (count := _sum(pod, name))})


def _sum(pod: Candidate, name: str) -> int:
    return split(pod, lambda it: it.limits.get(name, 0))[1]


def most_cards(pod: Candidate) -> int:
    """How many it may have been given, however they are counted."""
    return max(asked(pod).cards, split(pod, lambda it: wish(it.limits).cards)[1])


def asks_koordinator(pod: Candidate) -> bool:
    """Whether it asks for anything by Koordinator's own names."""
    return any(name.startswith(PREFIX) for it in pod.containers for name in it.limits)


def split(
    pod: Candidate, count: Callable[[PodContainer], int]
) -> tuple[list[tuple[PodContainer, slice]], int]:
    """The part of something of the pod's that each container gets, and how much of it all need.

    Schedulers do not say whose which is. Init containers hand theirs on; those that run beside the others
    (sidecars) keep them.
    """
    parts, taken, most = [], 0, 0
    for it in pod.containers:
        own = count(it)
        parts.append((it, slice(taken, taken + own)))
        most = max(most, taken + own)
        if not it.init or it.restartable:
            taken += own
    return parts, most


def believed(wanted: PodRequest, grants: Sequence[CardGrant], key: str) -> tuple[CardGrant, ...]:
    """The grants in the amounts that were asked for: by bytes or by percent, and what they leave unsaid too.

    A scheduler divides what is asked for, and rounds down.

    Raises:
        ValueError: The annotation `key` gives more than is asked for, or nothing of it.
    """
    if wanted.memory is None and wanted.ratio is None:
        raise ValueError(f"{key} stands on a pod that asks for neither {MEMORY} nor {RATIO}")
    cores = _believed([it.core for it in grants], wanted.core, CORE, key)
    memories = _believed([it.memory for it in grants], wanted.memory, MEMORY, key)
    ratios = _believed([it.ratio for it in grants], wanted.ratio, RATIO, key)
    amounts = zip(grants, cores, memories, ratios, strict=True)
    return tuple(replace(it, core=core, memory=memory, ratio=ratio) for it, core, memory, ratio in amounts)


def _believed(said: Sequence[int | None], most: int | None, name: str, key: str) -> Sequence[int | None]:
    if most is None:
        return [None] * len(said)
    its = [most // len(said) if it is None else it for it in said]
    if sum(its) > most or not all(its):
        raise ValueError(f"{key} gives {sum(its)} of {name}, its containers ask for {most}")
    return its


def shared_out(
    pod: Candidate, grants: Sequence[CardGrant], key: str
) -> list[tuple[PodContainer, tuple[CardGrant, ...]]]:
    """What each container of a pod gets of the cards that the pod was granted.

    In their order, where each gets cards of its own. Containers that ask for parts of a card without
    `gpu.shared` may be given one together, for the scheduler counts cards by the pod's sums.

    Raises:
        ValueError: What the annotation `key` says is not what the pod asks for.
    """
    wanted = asked(pod)
    parts, most = split(pod, lambda it: wish(it.limits).cards)
    if len(grants) != min(most, wanted.cards):
        raise ValueError(f"{key} names {len(grants)} cards, its containers ask for {min(most, wanted.cards)}")
    its = believed(wanted, grants, key)
    if most == len(its):
        return [(it, _of_its_time(pod, it, its[part])) for it, part in parts]
    return _packed(pod, its, key)


def _of_its_time(pod: Candidate, it: PodContainer, grants: Sequence[CardGrant]) -> tuple[CardGrant, ...]:
    """No more than the containers ask for that run at one time; the pod was granted the most of any time."""
    names = {name for one in _beside(pod, it) for name in one.limits}
    each = wish({name: sum(one.limits.get(name, 0) for one in _beside(pod, it)) for name in names}).each
    return tuple(
        replace(
            one,
            core=_lesser(one.core, each.core),
            memory=_lesser(one.memory, each.memory),
            ratio=_lesser(one.ratio, each.ratio),
        )
        for one in grants
    )


def _beside(pod: Candidate, it: PodContainer) -> list[PodContainer]:
    """It, and the containers that run at the same time; of an init container the sidecars before it."""
    if not it.init or it.restartable:
        return [one for one in pod.containers if not one.init or one.restartable]
    before = pod.containers[: pod.containers.index(it)]
    return [*(one for one in before if one.restartable), it]


def _lesser(granted: int | None, asked: int | None) -> int | None:
    return granted if granted is None or asked is None else min(granted, asked)


def _packed(
    pod: Candidate, grants: Sequence[CardGrant], key: str
) -> list[tuple[PodContainer, tuple[CardGrant, ...]]]:
    """Each container, in order, on the first cards that have left what it asks for."""
    left = list(grants)
    found = []
    for it in pod.containers:
        wanted = wish(it.limits)
        own = wanted.each
        places = [n for n, card in enumerate(left) if _fits(own, card)][: wanted.cards]
        if len(places) < wanted.cards:
            raise ValueError(f"{key} leaves too little of its cards for container {it.name}")
        cards = [replace(own, minor=left[n].minor, uuid=left[n].uuid) for n in places]
        found.append((it, believed(wanted, cards, key) if cards else ()))
        if not it.init or it.restartable:
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
