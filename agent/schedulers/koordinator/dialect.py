"""How koord-scheduler hands over its choice, for the cards of every vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.scheduler_api import DEFAULT_SCHEDULER, Asked, Candidate, Cards, Claim, Dialect, Part, PodContainer
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED, Grant, allocated
from agent.schedulers.koordinator.pod_request import asked, shared_out, wish
from agent.schedulers.koordinator.resource_names import GPU, PREFIX, SHARED
from agent.vendor_api.text import shorten

GIB = 1 << 30
#: The parameters of a share of cards.
_SHARE = ("core", "memory", "ratio")
AVERAGE = "the scheduler grants each container the average of its pod"


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


def uuid_of(grant: Grant, cards: Cards) -> str:
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


def claim(pod: Candidate, it: PodContainer, grants: Sequence[Grant]) -> Claim:
    """That a container was granted so much of these cards."""
    uuids = tuple(one.uuid for one in grants)
    alone = sum(1 for one in pod.containers if wish(one.limits).cards) == 1
    remark = _averaged(it, _least(grants), alone=alone)
    return Claim(pod.uid, pod.namespace, pod.name, it.name, uuids, share(grants), remark)


def share(grants: Sequence[Grant]) -> dict[str, str]:
    """What all of these cards give, as parameters of a claim; none where they are whole."""
    each = _least(grants)
    said = {"core": each.core, "memory": each.memory, "ratio": each.ratio}
    return {} if each.whole else {key: str(value) for key, value in said.items() if value is not None}


def measured(parameters: Mapping[str, str], memory: int) -> Part | None:
    """What `share` said, of a card of so many bytes; None where it said nothing.

    Of percent and bytes the smaller, for schedulers round one of them up.
    """
    said = {key: int(it) for key, it in parameters.items() if key in _SHARE and it.isascii() and it.isdigit()}
    if not said:
        return None
    in_bytes = said.get("memory", 0) / memory if memory else 0.0
    parts = [it for it in (in_bytes, said.get("ratio", 0) / 100) if it]
    return Part(said.get("core", 0) / 100, min(parts, default=0.0))


def _measured(parameters: Mapping[str, str], memory: int) -> Part | None:
    """A claim that says nothing is of whole cards."""
    return measured(parameters, memory) if parameters else Part(1.0, 1.0)


def _least(grants: Sequence[Grant]) -> Grant:
    """What every one of these cards gives: of cards of two sizes half is not the same."""
    cores, memories, ratios = ([getattr(it, name) for it in grants] for name in ("core", "memory", "ratio"))
    core, memory, ratio = (None if None in its else min(its) for its in (cores, memories, ratios))
    return Grant(0, "", core, memory, ratio)


def _averaged(it: PodContainer, granted: Grant, *, alone: bool) -> str:
    """That the container gets another share than it asks for: the scheduler divides the pod's sums evenly.

    `alone`: no other container of its pod asks for a card.
    """
    own = wish(it.limits).each
    both = ((own.core, granted.core), (own.memory, granted.memory), (own.ratio, granted.ratio))
    if all(asked is None or given is None or asked == given for asked, given in both):
        return ""
    return f"container {it.name} asks for {in_words(own)} of a card and gets {in_words(granted)}: " + (
        "that is what the pod's annotation says" if alone else AVERAGE
    )


def in_words(it: Grant) -> str:
    """How much of a card it is: `10 % of the cores and 1Gi`."""
    said = [f"{it.core} % of the cores"] if it.core is not None else []
    if it.memory is not None:
        said.append(f"{it.memory / GIB:g}Gi")
    elif it.ratio is not None:
        said.append(f"{it.ratio} % of the memory")
    return " and ".join(said)


def asks(limits: Mapping[str, int]) -> Asked | None:
    """What a container asks for by Koordinator's own names: cards, or parts of some."""
    wanted = wish(limits)
    if not wanted.cards or not any(name.startswith(PREFIX) for name in limits):
        return None
    return Asked(wanted.cards, in_words(wanted.each))


KOORDINATOR = Dialect("koordinator", claims, measure=_measured, card_count=SHARED)
