"""Claims on parts of cards, with a remark where a container gets another part than it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from agent.scheduler_api import Candidate, Claim, PodContainer

from .grants import CardGrant, in_words, least, share
from .pod_request import requested

AVERAGE = "the scheduler grants each container the average of its pod"


def claim(pod: Candidate, container: PodContainer, grants: Sequence[CardGrant]) -> Claim:
    """The claim of a container on these grants."""
    uuids = tuple(one.uuid for one in grants)
    alone = sum(1 for one in pod.containers if requested(one.limits).cards) == 1
    remark = _averaged(container, least(grants), alone=alone)
    return Claim(pod.uid, pod.namespace, pod.name, container.name, uuids, share(grants), remark)


def _averaged(container: PodContainer, granted: CardGrant, *, alone: bool) -> str:
    """A remark that the share differs from the request, as the scheduler divides the pod's sums evenly.

    `alone`: no other container of the pod asks for a card. Empty where the share is the request.
    """
    own = requested(container.limits).each
    both = ((own.core, granted.core), (own.memory, granted.memory), (own.ratio, granted.ratio))
    if all(None in pair or pair[0] == pair[1] for pair in both):
        return ""
    return f"container {container.name} asks for {in_words(own)} of a card and gets {in_words(granted)}: " + (
        "that is what the pod's annotation says" if alone else AVERAGE
    )
