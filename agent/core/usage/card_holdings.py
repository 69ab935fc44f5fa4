"""Where containers have allocations of a vendor's cards, and what they were granted there. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from agent.core.allocation.card_amounts import CardAmounts
from agent.core.attribution.scheduler_promises import Promises
from agent.core.model import Allocation
from agent.core.usage.granted_limits import Limits, granted, together
from agent.core.usage.usage_report import VendorSample

#: Pod uid, container, and the uuid of the card or slice.
Place = tuple[str, str, str]


class Holdings:
    """Where the containers of pods have allocations of one vendor, and what these were granted."""

    def __init__(
        self,
        vendor: str,
        totals: Mapping[str, int | None],
        promises: Promises,
        parents: Mapping[str, str] | None = None,
    ) -> None:
        """`totals`: the cards and slices with figures, and how many bytes each has.

        `parents`: the slices, also those of others, to their cards, as the vendor says.
        """
        self._promises = promises
        self._totals = totals
        devices = promises.scene.snapshot.present(vendor)
        #: Slice to its card.
        self.parents = {it.uuid: it.parent for it in devices if it.parent is not None}
        self.parents |= parents or {}
        #: Slices without figures of their own: what is on them is on their card.
        self._moved: dict[str, str] = {}
        self._amounts: dict[str, CardAmounts | None] = {}
        #: Each place to the allocations there, oldest first.
        self.by_place: dict[Place, list[Allocation]] = {}
        for allocation in promises.in_use:
            if allocation.vendor == vendor:
                self._add(allocation)
        #: Pod uid and card to the containers with an allocation there.
        self.by_pod: dict[tuple[str, str], list[str]] = defaultdict(list)
        for uid, container, uuid in self.by_place:
            self.by_pod[uid, uuid].append(container)
        self.places = frozenset(self.by_place)
        self._limits: dict[Place, Limits] = {}

    def holds_for(self, totals: Mapping[str, int | None], promises: Promises) -> bool:
        """Whether nothing has changed that this value was made from."""
        before, now = self._promises, promises
        return (
            before.in_use is now.in_use
            and before.scene.candidates is now.scene.candidates
            and before.scene.plan is now.scene.plan
            and before.scene.snapshot is now.scene.snapshot
            and self._totals == totals
        )

    def card_of(self, uuid: str) -> str:
        """Where a process on this device or slice is charged."""
        return self._moved.get(uuid, uuid)

    def limits(self, place: Place) -> Limits:
        """What the container was granted there, by its newest allocation of each resource."""
        if place not in self._limits:
            newest = {it.resource: it for it in self.by_place.get(place, ())}
            uuid = place[2]
            made = self._totals.get(uuid) if uuid in self.parents else None
            self._limits[place] = together(self._granted(it, uuid, made) for it in newest.values())
        return self._limits[place]

    def _granted(self, allocation: Allocation, uuid: str, made: int | None) -> Limits:
        resource = allocation.resource
        if resource not in self._amounts:
            served = self._promises.served(resource)
            self._amounts[resource] = self._promises.amounts(served[0]) if served is not None else None
        is_made = uuid in allocation.partitions
        card = self.parents[uuid] if is_made else uuid
        planned, amounts = self._promises.scene.plan.get(resource), self._amounts[resource]
        return granted(allocation, card, planned, amounts or CardAmounts(), made if is_made else None)

    def _add(self, allocation: Allocation) -> None:
        cards = [*dict.fromkeys(allocation.cards)]
        slices = allocation.partitions
        if slices and cards:
            on = cards if len(cards) == len(slices) else cards[:1] * len(slices)
            for made, card in zip(slices, on, strict=True):
                self.parents.setdefault(made, card)
                if made not in self._totals:
                    self._moved[made] = card
            cards = [*dict.fromkeys(map(self.card_of, slices))]
        if allocation.container_key is not None and not self._has_ended(allocation):
            for uuid in cards:
                self.by_place.setdefault((*allocation.container_key, uuid), []).append(allocation)

    def _has_ended(self, allocation: Allocation) -> bool:
        """Whether the container is an init container that has ended. Its pod keeps the devices."""
        uid, name = allocation.container_key or ("", "")
        pod = self._promises.pods.get(uid)
        if pod is None or pod.pending:
            return False
        return any(it.name == name and it.init and not it.restartable for it in pod.containers)


def holdings(
    vendor: str, sample: VendorSample, promises: Promises, before: Holdings | None = None
) -> Holdings:
    """The holdings as of now; `before` again where nothing has changed: there may be a thousand of them."""
    totals = {it.uuid: it.memory_total for it in reversed(sample.usages or ())}
    if before is not None and before.holds_for(totals, promises):
        return before
    parents = {it.uuid: it.parent for it in sample.usages or () if it.parent is not None}
    return Holdings(vendor, totals, promises, parents)
