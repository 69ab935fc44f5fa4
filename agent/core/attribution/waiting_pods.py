"""Pod attribution: matches waiting pods to a request, which does not name its pod. Pure.

The kubelet's checkpoint shows later which pod sent the request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.core.allocation.holder_texts import claims_on_cards
from agent.core.attribution import claim_reading
from agent.core.model import Allocation
from agent.core.reconciling.reconcile_evidence import CheckpointAnswer
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim
from agent.scheduler_api.dialects import Cards, Dialect

#: A container's place: pod uid, container name.
ContainerKey = tuple[str, str]
#: Takes a claim that names no card, and its number of IDs; returns the cards with room, best one first.
FindCardsWithRoom = Callable[[Claim, int], Sequence[str]]


def _no_cards(claim: Claim, count: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """The pods that may ask for a resource, with all that decides which pod asks next."""

    candidates: Sequence[Candidate]
    dialects: Sequence[Dialect]
    #: The vendor's cards.
    devices: Cards
    #: The containers that have an allocation of the resource.
    taken: Collection[ContainerKey] = ()
    #: Card to the uid of the pod that has the whole card.
    holders: Mapping[str, str] = field(default_factory=dict)
    #: (namespace, name) of the pods that schedulers' locks of this node name.
    locked: Collection[tuple[str, str]] = ()
    #: Cards that new pods cannot get now, for instance because they failed after they were promised.
    failed: Collection[str] = ()
    #: The uids of pods that still seem to wait, but were most likely refused. They come last.
    refused: Collection[str] = ()
    #: The uids of pods that waited when the kubelet started. The kubelet takes them first, oldest first.
    pods_at_kubelet_start: Collection[str] = ()
    #: Finds the cards for a claim that names no card; no cards where that is not known.
    find_cards_with_room: FindCardsWithRoom = _no_cards
    #: The pods of `refused` where another pod may have been refused instead.
    guessed: Collection[str] = ()
    #: The cards of containers that have an allocation of the resource and a known pod.
    cards_of_containers: Mapping[ContainerKey, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attribution:
    """The claim that is most likely behind a request.

    `why_uncertain` says why it may be another claim, or why none is known.
    """

    claim: Claim | None = None
    why_uncertain: str = ""
    #: Claims on other cards for the same number of IDs, in the order of their pods. Without `claim` all such
    #: claims. Where `claim` names no card, these are the claims of the pods before its pod.
    elsewhere: tuple[Claim, ...] = ()
    #: Whether a pod without any claim waits for the same number of IDs.
    unclaimed: bool = False
    #: Where the claim names no card: the other claims without a card that the request may be for.
    alike: tuple[Claim, ...] = ()
    #: The claims of the containers that the kubelet may ask for now. Several, where their order is not known.
    #: None stands for a container without a claim.
    possible_claims: tuple[Claim | None, ...] = ()

    def with_room_for(self, claim: Claim) -> tuple[Claim | None, ...]:
        """The claims that need room if this claim is answered: any of their containers may have asked."""
        return self.possible_claims if claim in self.possible_claims else (claim, *self.possible_claims)


def attribute(resource: str, count: int, cards: Collection[str], waiting: WaitingPods) -> Attribution:
    """The claim behind a request for `count` IDs on these cards.

    Only containers that ask for exactly this number of IDs count. The pod that the kubelet heard of first
    comes first, or else the oldest pod. Of the pods that the kubelet found at its start, the oldest comes
    first.
    """
    claims = _WaitingClaims(resource, waiting)
    return replace(
        _find_claim(claims, count, cards), possible_claims=tuple(claims.claims_that_may_ask(count))
    )


def _find_claim(waiting: _WaitingClaims, count: int, cards: Collection[str]) -> Attribution:
    wanted = set(cards)
    claims, others = waiting.claims_for_count(count)
    exact = [it for it in claims if not it.devices or set(it.devices) == wanted]
    fitting = exact or [
        replace(claim, devices=other)
        for claim in claims
        for other in (waiting.cards_of_equal_claims(claim, wanted), waiting.cards_after_exchange(claim))
        if other and set(other) == wanted
    ]
    if fitting:
        anywhere = () if fitting[0].devices else tuple(it for it in fitting[1:] if not it.devices)
        before = () if fitting[0].devices else tuple(claims[: claims.index(fitting[0])])
        return Attribution(fitting[0], _explain_uncertainty(fitting, others), before, bool(others), anywhere)
    if claims:
        why = f"claims are on other cards: {claims_on_cards(claims[:3])}"
        return Attribution(None, why, tuple(claims), bool(others))
    without_claim = f"{others[0]} asks for as much and has no claim" if others else ""
    why = "; ".join(waiting.unreadable[:3]) or without_claim or "no pod that waits has a claim"
    return Attribution(None, why, unclaimed=bool(others))


def claims_due(resource: str, waiting: WaitingPods) -> tuple[Claim, ...]:
    """The claims on chosen cards of pods that wait and were not refused."""
    claims = _WaitingClaims(resource, waiting).claims_due()
    return tuple(it for it in claims if it.devices and it.uid not in waiting.refused)


def any_promised(resource: str, waiting: WaitingPods) -> bool:
    """Whether a scheduler promised something of the resource to any of the pods."""
    claims = _WaitingClaims(resource, waiting)
    return any(claims.claims_of_pod(pod.uid) for pod in waiting.candidates if not pod.over)


def most_likely_pod(attribution: Attribution, resource: str, count: int, waiting: WaitingPods) -> str:
    """The uid of the pod that is refused most likely with this request; empty where none is known."""
    if attribution.claim is not None:
        return attribution.claim.uid
    if attribution.elsewhere and not attribution.unclaimed:
        return attribution.elsewhere[0].uid
    return next((pod.uid for pod, _ in _WaitingClaims(resource, waiting).pods(count)), "")


def pods_that_may_ask(resource: str, count: int, waiting: WaitingPods) -> tuple[str, ...]:
    """The uids of the pods that may ask next for this number of IDs; several where no order is known."""
    return tuple(pod.uid for pod, _ in _WaitingClaims(resource, waiting).pods_that_may_ask(count))


@dataclass(frozen=True, slots=True)
class NextRequest:
    """The claim of the pod that most likely asks next, and its cards; or the cards that it should not get."""

    claim: Claim | None = None
    cards: tuple[str, ...] = ()
    #: Without a claim: cards that are promised to waiting pods. With a claim that names no card: cards that
    #: have too little room.
    avoid: frozenset[str] = frozenset()


def next_request(
    resource: str, count: int, held: Collection[str], free: Collection[str], waiting: WaitingPods
) -> NextRequest:
    """The request for `count` IDs that most likely comes next.

    `held`: cards of the IDs that the request must have. `free`: cards of the IDs that the request can have.
    """
    known = _WaitingClaims(resource, waiting)
    claims, _ = known.claims_for_count(count)
    available = {*held, *free}
    for claim in claims:
        if not claim.devices:
            roomy = frozenset(waiting.find_cards_with_room(claim, count))
            return NextRequest(claim, avoid=frozenset(available - roomy) if roomy else frozenset())
        for cards in (
            claim.devices,
            known.cards_after_exchange(claim),
            known.cards_of_equal_claims(claim, {*held}),
        ):
            if cards and set(held) <= set(cards) <= available:
                return NextRequest(claim, cards)
    return NextRequest(avoid=known.promised_cards())


class _WaitingClaims:
    """The claims on a resource. The annotations of a pod are read when its claims are first needed."""

    def __init__(self, resource: str, waiting: WaitingPods) -> None:
        self._resource = resource
        self._waiting = waiting
        self._pods = {it.uid: it for it in waiting.candidates}
        self._failed = frozenset(waiting.failed)
        self._claims: dict[str, Sequence[Claim]] = {}
        #: What is wrong with annotations, a sentence each.
        self.unreadable: list[str] = []

    def claims_for_count(self, count: int) -> tuple[list[Claim], list[str]]:
        """The claims of containers that ask for this number of IDs, and the pods that ask without a claim."""
        claims: list[Claim] = []
        others: list[str] = []
        for pod, asking in self.pods(count):
            own = [it for it in self.claims_of_pod(pod.uid) if it.container in asking]
            claims += own
            if not (own or pod.uid in self._waiting.refused):
                others.append(f"{pod.namespace}/{pod.name}")
        named = [it for it in claims if (it.namespace, it.pod) in self._waiting.locked]
        if named:
            first = [*self._claims_before(named, claims), *named]
            # A claim without cards comes from no scheduler, and no scheduler takes a lock for it.
            claims = [*first, *(it for it in claims if not it.devices and it not in first)]
        if claims and not self._failed.isdisjoint(claims[0].devices):
            # The pod that asks first is refused. The claims of later pods are not for this request.
            claims = [it for it in claims if it.uid == claims[0].uid]
        return claims, others

    def _claims_before(self, named: Sequence[Claim], claims: Sequence[Claim]) -> list[Claim]:
        """The claims of pods that the kubelet heard of before the pod that the lock names.

        koord-scheduler may bind two pods at once (v1.8.0, seen 3 ms apart): the lock then names the last one.
        """
        turn = min(self._turn(self._pods[it.uid]) for it in named)
        waiting = (it for it in claims if it.uid not in self._waiting.refused)
        at_start = self._waiting.pods_at_kubelet_start
        known = (it for it in waiting if it.uid in at_start or self._pods[it.uid].appeared)
        return [it for it in known if self._turn(self._pods[it.uid]) < turn]

    def pods(self, count: int) -> Iterator[tuple[Candidate, frozenset[str]]]:
        """The pods with their containers that ask for this number of IDs, the pod that asks next first."""
        for pod in sorted(self._pods.values(), key=self._order):
            if asking := _asking_containers(pod, self._resource, count, self._waiting.taken):
                yield pod, asking

    def claims_that_may_ask(self, count: int) -> Iterator[Claim | None]:
        """The claim of each container that may ask now; None for a container without a claim."""
        for pod, asking in self.pods_that_may_ask(count):
            claims = {it.container: it for it in self.claims_of_pod(pod.uid)}
            yield from (claims.get(name) for name in sorted(asking))

    def pods_that_may_ask(self, count: int) -> Iterator[tuple[Candidate, frozenset[str]]]:
        """The pods that may ask now, with their containers that ask for this number of IDs.

        These are the first pod and the pods that the kubelet heard of in the same second: their order is not
        known. A pod that seems to be refused is among them where that is a guess.
        """
        first: tuple[object, ...] | None = None
        for pod, asking in self.pods(count):
            turn = self._turn(pod)[:-1]
            first = first or turn
            guess = pod.uid in self._waiting.guessed or self._is_order_unknown()
            if turn == first or (turn < first and guess):
                yield pod, asking

    def _is_order_unknown(self) -> bool:
        """Whether pods of one second waited at the kubelet's start: which one was refused is a guess then."""
        waited = (it for it in self._pods.values() if it.uid in self._waiting.pods_at_kubelet_start)
        seconds = [pod.created for pod in waited if pod.pending or pod.over]
        return len(set(seconds)) < len(seconds)

    def claims_of_pod(self, uid: str) -> Sequence[Claim]:
        """All claims of a pod. A container that has the card of an equal claim left its own card to it."""
        if uid not in self._claims:
            read = [it for it in self._read_claims(self._pods.get(uid)) if it.uid == uid]
            self._claims[uid] = _exchanged_within_pod(read, self._waiting.cards_of_containers)
        return self._claims[uid]

    def _read_claims(self, pod: Candidate | None) -> Sequence[Claim]:
        waiting = self._waiting
        if pod is None:
            return ()
        # Only a scheduler writes a lock on the Node, whatever scheduler the pod names.
        if (pod.namespace, pod.name) in waiting.locked:
            pod = replace(pod, scheduler="")
        return claim_reading.claims(pod, self._resource, waiting.dialects, waiting.devices, self.unreadable)

    def cards_of_equal_claims(self, claim: Claim, wanted: Collection[str]) -> tuple[str, ...]:
        """As many cards as the claim names, out of those of all equal claims of its pod; wanted cards first.

        No cards where the wanted ones are not among them. A scheduler does not say which container gets which
        card of its pod, and the cards of an init container go to any container after it.
        """
        same = (it for it in self.claims_of_pod(claim.uid) if it.parameters == claim.parameters)
        cards = [card for equal in same for card in equal.devices]
        if not self._failed.isdisjoint(cards):
            return ()  # a container of the pod is refused, and no other one may have its card for that
        if not set(cards).issuperset(wanted) or len(wanted) > len(claim.devices):
            return ()
        rest = [it for it in dict.fromkeys((*claim.devices, *cards)) if it not in wanted]
        return (*wanted, *rest[: len(claim.devices) - len(wanted)])

    def cards_after_exchange(self, claim: Claim) -> tuple[str, ...]:
        """The cards that other pods left for the claim, where they have its cards; none where none is left.

        Equal pods may have got each other's cards. If pod A was promised c0 and has c1, and c1 was promised
        to B, then c0 is left for B.
        """
        passed: set[str] = set()
        cards = [self._free_card_after(card, claim.uid, passed) for card in claim.devices]
        return () if None in cards else tuple(it for it in cards if it is not None)

    def _free_card_after(self, card: str, uid: str, passed: set[str]) -> str | None:
        """Go from a held card to a card that was promised to its holder, until a card is free.

        `passed`: cards of other chains, which are not passed again. None where no free card is reached.
        """
        holders = self._waiting.holders
        while (holder := holders.get(card, uid)) != uid:
            promised = (other for claim in self.claims_of_pod(holder) for other in claim.devices)
            free = (it for it in promised if holders.get(it) not in (holder, uid) and it not in passed)
            if (after := next(free, None)) is None:
                return None
            passed.add(after)
            card = after
        return card

    def promised_cards(self) -> frozenset[str]:
        """The cards that waiting pods were promised."""
        return frozenset(card for claim in self.claims_due() for card in claim.devices)

    def claims_due(self) -> Iterator[Claim]:
        """The claims of containers of waiting pods that have no allocation of the resource yet."""
        for pod in self._pods.values():
            if pod.waits and any(self._resource in it.limits for it in pod.containers):
                claims = self.claims_of_pod(pod.uid)
                yield from (it for it in claims if (pod.uid, it.container) not in self._waiting.taken)

    def _order(self, pod: Candidate) -> tuple[object, ...]:
        return pod.uid in self._waiting.refused, *self._turn(pod)

    def _turn(self, pod: Candidate) -> tuple[bool, int, float, bool, str]:
        """The sort key for the order in which the kubelet takes pods. The uid only makes the order stable.

        A kubelet that starts takes the waiting pods by their age (kubelet.go, HandlePodAdditions), and
        pods of one second in any order. It serves all containers of one pod before it takes the next pod.
        """
        at_start = pod.uid in self._waiting.pods_at_kubelet_start
        begun = any((pod.uid, it.name) in self._waiting.taken for it in pod.containers)
        return not at_start, 0 if at_start else pod.appeared, pod.created, not begun, pod.uid


def waiting_for(
    resource: str, count: int, candidates: Iterable[Candidate], taken: Collection[ContainerKey]
) -> tuple[Candidate, ...]:
    """The pods with a container that asks for exactly this number of IDs and has no allocation yet."""
    return tuple(it for it in candidates if _asking_containers(it, resource, count, taken))


def _asking_containers(
    pod: Candidate, resource: str, count: int, taken: Collection[ContainerKey]
) -> frozenset[str]:
    """The containers of the pod that wait for exactly this number of IDs."""
    if not pod.waits:
        return frozenset()
    return frozenset(
        container.name
        for container in pod.containers
        if container.limits.get(resource) == count and (pod.uid, container.name) not in taken
    )


def read_claims(
    pod: Candidate, resource: str, dialects: Sequence[Dialect], devices: Cards
) -> tuple[Sequence[Claim], Sequence[str]]:
    """The claims of a pod; without claims, a sentence for each thing that is wrong in its annotations."""
    wrong: list[str] = []
    claims = claim_reading.claims(pod, resource, dialects, devices, wrong)
    return (claims, ()) if claims else ((), tuple(wrong))


def _explain_uncertainty(fitting: Sequence[Claim], others: Sequence[str]) -> str:
    if others:
        return f"{others[0]} asks for as much and has no claim"
    return f"one of {len(fitting)} claims that fit" if len(fitting) > 1 else ""


def promised_claim(
    resource: str, pod: Candidate, container: str, dialects: Sequence[Dialect], devices: Cards
) -> Claim | None:
    """The claim of this container, as its pod says now."""
    claims = () if pod.over else claim_reading.claims(pod, resource, dialects, devices, [])
    return next((it for it in claims if _container_key(it) == (pod.uid, container)), None)


def exchange_claims(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer],
    promise: Callable[[Allocation, CheckpointAnswer], Claim | None],
) -> dict[str, Claim | None]:
    """Allocation to its new claim, for the claim swaps that the kubelet's answers ask for.

    An allocation gets the claim of the container that the kubelet gave it to. An allocation that loses its
    claim, and that the kubelet has given to no container yet, gets the claim that is left over. `promise`
    finds a claim that no allocation has. None: nothing was promised.
    """
    known = {it.id: it for it in allocations}
    claimed = [(it.resource, it.claim, it.id) for it in known.values() if it.claim is not None]
    with_claim = {(resource, _container_key(claim)): name for resource, claim, name in claimed}
    takers: dict[str, str] = {}
    after: dict[str, Claim | None] = {}
    for answer in granted:
        if (allocation := known.get(answer.allocation)) is None:
            continue
        giver = with_claim.get((allocation.resource, (answer.uid, answer.container)))
        after[allocation.id] = promise(allocation, answer) if giver is None else known[giver].claim
        if giver is not None:
            takers[giver] = allocation.id
    for name in takers.keys() - after.keys():
        after[name] = known[_end_of_chain(name, takers)].claim
    return {name: claim for name, claim in after.items() if claim != known[name].claim}


def _end_of_chain(name: str, takers: Mapping[str, str]) -> str:
    """The allocation at the end of a chain in which each claim went to the next allocation.

    `takers`: allocation to the allocation that gets its claim. The claim of the last one is left over.
    """
    for _ in takers:  # with two allocations of one claim the chain may be a circle
        if name not in takers:
            break
        name = takers[name]
    return name


def _exchanged_within_pod(
    claims: Sequence[Claim], cards_of_containers: Mapping[ContainerKey, frozenset[str]]
) -> Sequence[Claim]:
    """The claims of a pod, where containers with equal claims may have got each other's cards."""
    has = {it.container: cards_of_containers.get(_container_key(it), frozenset()) for it in claims}
    after = {it.container: it for it in claims}
    for claim in after.values():
        cards = has[claim.container]
        if not cards or not claim.devices or cards == {*claim.devices}:
            continue
        equal = (it for it in after.values() if it.parameters == claim.parameters and not has[it.container])
        if (other := next((it for it in equal if cards == {*it.devices}), None)) is not None:
            after |= {
                claim.container: replace(claim, devices=other.devices),
                other.container: replace(other, devices=claim.devices),
            }
    return tuple(after[it.container] for it in claims)


def _container_key(claim: Claim) -> ContainerKey:
    return claim.uid, claim.container


def containers_with_allocation(
    allocations: Iterable[Allocation], resource: str, pods: Iterable[Candidate] = ()
) -> frozenset[ContainerKey]:
    """The containers that have an allocation of the resource, as the kubelet or else a claim says.

    An owner that PodResources alone shows has no uid. It is the pod of that name, if that pod existed then.
    """
    of_resource = [it for it in allocations if it.resource == resource]
    known = {it.container_key for it in of_resource if it.container_key is not None}
    without_uid = [it for it in of_resource if it.container_key is None]
    shown = [(it.owner, it.since) for it in without_uid if it.owner and it.owner.pod]
    if shown:
        known |= {
            (pod.uid, owner.container)
            for pod in pods
            for owner, since in shown
            if (owner.namespace, owner.pod) == (pod.namespace, pod.name) and pod.created <= since
        }
    return frozenset(known)


def starting_allocations(
    allocations: Iterable[Allocation],
    granted: Iterable[CheckpointAnswer] | None,
    resource: str,
    ids: Iterable[str],
) -> list[Allocation]:
    """The allocations in use behind a container that starts with these IDs.

    There may be several, all of one pod, because an init container passes its IDs on. Without the kubelet's
    checkpoint the newest allocation is meant. The same holds where the checkpoint lacks these IDs, because
    the kubelet may write the file twice at once, and the older content last.
    """
    wanted = frozenset(ids)
    fitting = [it for it in allocations if it.resource == resource and frozenset(it.ids) == wanted]
    answers = tuple(granted or ())
    known = {answer.allocation for answer in answers}
    lags = not any(it.resource == resource and frozenset(it.ids) == wanted for it in answers)
    return [it for it in fitting if it.id in known] or (fitting[-1:] if lags else [])
