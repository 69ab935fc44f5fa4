"""Cards that koord-scheduler gave to pods that ask for `koordinator.sh/*` alone, and no device plugin."""

from __future__ import annotations

from collections.abc import Sequence

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, ExternalUse
from agent.schedulers.common.grants import CardGrant, share
from agent.schedulers.common.pod_request import asks_koordinator, believed, most_cards, requested_by
from agent.schedulers.common.resource_names import GPU
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, allocated
from agent.schedulers.koordinator.dialect import KOORDINATOR, uuid_of


def claim(pod: Candidate, cards: Cards) -> Claim | None:
    """The claim of the pod, all its containers together, on these cards; None without a choice for it.

    Cards beyond what the pod asks for count as in use too.

    Raises:
        ValueError: The annotation makes no sense, or names none of these cards.
    """
    text = pod.annotations.get(ALLOCATED) if asks_koordinator(pod) else None
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


def _here(grant: CardGrant, cards: Cards) -> str:
    """Uuid of the granted card; empty where the node does not have it."""
    try:
        return uuid_of(grant, cards)
    except ValueError:
        return ""


def _in_asked(pod: Candidate, grants: Sequence[CardGrant]) -> Sequence[CardGrant]:
    """The grants in the units of the pod's request; unchanged where they do not fit the request."""
    try:
        return believed(requested_by(pod), grants, ALLOCATED)
    except ValueError:
        return grants


EXTERNAL = ExternalUse(GPU, claim)
