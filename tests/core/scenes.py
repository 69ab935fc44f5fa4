"""A node with a few cards and resources, the pods that wait on it, and who has what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.core.allocation.known_pods import KnownPods
from agent.core.allocation.scene import Scene
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.model import Allocation, AllocationSource, Owner
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.daemon.scheduler_plugins import registered
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, PodContainer
from agent.vendor_api.agent import (
    CardsWithRoom,
    ContainerEdits,
    Device,
    Edits,
    Grant,
    NoRoom,
    Offers,
    Placement,
    Request,
    RequestRefused,
    ResourceRule,
    Settings,
    Sharing,
    Slices,
    Vendor,
)

from .values import allocation, node, status

#: Two cards given out whole, beside one that is unhealthy and one whose edits fail; a card in four replicas;
#: a card in four replicas of which a container gets one.
WHOLE, SLICE, ONE = "acme.com/whole", "acme.com/slice", "acme.com/one"
#: Of the card of SLICE and one of SHARE, where the node's modes are dynamic.
UNCUT = "acme.com/uncut"
#: Two cards in two replicas each, c4 and c5, beside c6, which is unhealthy.
SHARE = "acme.com/share"


def edits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    """What the vendor answers with; of the card `broken` this raises."""
    if "broken" in request.ids:
        raise ZeroDivisionError("a bug of the vendor's")
    return ContainerEdits(
        env={"ACME": ",".join(it.uuid for it in devices)}, annotations={"acme.com/by": "acme"}
    )


def scene(
    *candidates: Candidate,
    placement: Placement = "local",
    dialects: tuple[Dialect, ...] = (),
    dynamic: bool = False,
    failed: Collection[str] = (),
    retired: Collection[str] = (),
    external: Mapping[str, Allocation] | None = None,
    left_out: bool = False,
    prepares: bool = False,
    container_edits: Edits = edits,
    limits: Dialect | None = None,
    cards_with_room: CardsWithRoom | None = None,
    **more: Any,  # further fields of Scene
) -> Scene:
    """The node with these pods. `failed`: cards that are unhealthy by now."""
    cards = [status(f"c{n}", n, healthy=f"c{n}" not in failed) for n in range(6)]
    sick = status("sick", 6, healthy=False, reason="xid-79", message="lost")
    wanting = status("c6", 8, healthy=False, reason="xid-79", message="lost")
    snapshot = node(*cards, sick, status("broken", 7), wanting)
    settings = {"key": "value"}
    vendor = Vendor(
        "acme",
        "",
        WHOLE,
        container_edits,
        settings=Settings(settings),
        offers=Offers(cards_with_room=cards_with_room),
        makes=Slices() if prepares else None,
        dialects=dialects,
        pod_limits=limits,
    )
    offers = [Offer("acme", _rules(placement, dynamic=dynamic), dynamic=dynamic)]
    planned = plan(offers, snapshot, usage=ResourceUsage(external=frozenset(external or ())))
    planned |= {name: replace(planned[name], retired=True) for name in retired}
    return Scene(
        planned,
        snapshot,
        topology(snapshot),
        {} if left_out else {"acme": vendor},
        candidates=KnownPods.of(candidates),
        external=external or {},
        schedulers=registered(),
        **more,
    )


def _rules(placement: Placement, *, dynamic: bool) -> tuple[ResourceRule, ...]:
    strict = Sharing("replicas", 4, fail_requests_greater_than_one=True)
    rules: tuple[ResourceRule, ...] = (
        ResourceRule(WHOLE, devices=("c0", "c1", "sick", "broken")),
        ResourceRule(SLICE, devices=("c2",), sharing=Sharing("replicas", 4)),
        ResourceRule(SHARE, devices=("c4", "c5", "c6"), sharing=Sharing("replicas", 2)),
        ResourceRule(ONE, devices=("c3",), sharing=strict),
    )
    rules += (ResourceRule(UNCUT, devices=("c2", "c4")),) if dynamic else ()
    return tuple(replace(it, placement=placement) for it in rules)


# Pods, and what a scheduler says of them


def bound(name: str, *cards: str, resource: str = WHOLE, count: int = 1, **more: Any) -> Candidate:
    """A pod to which a scheduler gave these cards, or (none) said nothing."""
    annotations = {"cards": ",".join(cards)} if cards else {}
    return Candidate(
        f"uid-{name}", "default", name, (PodContainer("main", {resource: count}),), annotations, **more
    )


def chosen(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """A dialect that claims the cards of `bound`."""
    cards = pod.annotations.get("cards")
    return [Claim(pod.uid, pod.namespace, pod.name, "main", tuple(cards.split(",")))] if cards else []


CHOSEN = Dialect("plain", chosen)

#: Two equal pods, to which a scheduler has promised slices of different priorities.
LOW, HIGH = (Claim(f"uid-{it}", "default", it, "main", (), {"priority": it}) for it in ("low", "high"))
WAITING = tuple(
    Candidate(f"uid-{it}", "default", it, (PodContainer("main", {SLICE: 1}),), {"priority": it}, created)
    for created, it in enumerate(("low", "high"))
)


def claims(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """A dialect that claims any card, with the pod's annotations as parameters."""
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (), pod.annotations)]


PLAIN = Dialect("plain", claims)

#: Parameters that a vendor writes into the environment of a container, which cannot be changed later.
LIMITED = {"low": {"core": "30"}, "high": {"core": "60"}}


def limits(devices: Sequence[Device], request: Request) -> ContainerEdits:
    return ContainerEdits(env={"LIMIT": request.parameters.get("core", "")})


def limited(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """A dialect that claims shares of c4 with the limits of LIMITED, by the pod's name."""
    said = LIMITED.get(pod.name)
    return [Claim(pod.uid, pod.namespace, pod.name, "main", ("c4",), said)] if said else []


# Pods whose own limits say how much of a card they are to have


def asked(pod: Candidate, resource: str, devices: Cards) -> Sequence[Claim]:
    """What the annotation `core` of the pod says, in percent of a card."""
    core = pod.annotations.get("core")
    return [Claim(pod.uid, pod.namespace, pod.name, "main", (), {"core": core} if core else {})]


BY_LIMITS = Dialect("limits", asked)


def cards_with_room(request: Request, devices: Sequence[Device], given: Sequence[Grant]) -> Sequence[str]:
    """Each card has 100 percent; who names none gets 10. Most left first."""
    core = int(request.parameters.get("core", "10"))
    if core > 100:
        raise RequestRefused(f"{core} percent are more than a card")
    left = {it.uuid: 100 for it in devices}
    for it in given:
        for uuid in {*it.uuids} & {*left}:
            left[uuid] -= int(it.request.parameters.get("core", "10"))
    found = [uuid for uuid, rest in left.items() if rest >= core]
    if len(found) < len(request.ids):
        raise NoRoom(f"{core} percent are asked for, left are {sorted(left.values())}")
    return sorted(found, key=lambda uuid: -left[uuid])


def asking(name: str, core: int | str = "", resource: str = SHARE, **more: Any) -> Candidate:
    """A pod that asks for so much of a card itself, or (empty) for no amount."""
    said = {"core": str(core)} if core else {}
    return replace(bound(name, resource=resource, **more), annotations=said)


# Who has what


def held(name: str, *ids: str, resource: str = WHOLE, on: Sequence[str] = (), **more: Any) -> Allocation:
    """An allocation of a pod of that name. `on`: the cards on which it lies, where its IDs name others."""
    owner = more.pop("owner", Owner(f"uid-{name}", "main", "default", name))
    return replace(allocation(name, ids, resource=resource, owner=owner, **more), diverged=tuple(on))


def full_c5(since: float = 1200.0) -> tuple[Allocation, Allocation]:
    """Two shares that lie on c5, one of them by an ID of c4."""
    return (
        held("a", "c4::0", resource=SHARE, since=since, on=("c5",)),
        held("b", "c5::0", resource=SHARE, since=since),
    )


def shown(pod: str, device_id: str, resource: str = SHARE) -> Allocation:
    """An allocation of which PodResources alone tells: its owner has no uid."""
    owner = Owner("", "main", "default", pod)
    return held(
        f"shown-{pod}", device_id, resource=resource, owner=owner, source=AllocationSource.POD_RESOURCES
    )


def granted(allocated: Allocation, pod: str) -> CheckpointAnswer:
    """The kubelet's word that this pod has the allocation."""
    return CheckpointAnswer(allocated.id, f"uid-{pod}", "main", allocated.resource, allocated.ids)
