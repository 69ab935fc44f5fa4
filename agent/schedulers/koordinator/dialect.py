"""The dialect of koord-scheduler, which chooses cards of every vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, ContainerRequest, Dialect, Part
from agent.schedulers.common.grants import CardGrant, in_words, measured
from agent.schedulers.common.pod_request import requested, requested_by, shared_out
from agent.schedulers.common.resource_names import GPU, PREFIX, SHARED
from agent.schedulers.common.shares import claim
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, allocated
from agent.vendor_api.text import shorten


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of the containers that ask for the resource, in the order of the containers.

    Raises:
        ValueError: The annotation makes no sense, or does not fit what the pod asks for.
    """
    text = pod.annotations.get(ALLOCATED)
    grants = allocated(text) if text is not None else ()
    containers = [it for it in pod.containers if it.limits.get(resource)]
    asking = {it.name for it in containers if requested(it.limits).cards}
    if grants and containers and not requested_by(pod).cards:
        raise ValueError(f"{ALLOCATED} stands on a pod that asks for no {GPU} or the like beside {resource}")
    if not (grants and asking):
        return ()
    if pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{ALLOCATED} is not believed of a pod of {DEFAULT_SCHEDULER}")
    named = [replace(it, uuid=uuid_of(it, cards)) for it in grants]
    if len({it.uuid for it in named}) < len(named):
        raise ValueError(f"{ALLOCATED} names a card twice")
    parts = shared_out(pod, named, ALLOCATED)
    return [claim(pod, container, part) for container, part in parts if container.name in asking]


def uuid_of(grant: CardGrant, cards: Cards) -> str:
    """Uuid of the granted card, by the grant's id, or by its minor where the grant has no id.

    Raises:
        ValueError: The node does not have the card.
    """
    if grant.uuid:
        found = grant.uuid if grant.uuid in cards else None
    else:
        found = next((uuid for uuid, minor in cards.items() if minor == grant.minor), None)
    if found is None:
        raise ValueError(
            f"{ALLOCATED} names {shorten(grant.uuid or str(grant.minor), 80)}, which is not here"
        )
    return found


def _measured(parameters: Mapping[str, str], memory: int) -> Part | None:
    """The part of a claim; a claim without parameters takes whole cards."""
    return measured(parameters, memory) if parameters else Part(1.0, 1.0)


def asks(limits: Mapping[str, int]) -> ContainerRequest | None:
    """The request of a container by Koordinator's own names, for people."""
    wanted = requested(limits)
    if not wanted.cards or not any(name.startswith(PREFIX) for name in limits):
        return None
    return ContainerRequest(wanted.cards, in_words(wanted.each))


KOORDINATOR = Dialect("koordinator", claims, measure=_measured, card_count=SHARED)
