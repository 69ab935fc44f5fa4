"""What schedulers promised, as of one moment: who asks, which cards, and whether there is room. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import floor
from operator import itemgetter

from agent.core.allocation import cards_with_room, scheduler_choice
from agent.core.allocation.admission import Admitted, Scene
from agent.core.allocation.card_amounts import HAIR, CardAmounts, fit, measures, of_init
from agent.core.allocation.pod_attribution import (
    Attribution,
    WaitingPods,
    any_promised,
    attribute,
    due,
    exchanged,
    may_ask,
    places,
    promised,
    suspect,
    waiting,
)
from agent.core.allocation.preferred_allocation import prefer
from agent.core.allocation.reconcile_evidence import CheckpointAnswer
from agent.core.devices.dynamic_modes import holder_in_other_mode
from agent.core.devices.memory_units import counted_in, on_one_card
from agent.core.errors import (
    AgentError,
    InsufficientMemory,
    InsufficientShares,
    NotPromised,
    PromisedElsewhere,
    PromisedMoreCards,
)
from agent.core.model import Allocation, AllocationSource, NodeSnapshot, Resource
from agent.scheduler_api import Candidate, Cards, Claim, Dialect, Scheduler, common_dialects
from agent.vendor_api.agent import ContainerEdits, Device, Grant, Request, Vendor
from agent.vendor_api.text import shorten

#: What is said of the cards that were chosen instead.
SAID = 3
#: Why a request cannot be had on the cards of its IDs.
FILLED = "which shares with IDs of other cards have filled"
ON_ONE = "and what a container gets of it lies on one"


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """The claim of a request, and the cards that it gets instead of those of its IDs."""

    claim: Claim | None = None
    instead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Promises:
    """The scene, and who has what. `refused`: uids of pods whose status may not show yet that they were;
    `guessed`: those of them of which another pod may have been refused instead.
    """

    scene: Scene
    in_use: Sequence[Allocation]
    refused: frozenset[str] = frozenset()
    guessed: frozenset[str] = frozenset()

    # Who asks

    def asks(self, resource: str, count: int) -> bool:
        """Whether a pod is known that waits for as many."""
        taken = places(self.in_use, resource, self.scene.candidates)
        pods = waiting(resource, count, self.scene.candidates, taken)
        return any(it.uid not in self.refused for it in pods)

    def is_promised(self, resource: str, count: int) -> bool:
        """Whether a pod is known that was promised as many."""
        found = attribute(resource, count, (), self._waiting(resource))
        claims = (found.claim, *found.elsewhere)
        return any(it is not None and it.uid not in self.refused for it in claims)

    def suspect(self, resource: str, ids: Collection[str]) -> str:
        """The uid of the pod that a refused request most likely came from; empty where none is known."""
        planned = self.scene.plan.get(resource)
        if planned is None or planned.vendor not in self.scene.vendors:
            return ""
        unique = tuple(dict.fromkeys(ids))
        found = self._whose(planned, unique, self._waiting(resource))
        return suspect(found, resource, len(unique), self._waiting(resource))

    def suspects(self, resource: str, ids: Collection[str]) -> tuple[str, ...]:
        """The uids of the pods that a refused request may have come from, the most likely one first."""
        if not (first := self.suspect(resource, ids)):
            return ()
        others = may_ask(resource, len(set(ids)), self._waiting(resource))
        return tuple(dict.fromkeys((first, *others)))

    def preferred(
        self, planned: Resource, available: Sequence[str], required: Sequence[str], size: int
    ) -> list[str]:
        """The IDs to take; of a card that went to another resource a moment ago, or that is no more given out
        like that, and those that pods have which are there, where no others do.
        """
        had = self._had(planned, available)
        gone = self._gone(planned) | planned.former_ids | had
        others = [one for one in available if one not in gone or one in required] if gone else available
        free = [one for one in available if one not in had] if had else available
        chosen = self._among(planned, others, free, required, size)
        return chosen if chosen or not gone else self._among(planned, available, available, required, size)

    def _among(
        self,
        planned: Resource,
        among: Sequence[str],
        free: Sequence[str],
        required: Sequence[str],
        size: int,
    ) -> list[str]:
        """`free`: the IDs that nobody has."""
        topology, room = self.scene.topology, self._room(planned, free)
        if planned.vendor not in self.scene.vendors or planned.rule.placement == "local":
            return prefer(planned, among, required, size, topology, room)
        waiting = self._waiting(planned.name, free)
        return scheduler_choice.steered(planned, among, required, size, topology, waiting, room)

    def _gone(self, planned: Resource) -> frozenset[str]:
        """The IDs of cards that another resource has, and of which neither plan nor kubelet has heard."""
        if not planned.other_modes:
            return frozenset()
        theirs = [it for it in self.in_use if it.resource in planned.other_modes]
        cards = (it for it in planned.cards if it.healthy and holder_in_other_mode(planned, it.uuid, theirs))
        return frozenset(one for card in cards for one in card)

    def _had(self, planned: Resource, available: Collection[str]) -> frozenset[str]:
        """Those of the IDs that pods have which are there: the kubelet errs, and their Allocate is refused.

        None of whole cards where a scheduler chooses: no other card would do.
        """
        if planned.rule.sharing.kind == "exclusive" and planned.rule.placement != "local":
            return frozenset()
        there = self.scene.alive
        its = (it for it in self.in_use if it.resource == planned.name and it.place is not None)
        had = chain.from_iterable(it.ids for it in its if it.place and it.place[0] in there)
        return frozenset(available).intersection(had) if there else frozenset()

    def _room(self, planned: Resource, free: Collection[str]) -> Mapping[str, int] | None:
        """Card to how much memory is left by the ledger, less those whose IDs the kubelet gives out now."""
        if not on_one_card(planned.rule.sharing):
            return None
        now = frozenset(free)
        others = (it for it in self.in_use if it.resource == planned.name and now.isdisjoint(it.ids))
        return scheduler_choice.free_on(planned, others)

    def _waiting(self, resource: str, free: Collection[str] = ()) -> WaitingPods:
        """`free`: IDs that the kubelet gives out now; the ledger may have who had them for a while yet."""
        planned, scene = self.scene.plan[resource], self.scene
        is_whole = planned.rule.sharing.kind == "exclusive"
        now = frozenset(free) if is_whole else frozenset()
        its = (it for it in self.in_use if now.isdisjoint(it.ids))
        return WaitingPods(
            scene.candidates,
            self._dialects(planned),
            by_minor(scene.snapshot, planned.vendor),
            places(self.in_use, resource, scene.candidates),
            scheduler_choice.holders(its, resource) if is_whole else {},
            scene.locked,
            {it.uuid for it in planned.cards if not it.healthy},
            self.refused,
            scene.found,
            partial(self._roomy, planned),
            self.guessed,
        )

    # What it gets

    def choice(self, request: Admitted, others: Sequence[Allocation]) -> PlacementChoice:
        """The claim of a request, and its cards. `others`: the resource's allocations that take room.

        Raises:
            PromisedElsewhere: A scheduler chose another card, which cannot be had by these IDs.
            PromisedMoreCards: A scheduler chose more cards than there are IDs.
            InsufficientMemory, InsufficientShares: No single card has as much.
            NotPromised: A scheduler was to choose, and did not.
        """
        planned, ids, scene = request.resource, request.ids, self.scene
        resource, given = planned.name, request.uuids
        others = self._in_the_way(planned, others)
        found = self._attributed(resource, ids)
        by_amount = cards_with_room.knows_room(scene.vendors[planned.vendor], planned)
        if found.claim is not None and by_amount and not found.claim.devices:
            return self._on_a_card_with_room(planned, found, ids, given, others)
        if found.claim is not None:
            return self._on_its_card(planned, found, ids, given, others)
        if planned.rule.placement != "local":
            if found.elsewhere and (planned.rule.placement == "claim" or not found.unclaimed):
                return self._elsewhere(planned, found, ids, given, others)
            if planned.rule.placement == "claim":
                raise NotPromised(resource, found.doubt, _one_that_chooses(scene.schedulers))
        if by_amount:  # what its pod asks for is not known yet: where most is left it can be made so
            its = self._cards_with_room(planned, len(ids), others, given)({})
            return PlacementChoice(None, () if {*given} == {*its[: len(ids)]} else its[: len(ids)])
        return self._by_its_ids(planned, found, ids, given, others)

    def is_chosen_for(self, resource: str) -> bool:
        """Whether a scheduler promised cards of the resource to some pod, which waits or has them."""
        return any_promised(resource, self._waiting(resource))

    def _attributed(self, resource: str, ids: Sequence[str]) -> Attribution:
        planned, scene = self.scene.plan[resource], self.scene
        if not (scene.candidates and self._dialects(planned)):
            why = f"no pod is seen: {scene.unseen}" if scene.unseen else "no pod of this node is known"
            return Attribution(doubt=why)
        found = self._whose(planned, ids, self._waiting(resource, ids))
        cards = [it.devices for it in found.askers if it is not None and it.devices]
        # What may still be moved once it is known who asked is given to the first.
        moves = self._names_no_card(scene.vendors[planned.vendor], resource, ids, cards)
        return replace(found, askers=()) if moves else found

    def _whose(self, planned: Resource, ids: Sequence[str], waiting: WaitingPods) -> Attribution:
        """The claim behind a request for these IDs; where its turn says who asks, that one's."""
        cards = {card.uuid for card in map(planned.card_of, ids) if card is not None}
        found = attribute(planned.name, len(ids), cards, waiting)
        if not all(map(planned.shares, ids)) or not (asking := self._asks_instead(found)):
            return found
        # The IDs of its own card could not be had; what another one was promised is not its own.
        names = ", ".join(f"{it.namespace}/{it.pod} on {', '.join(it.devices)}" for it in asking)
        doubt = f"claims are on other cards: {names}"
        return replace(found, claim=None, doubt=doubt, elsewhere=asking, unclaimed=False)

    def _asks_instead(self, found: Attribution) -> tuple[Claim, ...]:
        """The claims of who asks, where its turn says so and the cards of the IDs are not its own.

        Several containers of one pod may ask for as much.
        """
        asking = tuple(it for it in found.askers if it is not None and it.devices)
        if len({it and it.uid for it in found.askers}) != 1 or not asking:
            return ()
        uid = asking[0].uid
        if found.claim is not None and (not found.claim.devices or found.claim.uid == uid):
            return ()
        if found.claim is None and all(it.uid != uid for it in found.elsewhere):
            return ()
        heard = {it.uid for it in self.scene.candidates if it.appeared} - self.scene.found - self.refused
        return asking if uid in heard else ()

    def _on_its_card(
        self,
        planned: Resource,
        found: Attribution,
        ids: Sequence[str],
        given: Sequence[str],
        others: Sequence[Allocation],
    ) -> PlacementChoice:
        claim = found.claim
        assert claim is not None
        if not claim.devices:
            return PlacementChoice(claim, self._with_room(planned, ids, given, others))
        if on_one_card(planned.rule.sharing) and len(given) > 1:
            doubt = f"{claim.namespace}/{claim.pod} is promised {len(given)} cards, {ON_ONE}"
            raise PromisedElsewhere(planned.name, given, doubt)
        askers = found.with_room_for(claim)
        amounts = self._amounts(planned)
        if scheduler_choice.is_as_counted(planned, ids, others, amounts=amounts, claims=askers):
            return PlacementChoice(claim)
        for it in askers:  # whoever asks of those that any of them may be
            if it is not None and self._has_room(planned, it.devices, len(ids), others, askers):
                return PlacementChoice(it, it.devices)
        if left := self._left_for(planned, claim, len(ids), others, askers):
            return PlacementChoice(claim, left)
        doubt = f"{claim.namespace}/{claim.pod} is promised that one, {self._filled(planned, given, others)}"
        raise PromisedElsewhere(planned.name, given, doubt)

    def _elsewhere(
        self,
        planned: Resource,
        found: Attribution,
        ids: Sequence[str],
        given: Sequence[str],
        others: Sequence[Allocation],
    ) -> PlacementChoice:
        if all(len(it.devices) > len(ids) for it in found.elsewhere):
            its = found.elsewhere[0]
            counts = (it.card_count for it in self._dialects(planned) if it.name == its.dialect)
            count = next(filter(None, counts), "")
            fewer = f"{len(ids)} of {count}" if count else "as few cards"
            raise PromisedMoreCards(planned.name, f"{its.namespace}/{its.pod}", len(ids), its.devices, fewer)
        taken = self._taken(planned, found.elsewhere, others)
        if not all(map(planned.shares, ids)):
            raise PromisedElsewhere(planned.name, given, "; ".join((found.doubt, *taken)))
        for claim in found.elsewhere:
            if self._has_room(planned, claim.devices, len(ids), others, found.with_room_for(claim)):
                return PlacementChoice(claim, claim.devices)
        for claim in found.elsewhere:
            if left := self._left_for(planned, claim, len(ids), others, found.with_room_for(claim)):
                return PlacementChoice(claim, left if {*left} != {*given} else ())
        raise PromisedElsewhere(
            planned.name, given, "; ".join((f"{found.doubt}, which have no room", *taken))
        )

    def _by_its_ids(
        self,
        planned: Resource,
        found: Attribution,
        ids: Sequence[str],
        given: Sequence[str],
        others: Sequence[Allocation],
    ) -> PlacementChoice:
        """No claim is of these cards: a pod without one is taken to ask. Who was promised more may, too."""
        promised = [it for it in found.askers if it is not None and it.devices]
        if not promised or planned.rule.placement == "local":
            return PlacementChoice(None, self._with_room(planned, ids, given, others))
        amounts = self._amounts(planned)
        if scheduler_choice.is_as_counted(planned, ids, others, amounts=amounts, claims=found.askers):
            return PlacementChoice(None)
        for it in promised:
            if self._has_room(planned, it.devices, len(ids), others, found.askers):
                return PlacementChoice(it, it.devices)
        names = ", ".join(f"{it.namespace}/{it.pod} on {', '.join(it.devices)}" for it in promised)
        why = f"{self._filled(planned, given, others)}, and claims are on other cards: {names}"
        raise PromisedElsewhere(planned.name, given, why)

    def _on_a_card_with_room(
        self,
        planned: Resource,
        found: Attribution,
        ids: Sequence[str],
        given: Sequence[str],
        others: Sequence[Allocation],
    ) -> PlacementChoice:
        """The claim says how much of a card, and not of which.

        Raises:
            InsufficientRoom, NotServable: It can be had nowhere, whoever asks.
        """
        assert found.claim is not None
        for claim in found.elsewhere:  # who asks before it; the IDs of its card could not be had
            if self._has_room(planned, claim.devices, len(ids), others, found.with_room_for(claim)):
                return PlacementChoice(claim, claim.devices)
        claims = (found.claim, *found.alike)
        cards = self._cards_with_room(planned, len(ids), others, given)
        claim, its = cards_with_room.first_that_fits(claims, len(ids), cards)
        if len(given) == len(ids) and {*given} <= {*its}:
            return PlacementChoice(claim)
        return PlacementChoice(claim, its[: len(ids)])

    def _cards_with_room(
        self,
        planned: Resource,
        count: int,
        others: Sequence[Allocation],
        first: Collection[str] = (),
    ) -> cards_with_room.Cards:
        """Finds the cards that have left what is asked for, beside what pods that wait were promised there.

        `first`: those that are to be named before others that are as good.
        """
        scene, vendor = self.scene, self.scene.vendors[planned.vendor]
        counted = {uuid for uuid, left in scheduler_choice.free_on(planned, others).items() if left > 0}
        uuids = (card.uuid for card in planned.cards if card.uuid in counted)
        devices = devices_of(scene, sorted(uuids, key=lambda uuid: uuid not in first))
        promised = (
            Grant(Request("", planned.name, it.devices, it.parameters), it.devices)
            for it in due(planned.name, self._waiting(planned.name))
        )
        in_use = (it for it in self.in_use if it.vendor == vendor.name)
        given = [*(Grant(requested(it), it.cards, it.partitions) for it in in_use), *promised]

        def cards(parameters: Mapping[str, str]) -> tuple[str, ...]:
            request = Request("", planned.name, tuple(f"{n}" for n in range(count)), parameters)
            return cards_with_room.cards_with_room(vendor, request, devices, given)

        return cards

    def _roomy(self, planned: Resource, claim: Claim, count: int) -> Sequence[str]:
        """As the card is chosen at Allocate, for GetPreferredAllocation; none where none has room."""
        if not cards_with_room.knows_room(self.scene.vendors[planned.vendor], planned):
            return ()
        others = [it for it in self.in_use if it.resource == planned.name]
        try:
            return self._cards_with_room(planned, count, others)(claim.parameters)
        except AgentError:  # its Allocate says why
            return ()

    def _left_for(
        self,
        planned: Resource,
        claim: Claim,
        count: int,
        others: Sequence[Allocation],
        askers: Sequence[Claim | None],
    ) -> tuple[str, ...]:
        """What those who have its cards were promised of the like and did not get; none where all is taken.

        The kubelet may take equal pods in another order than they were bound.
        """
        passed, look = {*claim.devices}, [*claim.devices]
        for card in look:  # which grows
            for theirs in self._promised_to_those_on(card, count, others):
                if not passed.isdisjoint(theirs):
                    continue
                if self._has_room(planned, theirs, count, others, askers):
                    return theirs
                passed |= {*theirs}
                look += theirs
        return ()

    def _promised_to_those_on(
        self, card: str, count: int, others: Iterable[Allocation]
    ) -> Iterator[tuple[str, ...]]:
        """The cards that were chosen for who has as much on this one."""
        pods = {it.uid: it for it in self.scene.candidates}
        for it in others:
            if card in it.cards and it.place is not None and len(it.ids) == count:
                theirs = self._of(it, pods.get(it.place[0]), it.place[1])
                if theirs is not None and theirs.devices:
                    yield theirs.devices

    def _taken(
        self, planned: Resource, claims: Iterable[Claim], others: Collection[Allocation]
    ) -> Sequence[str]:
        """Why the kubelet may not have given these cards, a sentence each of the first ones."""
        its = dict.fromkeys(uuid for claim in claims for uuid in claim.devices)
        cards = {it.uuid: it for it in planned.cards}
        there = [it for it in self.in_use if it.resource != planned.name or it in others]
        held = [(uuid, it) for it in there for uuid in it.cards if uuid in its]
        found = [f"{shorten(uuid)} is held by {holder(it, planned.name)}" for uuid, it in held]
        unwell = (cards[uuid] for uuid in its if uuid in cards and not cards[uuid].healthy)
        sick = [f"{shorten(it.uuid)} is unhealthy" for it in unwell if not it.mode]
        other = [f"{shorten(uuid)} is not of this resource" for uuid in its if uuid not in cards]
        said = [*sick, *other, *found]
        return [*said[:SAID], f"and {len(said) - SAID} more"] if len(said) > SAID else said

    def _with_room(
        self, planned: Resource, ids: Sequence[str], given: Sequence[str], others: Sequence[Allocation]
    ) -> tuple[str, ...]:
        """The cards that have room instead of those of the IDs; none where those have it.

        Raises:
            PromisedElsewhere: No card has it.
            InsufficientMemory, InsufficientShares: No single card has as much.
        """
        amounts = self._amounts(planned)
        if scheduler_choice.is_as_counted(planned, ids, others, amounts=amounts):
            return ()
        if roomier := scheduler_choice.roomier(planned, len(ids), others, amounts=amounts):
            return roomier
        if not on_one_card(planned.rule.sharing):
            why = f"{self._filled(planned, given, others)}, and no other card has room"
            raise PromisedElsewhere(planned.name, given, why)
        free = scheduler_choice.free_on(planned, others, amounts=amounts)
        largest = max(
            ((uuid, left) for uuid, left in free.items() if left > 0), key=itemgetter(1), default=None
        )
        unit, wanted = counted_in(planned.rule.sharing), len(ids)
        if not unit:
            raise InsufficientShares(planned.name, wanted, largest)
        raise InsufficientMemory(
            planned.name, self.scene.vendors[planned.vendor].offers.insufficient_memory, wanted, unit, largest
        )

    # What there is of it

    def _has_room(
        self,
        planned: Resource,
        uuids: Sequence[str],
        count: int,
        others: Sequence[Allocation],
        claims: Sequence[Claim | None],
        *,
        sick: bool = False,
    ) -> bool:
        amounts = self._amounts(planned)
        return bool(uuids) and scheduler_choice.has_room(
            planned, uuids, count, others, sick=sick, amounts=amounts, claims=claims
        )

    def _filled(self, planned: Resource, uuids: Sequence[str], others: Sequence[Allocation]) -> str:
        """Why these cards have no room."""
        amounts = self._amounts(planned)
        if not any(amounts.is_measured_on(it, others) for it in uuids):
            return FILLED
        fullest = max((amounts.on(it, others) for it in uuids), key=lambda it: it.core + it.memory)
        core, memory = (_percent(1 - it) for it in (fullest.core, fullest.memory))
        return f"which has {core} % of its cores and {memory} % of its memory left"

    def _amounts(self, planned: Resource) -> CardAmounts:
        """How what is promised of the resource's cards is measured."""
        scene = self.scene
        vendor = scene.vendors[planned.vendor]
        memory = {it.uuid: it.memory for it in scene.snapshot.present(vendor.name)}
        return CardAmounts(scene.plan, measures(self._dialects(planned)), memory, *of_init(scene.candidates))

    def _in_the_way(self, planned: Resource, others: Sequence[Allocation]) -> Sequence[Allocation]:
        """What takes room of the resource's cards: its own allocations, and what schedulers gave beside it.

        Of a pod that has ended or is gone its scheduler gives the room away before the kubelet and the ledger
        let go of it; the kubelet, who counts IDs, does not.
        """
        if planned.rule.placement == "local":
            return others
        there = self.scene.alive
        words = (
            it
            for it in self.in_use
            if it.source is AllocationSource.ANNOTATION and it.vendor == planned.vendor
        )
        amounts = self._amounts(planned)
        return [it for it in (*others, *words) if not (there and amounts.is_gone(it, there))]

    def is_kept_by_ended(self, resource: str) -> bool:
        """Whether a pod that has ended or is gone has something of the cards still, by whichever name."""
        planned = self.scene.plan.get(resource)
        there = self.scene.alive
        if planned is None or not there:
            return False
        names = {resource, *planned.other_modes}
        places = (it.place for it in self.in_use if it.resource in names)
        return any(place is not None and place[0] not in there for place in places)

    # Whose it was

    def exchanged(self, granted: Sequence[CheckpointAnswer]) -> dict[str, Claim | None]:
        """The claims that must change hands after what the kubelet did: allocation to its claim."""
        pods = {it.uid: it for it in self.scene.candidates}

        def promise(it: Allocation, grant: CheckpointAnswer) -> Claim | None:
            pod = pods.get(grant.uid)
            claim = self._of(it, pod, grant.container)
            if claim is None or not claim.devices or set(claim.devices) == set(it.cards):
                return claim
            if self.scene.plan[it.resource].rule.placement == "local":
                return None  # where nobody asks schedulers, a promise of one card is not kept on another
            if self.may_move(it, claim.devices):
                return claim
            if _made_with(it) == claim.parameters:  # the kubelet took equal pods in its own order
                return replace(claim, devices=tuple(dict.fromkeys(it.cards)))
            return self._by_limits(it, pod, grant.container) or claim

        return exchanged(self.in_use, granted, promise)

    def astray(self, resource: str, idle: Collection[str]) -> Sequence[tuple[Allocation, tuple[str, ...]]]:
        """Allocations of these that lie on other cards than were chosen for their pods, and the chosen ones.

        Only those that are known by no card in their answer; and where the chosen cards have room for all of
        them, those before being where they are to be.
        """
        planned = self.scene.plan.get(resource)
        vendor = self.scene.vendors.get(planned.vendor) if planned else None
        if planned is None or planned.rule.placement == "local" or not (vendor and vendor.prepares(resource)):
            return ()
        well = {it.uuid for it in planned.cards if it.healthy}
        found = {
            it.id: it.claim.devices
            for it in self.in_use
            if it.id in idle and it.claim is not None and it.claim.devices
            if {*it.claim.devices} != {*it.cards} and well.issuperset(it.claim.devices)
            if self.may_move(it, it.claim.devices)
            if all(holder_in_other_mode(planned, uuid, self.in_use) is None for uuid in it.claim.devices)
        }
        amounts = self._amounts(planned)
        while found:
            after = [replace(it, diverged=found.get(it.id, it.diverged)) for it in self.in_use]
            its = self._in_the_way(planned, [it for it in after if it.resource == resource])
            full = {uuid for cards in found.values() for uuid in cards if not fit(amounts.on(uuid, its))}
            if not full:
                break
            found = {name: cards for name, cards in found.items() if full.isdisjoint(cards)}
        return [(it, found[it.id]) for it in self.in_use if it.id in found]

    def may_move(self, it: Allocation, cards: Sequence[str]) -> bool:
        """Whether an answer of this process is as good for these cards, where its hardware is made again."""
        vendor = self.scene.vendors.get(it.vendor)
        named = vendor is None or not self._names_no_card(vendor, it.resource, it.ids, [it.cards, cards])
        return it.source is AllocationSource.ALLOCATE and not named

    def _names_no_card(
        self, vendor: Vendor, resource: str, ids: Sequence[str], cards: Sequence[Sequence[str]]
    ) -> bool:
        """Whether the answer is the same whichever of these cards it is of, since hardware is made for it."""
        if not vendor.prepares(resource) or not cards:
            return False
        request = Request("", resource, tuple(ids))
        try:
            answers = [vendor.container_edits(devices_of(self.scene, its), request) for its in cards]
        except Exception:  # contributors' code
            return False
        return bool(answers[0].cdi_devices) and all(it == answers[0] for it in answers)

    def of_shown(self, it: Allocation) -> Claim | None:
        """What was promised to whom PodResources alone shows, if that can be so.

        The IDs that it shows do not say on which card a share lies, and our answers cannot be read.
        """
        if it.source is not AllocationSource.POD_RESOURCES or it.claim is not None or it.owner is None:
            return None
        name = (it.owner.namespace, it.owner.pod)
        # The newest of this name: one that is being deleted may be there still.
        pod = next(
            (one for one in reversed(self.scene.candidates) if (one.namespace, one.name) == name), None
        )
        claim = self._of(it, pod, it.owner.container)
        if claim is None or not claim.devices or set(claim.devices) == set(it.cards):
            return claim
        planned = self.scene.plan[it.resource]
        others = [one for one in self.in_use if one.id != it.id]
        shares = planned.rule.placement != "local" and all(map(planned.shares, it.ids))
        if not shares:
            return None
        fits = self._has_room(planned, claim.devices, len(it.ids), others, (claim,), sick=True)
        return claim if fits else None

    def is_unread(self, it: Allocation, grant: CheckpointAnswer) -> bool:
        """Whether what its container asks for is not known, and decides: the kubelet names a pod, unseen yet.

        Where no pod is ever seen, by the config, it is as where no pod asks for anything.
        """
        vendor, planned = self.scene.vendors.get(it.vendor), self.scene.plan.get(it.resource)
        if vendor is None or planned is None or self.scene.unseen or _limits(vendor, planned) is None:
            return False
        if it.claim is not None and (it.claim.uid, it.claim.container) == (grant.uid, grant.container):
            return False
        return all(pod.uid != grant.uid for pod in self.scene.candidates)

    def _of(self, it: Allocation, pod: Candidate | None, container: str) -> Claim | None:
        vendor, planned = self.scene.vendors.get(it.vendor), self.scene.plan.get(it.resource)
        if vendor is None or pod is None or planned is None:
            return None
        cards = by_minor(self.scene.snapshot, vendor.name)
        return promised(it.resource, pod, container, self._dialects(planned), cards)

    def _dialects(self, planned: Resource) -> Sequence[Dialect]:
        return dialects(self.scene.schedulers, self.scene.vendors[planned.vendor], planned)

    def _by_limits(self, it: Allocation, pod: Candidate | None, container: str) -> Claim | None:
        """What its own limits ask for, on whichever card."""
        vendor, planned = self.scene.vendors.get(it.vendor), self.scene.plan.get(it.resource)
        if vendor is None or pod is None or planned is None or (limits := _limits(vendor, planned)) is None:
            return None
        return promised(it.resource, pod, container, [limits], by_minor(self.scene.snapshot, vendor.name))

    def handed(self, it: Allocation, claim: Claim | None) -> Mapping[str, str] | None:
        """What it was answered with, where this claim would have had another answer."""
        was = _made_with(it)
        now = claim.parameters if claim else {}
        return was if was != now and self._answer(it, was) != self._answer(it, now) else None

    def _answer(self, it: Allocation, parameters: Mapping[str, str]) -> ContainerEdits | Mapping[str, str]:
        """What a container gets with these parameters; those themselves where its vendor cannot say."""
        vendor = self.scene.vendors.get(it.vendor)
        if vendor is None:
            return parameters
        devices = devices_of(self.scene, it.cards)
        request = replace(requested(it), parameters=parameters, partitions=it.partitions)
        try:
            return vendor.container_edits(devices, request)
        except Exception:  # contributors' code; what it says here is nobody's answer
            return parameters


def _percent(part: float) -> str:
    """Rounded down: what is too little by a fraction, as schedulers round, must not look like enough."""
    return f"{max(0, floor(1000 * (part + HAIR))) / 10:g}"


def _made_with(it: Allocation) -> Mapping[str, str]:
    """The parameters that it was answered with."""
    return (it.claim.parameters if it.claim else {}) if it.handed is None else it.handed


def holder(it: Allocation, resource: str = "") -> str:
    """Who has it, as people call it; with its resource where that is another one than this."""
    whose = it.owner if it.owner and it.owner.pod else it.claim
    name = f"{whose.namespace}/{whose.pod}" if whose else f"allocation {it.id}"
    if it.source is AllocationSource.ANNOTATION:
        return f"{name}, by its scheduler's word alone"
    return name if it.resource == resource else f"{name} as {it.resource}"


def of_schedulers(schedulers: Sequence[Scheduler], vendor: Vendor, resource: Resource) -> Sequence[Dialect]:
    """The dialects in which schedulers are heard of the resource: the vendor's own first."""
    is_local = resource.rule.placement == "local"
    return vendor.schedulers if is_local else (*vendor.schedulers, *common_dialects(schedulers))


def dialects(schedulers: Sequence[Scheduler], vendor: Vendor, resource: Resource) -> Sequence[Dialect]:
    """Those, and after them what a pod's own limits say."""
    limits = _limits(vendor, resource)
    return (*of_schedulers(schedulers, vendor, resource), *([limits] if limits is not None else []))


def _one_that_chooses(schedulers: Sequence[Scheduler]) -> str:
    """A scheduler that chooses cards, as people would name it; empty where none is registered."""
    its = next((it for it in schedulers if it.program and it.writes), None)
    return f"{its.program}, which writes {its.writes}" if its else ""


def _limits(vendor: Vendor, resource: Resource) -> Dialect | None:
    """How a pod's own limits are read, where a scheduler may choose, and none has to."""
    return vendor.pod_limits if resource.rule.placement == "auto" else None


def by_minor(snapshot: NodeSnapshot, vendor: str) -> Cards:
    """The vendor's cards as schedulers count them; a slice has no number of its own."""
    cards = sorted(snapshot.present(vendor), key=lambda it: (it.minor is None, it.minor or 0))
    return {it.uuid: it.minor if it.parent is None else None for it in cards}


def devices_of(scene: Scene, uuids: Iterable[str]) -> list[Device]:
    """The devices of these cards, without those that are not there."""
    return [it.device for it in map(scene.snapshot.device, uuids) if it is not None]


def requested(it: Allocation) -> Request:
    """The allocation as its vendor sees it; while no claim is known, with what it was answered with."""
    parameters = (it.handed or {}) if it.claim is None else it.claim.parameters
    return Request(it.id, it.resource, it.ids, parameters)
