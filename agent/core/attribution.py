"""Who asks? Allocate does not say: pods that wait are matched to a request; the kubelet proves it later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.core.claims import Candidate, Claim, Dialect
from agent.core.evidence import Granted
from agent.core.model import Allocation
from agent.core.text import shorten

#: A container's place: pod uid, container name.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Attribution:
    """The claim that a request most likely is, or none. `doubt` says why it may be another's, or why none."""

    claim: Claim | None = None
    doubt: str = ""


def attribute(
    resource: str,
    count: int,
    cards: Collection[str],
    candidates: Iterable[Candidate],
    dialects: Sequence[Dialect],
    devices: Sequence[str],
    taken: Collection[Place],
) -> Attribution:
    """The claim behind a request for `count` IDs on these cards.

    `devices` are the uuids of the vendor's cards in the order of their minors, `taken` the containers that
    have an allocation of the resource. Only containers that ask for exactly as many IDs come into question;
    the pod that has waited longest comes first.
    """
    claims: list[Claim] = []
    others: list[str] = []
    wrong: list[str] = []
    for pod in sorted(candidates, key=lambda it: (it.created, it.uid)):
        asking = _asking(pod, resource, count, taken)
        if not asking:
            continue
        found = _claims(pod, resource, dialects, devices, wrong)
        mine = [it for it in found if it.uid == pod.uid and it.container in asking]
        claims += mine
        if not mine:
            others.append(f"{pod.namespace}/{pod.name}")
    wanted = set(cards)
    fitting = [it for it in claims if not it.devices or set(it.devices) == wanted]
    if fitting:
        return Attribution(fitting[0], _doubt(fitting, others))
    if claims:
        names = ", ".join(f"{it.namespace}/{it.pod} on {', '.join(it.devices)}" for it in claims[:3])
        return Attribution(None, f"claims are on other cards: {names}")
    return Attribution(None, "; ".join(wrong[:3]) or "no pod that waits has a claim")


def waiting(
    resource: str, count: int, candidates: Iterable[Candidate], taken: Collection[Place]
) -> tuple[Candidate, ...]:
    """The pods with a container that asks for exactly as many IDs and has none of the resource yet."""
    return tuple(it for it in candidates if _asking(it, resource, count, taken))


def _asking(pod: Candidate, resource: str, count: int, taken: Collection[Place]) -> frozenset[str]:
    if pod.over:
        return frozenset()
    return frozenset(
        it.name
        for it in pod.containers
        if it.limits.get(resource) == count and (pod.uid, it.name) not in taken
    )


def _claims(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], devices: Sequence[str], wrong: list[str]
) -> Sequence[Claim]:
    """What the first dialect that speaks of the pod makes of it."""
    for dialect in dialects:
        try:
            if found := [_fit(it) for it in dialect.claims(pod, resource, devices)]:
                return found
        except Exception as exc:  # annotations are strangers' words, and dialects are contributors'
            wrong.append(f"{pod.namespace}/{pod.name}: {dialect.name}: {shorten(str(exc) or repr(exc))}")
    return ()


def _fit(claim: Claim) -> Claim:
    """The same claim, fit to be written down; raises ValueError or what else a wrong one brings about."""
    texts = (claim.uid, claim.namespace, claim.pod, claim.container, *claim.devices)
    for text in (*texts, *claim.parameters.keys(), *claim.parameters.values()):
        text.encode()
    return claim


def _doubt(fitting: Sequence[Claim], others: Sequence[str]) -> str:
    if others:
        return f"{others[0]} asks for as much and has no claim"
    return f"one of {len(fitting)} claims that fit" if len(fitting) > 1 else ""


def promised(
    resource: str, pod: Candidate, container: str, dialects: Sequence[Dialect], devices: Sequence[str]
) -> Claim | None:
    """The claim of a container that is known to be the one, as its pod says it now."""
    found = () if pod.over else _claims(pod, resource, dialects, devices, [])
    return next((it for it in found if _place(it) == (pod.uid, container)), None)


def exchanged(
    allocations: Iterable[Allocation],
    granted: Iterable[Granted],
    promise: Callable[[Allocation, Granted], Claim | None],
) -> dict[str, Claim | None]:
    """The claims that must change hands: allocation to the claim of the container that the kubelet gave it.

    Who bore that claim without being granted gets in return what is left. A claim that nobody bears is asked
    of `promise`. None: nothing was promised.
    """
    known = {it.id: it for it in allocations}
    bearers = {(it.resource, _place(it.claim)): it.id for it in known.values() if it.claim is not None}
    takers: dict[str, str] = {}
    after: dict[str, Claim | None] = {}
    for grant in granted:
        if (it := known.get(grant.allocation)) is None:
            continue
        giver = bearers.get((it.resource, (grant.uid, grant.container)))
        after[it.id] = promise(it, grant) if giver is None else known[giver].claim
        if giver is not None:
            takers[giver] = it.id
    for name in takers.keys() - after.keys():
        after[name] = known[_last(name, takers)].claim
    return {name: claim for name, claim in after.items() if claim != known[name].claim}


def _last(name: str, takers: Mapping[str, str]) -> str:
    """The end of a chain: whose claim goes to nobody who is granted one."""
    for _ in takers:  # two that bear one claim could go round for ever
        if name not in takers:
            break
        name = takers[name]
    return name


def _place(claim: Claim) -> Place:
    return claim.uid, claim.container


def places(allocations: Iterable[Allocation], resource: str) -> frozenset[Place]:
    """The containers that have an allocation of the resource, as the kubelet or else a claim says."""
    return frozenset(
        (place.uid, place.container)
        for it in allocations
        if it.resource == resource and (place := it.owner or it.claim) is not None
    )


def starting(
    allocations: Iterable[Allocation], granted: Iterable[Granted] | None, resource: str, ids: Iterable[str]
) -> list[Allocation]:
    """The allocations in use behind a container that starts with these IDs.

    Init containers hand their IDs on, so that there may be several; all are of one pod. Without the kubelet's
    checkpoint it is the newest one; also where that says nothing of these IDs: the kubelet may write two at
    once, and the older one last.
    """
    wanted = frozenset(ids)
    fitting = [it for it in allocations if it.resource == resource and frozenset(it.ids) == wanted]
    its = tuple(granted or ())
    known = {it.allocation for it in its}
    lags = not any(it.resource == resource and frozenset(it.ids) == wanted for it in its)
    return [it for it in fitting if it.id in known] or (fitting[-1:] if lags else [])
