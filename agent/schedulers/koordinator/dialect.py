"""How koord-scheduler hands over its choice, for the cards of every vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.scheduler_api import DEFAULT_SCHEDULER, Candidate, Cards, Claim, ContainerRequest, Dialect, Part
from agent.schedulers.common.grants import CardGrant, in_words, measured
from agent.schedulers.common.pod_request import asked, shared_out, wish
from agent.schedulers.common.resource_names import GPU, PREFIX, SHARED
from agent.schedulers.common.shares import claim
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, allocated
from agent.vendor_api.text import shorten


def claims(pod: Candidate, resource: str, cards: Cards) -> Sequence[Claim]:
    """The claims of the containers that ask for the resource, in their order.

    Raises:
        ValueError: The annotation makes no sense, alone or beside what the pod asks for.
    """
    text = pod.annotations.get(ALLOCATED)
    grants = allocated(text) if text is not None else ()
    its_own = [it for it in pod.containers if it.limits.get(resource)]
    asking = {it.name for it in its_own if wish(it.limits).cards}
    if grants and its_own and not asked(pod).cards:
        raise ValueError(f"{ALLOCATED} stands on a pod that asks for no {GPU} or the like beside {resource}")
    if not (grants and asking):
        return ()
    if pod.scheduler == DEFAULT_SCHEDULER:
        raise ValueError(f"{ALLOCATED} is not believed of a pod of {DEFAULT_SCHEDULER}")
    its = [replace(it, uuid=uuid_of(it, cards)) for it in grants]
    if len({it.uuid for it in its}) < len(its):
        raise ValueError(f"{ALLOCATED} names a card twice")
    return [claim(pod, it, part) for it, part in shared_out(pod, its, ALLOCATED) if it.name in asking]


def uuid_of(grant: CardGrant, cards: Cards) -> str:
    """The card that is meant: by its id; by its minor where it has none.

    Raises:
        ValueError: It is not among these.
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
    """A claim that says nothing is of whole cards."""
    return measured(parameters, memory) if parameters else Part(1.0, 1.0)


def asks(limits: Mapping[str, int]) -> ContainerRequest | None:
    """What a container asks for by Koordinator's own names: cards, or parts of some."""
    wanted = wish(limits)
    if not wanted.cards or not any(name.startswith(PREFIX) for name in limits):
        return None
    return ContainerRequest(wanted.cards, in_words(wanted.each))


KOORDINATOR = Dialect("koordinator", claims, measure=_measured, card_count=SHARED)
