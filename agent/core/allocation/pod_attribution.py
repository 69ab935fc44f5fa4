"""Who asks? Allocate does not say: pods that wait are matched to a request; the kubelet proves it later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.core.allocation import remembered_claims
from agent.core.allocation.holder_names import claims_on_cards
from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.model import Allocation
from agent.scheduler_api import Candidate, Cards, Claim, Dialect

#: A container's place: pod uid, container name.
Place = tuple[str, str]
#: The cards on which a claim that names none may lie with so many IDs, the one that suits it best first.
Roomy = Callable[[Claim, int], Sequence[str]]


def _unknown(claim: Claim, count: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """All that is known of who may ask: the pods, their schedulers' words, and who has what already."""

    candidates: Sequence[Candidate]
    dialects: Sequence[Dialect]
    #: The vendor's cards.
    devices: Cards
    #: The containers that have an allocation of the resource.
    taken: Collection[Place] = ()
    #: Card to the uid of the pod that has it whole.
    holders: Mapping[str, str] = field(default_factory=dict)
    #: The pods, by namespace and name, that schedulers' locks of this node name.
    locked: Collection[tuple[str, str]] = ()
    #: The cards of which nothing can be had now: those that failed after they were promised.
    failed: Collection[str] = ()
    #: The uids of pods that were refused most likely, though they still seem to wait: they come last.
    refused: Collection[str] = ()
    #: The uids of pods that waited as the kubelet began: it takes them first, by their age.
    found: Collection[str] = ()
    #: Where claims may lie that name no card; none where nobody says.
    roomy: Roomy = _unknown
    #: Those of `refused` of which another pod may have been refused instead.
    guessed: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Attribution:
    """The claim that a request most likely is, or none. `doubt` says why it may be another's, or why none."""

    claim: Claim | None = None
    doubt: str = ""
    #: The claims for as many IDs that are on other cards, in the order of their pods: all, where there is no
    #: claim; those of who comes before it, where the claim names no card.
    elsewhere: tuple[Claim, ...] = ()
    #: Whether a pod without any claim waits for as many, too.
    unclaimed: bool = False
    #: Where the claim names no card: the others that name none, and that the request may be as well.
    alike: tuple[Claim, ...] = ()
    #: What those were promised of whom the kubelet may ask for any: it takes them in no order that is known.
    #: None: nothing. One of them alone where the order is known.
    askers: tuple[Claim | None, ...] = ()

    def with_room_for(self, claim: Claim) -> tuple[Claim | None, ...]:
        """For whom there must be room where the answer is this claim's: the container is held to it."""
        return self.askers if claim in self.askers else (claim, *self.askers)


def attribute(resource: str, count: int, cards: Collection[str], waiting: WaitingPods) -> Attribution:
    """The claim behind a request for `count` IDs on these cards.

    Only containers that ask for exactly as many IDs come into question; the pod that the kubelet heard of
    first, or else the oldest, comes first. Of those that it found as it began the oldest does.
    """
    room = _Room(resource, waiting)
    return replace(_attributed(room, count, cards), askers=tuple(room.askers(count)))


def _attributed(room: _Room, count: int, cards: Collection[str]) -> Attribution:
    wanted = set(cards)
    claims, others = room.asking(count)
    exact = [it for it in claims if not it.devices or set(it.devices) == wanted]
    fitting = exact or [
        replace(it, devices=other)
        for it in claims
        for other in (room.within_pod(it, wanted), room.settled(it))
        if set(other) == wanted
    ]
    if fitting:
        anywhere = () if fitting[0].devices else tuple(it for it in fitting[1:] if not it.devices)
        before = () if fitting[0].devices else tuple(claims[: claims.index(fitting[0])])
        return Attribution(fitting[0], _doubt(fitting, others), before, bool(others), anywhere)
    if claims:
        doubt = f"claims are on other cards: {claims_on_cards(claims[:3])}"
        return Attribution(None, doubt, tuple(claims), bool(others))
    unsaid = f"{others[0]} asks for as much and has no claim" if others else ""
    doubt = "; ".join(room.wrong[:3]) or unsaid or "no pod that waits has a claim"
    return Attribution(None, doubt, unclaimed=bool(others))


def due(resource: str, waiting: WaitingPods) -> tuple[Claim, ...]:
    """What is promised to pods that wait and that were not refused, of cards that a scheduler chose."""
    its = _Room(resource, waiting).due()
    return tuple(it for it in its if it.devices and it.uid not in waiting.refused)


def any_promised(resource: str, waiting: WaitingPods) -> bool:
    """Whether a scheduler promised something of the resource to any of the pods."""
    room = _Room(resource, waiting)
    return any(room.of(pod.uid) for pod in waiting.candidates if not pod.over)


def suspect(found: Attribution, resource: str, count: int, waiting: WaitingPods) -> str:
    """The uid of the pod that is refused most likely with this request; empty where none is known."""
    if found.claim is not None:
        return found.claim.uid
    if found.elsewhere and not found.unclaimed:
        return found.elsewhere[0].uid
    return next((pod.uid for pod, _ in _Room(resource, waiting).pods(count)), "")


def may_ask(resource: str, count: int, waiting: WaitingPods) -> tuple[str, ...]:
    """The uids of the pods that may ask next for as many IDs: several where nobody knows their order."""
    return tuple(pod.uid for pod, _ in _Room(resource, waiting).may_ask(count))


@dataclass(frozen=True, slots=True)
class NextRequest:
    """Who most likely asks next: its claim, and the cards that it is to get; or the cards of others."""

    claim: Claim | None = None
    cards: tuple[str, ...] = ()
    #: Those that are promised to pods that wait, where the next one has no promise; where its claim names no
    #: card, those that have too little left for it.
    avoid: frozenset[str] = frozenset()


def intended(
    resource: str, count: int, held: Collection[str], free: Collection[str], waiting: WaitingPods
) -> NextRequest:
    """Whose request for `count` IDs comes next. `held`: cards that it has already; `free`: those left."""
    room = _Room(resource, waiting)
    claims, _ = room.asking(count)
    there = {*held, *free}
    for it in claims:
        if not it.devices:
            roomy = frozenset(waiting.roomy(it, count))
            return NextRequest(it, avoid=frozenset(there - roomy) if roomy else frozenset())
        for cards in (it.devices, room.settled(it), room.within_pod(it, {*held})):
            if cards and set(held) <= set(cards) <= there:
                return NextRequest(it, cards)
    return NextRequest(avoid=room.promised())


class _Room:
    """The claims of a resource, each pod's read once and where it is needed."""

    def __init__(self, resource: str, waiting: WaitingPods) -> None:
        self._resource = resource
        self._waiting = waiting
        self._pods = {it.uid: it for it in waiting.candidates}
        self._failed = frozenset(waiting.failed)
        self._claims: dict[str, Sequence[Claim]] = {}
        #: What is wrong with annotations, a sentence each.
        self.wrong: list[str] = []

    def asking(self, count: int) -> tuple[list[Claim], list[str]]:
        """The claims of those that ask for as many IDs, and the pods that do and have none."""
        claims: list[Claim] = []
        others: list[str] = []
        for pod, asking in self.pods(count):
            mine = [it for it in self.of(pod.uid) if it.container in asking]
            claims += mine
            if not (mine or pod.uid in self._waiting.refused):
                others.append(f"{pod.namespace}/{pod.name}")
        named = [it for it in claims if (it.namespace, it.pod) in self._waiting.locked]
        if named:
            first = [*self._before(named, claims), *named]
            # No scheduler chose for who names no card, and none takes a lock for it.
            claims = [*first, *(it for it in claims if not it.devices and it not in first)]
        if claims and not self._failed.isdisjoint(claims[0].devices):
            # Who asks first is refused, rather than given what the next one was promised.
            claims = [it for it in claims if it.uid == claims[0].uid]
        return claims, others

    def _before(self, named: Sequence[Claim], claims: Sequence[Claim]) -> list[Claim]:
        """Those of whom the kubelet heard before the pod that the lock names.

        koord-scheduler may bind two pods at once (v1.8.0, seen 3 ms apart): the lock then names the last one.
        """
        turn = min(self._turn(self._pods[it.uid]) for it in named)
        waiting = (it for it in claims if it.uid not in self._waiting.refused)
        known = (it for it in waiting if it.uid in self._waiting.found or self._pods[it.uid].appeared)
        return [it for it in known if self._turn(self._pods[it.uid]) < turn]

    def pods(self, count: int) -> Iterator[tuple[Candidate, frozenset[str]]]:
        """The pods with the containers that ask for as many IDs; who most likely asks next comes first."""
        for pod in sorted(self._pods.values(), key=self._order):
            if asking := _asking(pod, self._resource, count, self._waiting.taken):
                yield pod, asking

    def askers(self, count: int) -> Iterator[Claim | None]:
        """What each container was promised that may ask as well as the first one."""
        for pod, asking in self.may_ask(count):
            claims = {it.container: it for it in self.of(pod.uid)}
            yield from (claims.get(name) for name in sorted(asking))

    def may_ask(self, count: int) -> Iterator[tuple[Candidate, frozenset[str]]]:
        """The pods that may ask as well as the first one, with the containers that ask for as many IDs.

        Those before it, too, that seem to be refused, where that is a guess: others were of one second.
        """
        first: tuple[object, ...] | None = None
        for pod, asking in self.pods(count):
            turn = self._turn(pod)[:-1]
            first = first or turn
            guess = pod.uid in self._waiting.guessed or self._is_order_unknown()
            if turn == first or (turn < first and guess):
                yield pod, asking

    def _is_order_unknown(self) -> bool:
        """Whether the kubelet, as it began, found some of one second: who was refused since is a guess."""
        its = (it for it in self._pods.values() if it.uid in self._waiting.found and (it.pending or it.over))
        seconds = [it.created for it in its]
        return len(set(seconds)) < len(seconds)

    def of(self, uid: str) -> Sequence[Claim]:
        """All claims of a pod."""
        if uid not in self._claims:
            pod, its = self._pods.get(uid), self._waiting
            # Only a scheduler can have written on the Node, whatever the pod says of who bound it.
            if pod and (pod.namespace, pod.name) in its.locked:
                pod = replace(pod, scheduler="")
            found = (
                remembered_claims.claims(pod, self._resource, its.dialects, its.devices, self.wrong)
                if pod
                else ()
            )
            self._claims[uid] = [it for it in found if it.uid == uid]
        return self._claims[uid]

    def within_pod(self, claim: Claim, wanted: Collection[str]) -> tuple[str, ...]:
        """As many cards of its pod as it claims, those that are wanted first; none where they are not.

        Which container gets which card of its pod is not the scheduler's word, and an init container's go to
        any of those after it: shares of one size change hands.
        """
        same = (it for it in self.of(claim.uid) if it.parameters == claim.parameters)
        its = [card for it in same for card in it.devices]
        if not set(its).issuperset(wanted) or len(wanted) > len(claim.devices):
            return ()
        rest = [it for it in dict.fromkeys((*claim.devices, *its)) if it not in wanted]
        return (*wanted, *rest[: len(claim.devices) - len(wanted)])

    def settled(self, claim: Claim) -> tuple[str, ...]:
        """The cards that are left for it where others, who ask for the like, got its own."""
        passed: set[str] = set()
        cards = [self._left(card, claim.uid, passed) for card in claim.devices]
        return () if None in cards else tuple(it for it in cards if it is not None)

    def _left(self, card: str, uid: str, passed: set[str]) -> str | None:
        """The card at the end of the chain of who has whose; no two chains pass the same one."""
        holders = self._waiting.holders
        while (holder := holders.get(card, uid)) != uid:
            promised = (one for it in self.of(holder) for one in it.devices)
            ways = (it for it in promised if holders.get(it) not in (holder, uid) and it not in passed)
            if (after := next(ways, None)) is None:
                return None
            passed.add(after)
            card = after
        return card

    def promised(self) -> frozenset[str]:
        """The cards that pods that wait are to get."""
        return frozenset(card for it in self.due() for card in it.devices)

    def due(self) -> Iterator[Claim]:
        """The claims of containers that have nothing of the resource yet."""
        for pod in self._pods.values():
            if pod.waits and any(self._resource in it.limits for it in pod.containers):
                its = self.of(pod.uid)
                yield from (it for it in its if (pod.uid, it.container) not in self._waiting.taken)

    def _order(self, pod: Candidate) -> tuple[object, ...]:
        return pod.uid in self._waiting.refused, *self._turn(pod)

    def _turn(self, pod: Candidate) -> tuple[bool, int, float, bool, str]:
        """A kubelet that starts takes those that it finds by their age (kubelet.go, HandlePodAdditions).

        Of those of one second it takes any; it serves all containers of one before it takes the next. The uid
        says nothing of the order.
        """
        found = pod.uid in self._waiting.found
        begun = any((pod.uid, it.name) in self._waiting.taken for it in pod.containers)
        return not found, 0 if found else pod.appeared, pod.created, not begun, pod.uid


def waiting(
    resource: str, count: int, candidates: Iterable[Candidate], taken: Collection[Place]
) -> tuple[Candidate, ...]:
    """The pods with a container that asks for exactly as many IDs and has none of the resource yet."""
    return tuple(it for it in candidates if _asking(it, resource, count, taken))


def _asking(pod: Candidate, resource: str, count: int, taken: Collection[Place]) -> frozenset[str]:
    if not pod.waits:
        return frozenset()
    return frozenset(
        it.name
        for it in pod.containers
        if it.limits.get(resource) == count and (pod.uid, it.name) not in taken
    )


def heard(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], devices: Cards
) -> tuple[Sequence[Claim], Sequence[str]]:
    """The claims of a pod; where it has none, what is wrong with its annotations, a sentence each."""
    wrong: list[str] = []
    found = remembered_claims.claims(pod, resource, dialects, devices, wrong)
    return (found, ()) if found else ((), tuple(wrong))


def _doubt(fitting: Sequence[Claim], others: Sequence[str]) -> str:
    if others:
        return f"{others[0]} asks for as much and has no claim"
    return f"one of {len(fitting)} claims that fit" if len(fitting) > 1 else ""


def promised(
    resource: str, pod: Candidate, container: str, dialects: Sequence[Dialect], devices: Cards
) -> Claim | None:
    """The claim of a container that is known to be the one, as its pod says it now."""
    found = () if pod.over else remembered_claims.claims(pod, resource, dialects, devices, [])
    return next((it for it in found if _place(it) == (pod.uid, container)), None)


def exchanged(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer],
    promise: Callable[[Allocation, CheckpointAnswer], Claim | None],
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


def places(
    allocations: Iterable[Allocation], resource: str, pods: Iterable[Candidate] = ()
) -> frozenset[Place]:
    """The containers that have an allocation of the resource, as the kubelet or else a claim says.

    Whom PodResources alone shows has no uid: it is the pod of its name, if that was there then.
    """
    its = [it for it in allocations if it.resource == resource]
    known = {it.place for it in its if it.place is not None}
    shown = [(it.owner, it.since) for it in its if it.place is None and it.owner and it.owner.pod]
    if shown:
        known |= {
            (pod.uid, owner.container)
            for pod in pods
            for owner, since in shown
            if (owner.namespace, owner.pod) == (pod.namespace, pod.name) and pod.created <= since
        }
    return frozenset(known)


def starting(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer] | None,
    resource: str,
    ids: Iterable[str],
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
