"""The claims of waiting pods, in the order in which the kubelet takes the pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from agent.core.allocation.container_allocations import ContainerKey, container_of
from agent.core.attribution import claim_reading
from agent.core.attribution.waiting_pods import WaitingPods, asking_containers
from agent.scheduler_api.candidate import Candidate
from agent.scheduler_api.claims import Claim


class WaitingClaims:
    """The claims on a resource. The annotations of a pod are read when its claims are first needed."""

    def __init__(self, resource: str, waiting: WaitingPods) -> None:
        self._resource = resource
        self._waiting = waiting
        self._pods = waiting.candidates.by_uid
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
        resource, taken, pods = self._resource, self._waiting.taken, self._waiting.candidates.waiting
        known = ((pod, asking_containers(pod, resource, count, taken)) for pod in pods)
        yield from sorted((it for it in known if it[1]), key=lambda it: self._order(it[0]))

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
            if turn == first or (turn < first and self._may_be_refused_wrongly(pod)):
                yield pod, asking

    def _may_be_refused_wrongly(self, pod: Candidate) -> bool:
        """Whether another pod than this one may have been refused.

        Pods of one second that waited at the kubelet's start have no known order.
        """
        if pod.uid in self._waiting.guessed:
            return True
        waited = (self._pods.get(uid) for uid in self._waiting.pods_at_kubelet_start)
        seconds = [it.created for it in waited if it is not None and (it.pending or it.over)]
        return len(set(seconds)) < len(seconds)

    def claims_of_pod(self, uid: str) -> Sequence[Claim]:
        """All claims of a pod. A container that has the card of an equal claim left its own card to it."""
        if uid not in self._claims:
            read = [it for it in self._read_claims(self._pods.get(uid)) if it.uid == uid]
            self._claims[uid] = _swapped_within_pod(read, self._waiting.cards_of_container)
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

    def cards_after_swaps(self, claim: Claim) -> tuple[str, ...]:
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
        for pod in self._waiting.candidates.waiting:
            if any(self._resource in it.limits for it in pod.containers):
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


def _swapped_within_pod(
    claims: Sequence[Claim], cards_of_container: Callable[[ContainerKey], frozenset[str]]
) -> Sequence[Claim]:
    """The claims of a pod, where containers with equal claims may have got each other's cards."""
    has = {it.container: cards_of_container(container_of(it)) for it in claims}
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
