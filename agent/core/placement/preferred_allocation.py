"""Answers GetPreferredAllocation: IDs on the cards that a scheduler chose, else the best free ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from agent.core.allocation import room_on_cards
from agent.core.allocation.best_free_ids import prefer
from agent.core.allocation.taken_room import TakenRoom
from agent.core.attribution.pod_attribution import waiting_pods
from agent.core.attribution.scheduler_promises import Promises
from agent.core.devices.dynamic_modes import holder_in_other_mode
from agent.core.devices.memory_units import on_one_card
from agent.core.model import Allocation, Resource
from agent.core.placement import ids_on_promised_cards


def preferred_ids(
    promises: Promises,
    planned: Resource,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    holders: Sequence[Allocation] = (),
) -> list[str]:
    """`size` of the available IDs, with the required ones; [] where no choice can be made.

    IDs that a new container may not get come last: IDs of cards that another resource has, IDs of an earlier
    plan, and IDs that a running pod has though the kubelet takes them for free. `holders`: the allocations of
    the resource that have one of the available IDs.
    """
    held = _held_ids(promises, planned, holders)
    unwanted = _ids_of_other_modes(promises, planned) | planned.outdated_ids | held
    wanted = (
        [device_id for device_id in available if device_id not in unwanted or device_id in required]
        if unwanted
        else available
    )
    free = [device_id for device_id in available if device_id not in held] if held else available
    chosen = _choose_ids(promises, planned, wanted, free, required, size, holders)
    if chosen or not unwanted:
        return chosen
    return _choose_ids(promises, planned, available, available, required, size, holders)


def _choose_ids(
    promises: Promises,
    planned: Resource,
    among: Sequence[str],
    free: Sequence[str],
    required: Sequence[str],
    size: int,
    holders: Sequence[Allocation],
) -> list[str]:
    """`size` of the IDs in `among`. `free`: the IDs that no pod has."""
    scene, room = promises.scene, _room(promises, planned, free, holders)
    if planned.vendor not in scene.vendors or planned.rule.placement == "local":
        return prefer(planned, among, required, size, scene.topology, room)
    pods = waiting_pods(promises, planned.name, free)
    return ids_on_promised_cards.chosen_ids(planned, among, required, size, scene.topology, pods, room)


def _ids_of_other_modes(promises: Promises, planned: Resource) -> frozenset[str]:
    """The IDs of cards that another resource has since a moment ago. Neither plan nor kubelet knows yet."""
    if not planned.other_modes:
        return frozenset()
    names, in_use = planned.other_modes, promises.in_use
    taken = (
        card
        for card in planned.cards
        if card.healthy
        and any(holder_in_other_mode(planned, card.uuid, in_use.on_card(it, card.uuid)) for it in names)
    )
    return frozenset(device_id for card in taken for device_id in card)


def _held_ids(promises: Promises, planned: Resource, holders: Iterable[Allocation]) -> frozenset[str]:
    """The IDs of these allocations that a running pod has.

    Where they are available, the kubelet errs: an Allocate with them is refused.

    None of whole cards where a scheduler chooses, since no other card would do.
    """
    if planned.rule.sharing.kind == "exclusive" and planned.rule.placement != "local":
        return frozenset()
    alive = promises.scene.alive
    running = (it for it in holders if it.container_key is not None and it.container_key[0] in alive)
    return frozenset(chain.from_iterable(it.ids for it in running))


def _room(
    promises: Promises, planned: Resource, free: Collection[str], holders: Iterable[Allocation]
) -> Mapping[str, int] | None:
    """Card to the memory units that are left by the ledger, where a container gets them of one card.

    Allocations with IDs that the kubelet gives out now take no room.
    """
    if not on_one_card(planned.rule.sharing):
        return None
    given = frozenset(free if holders else ())
    in_use = promises.in_use.without(it for it in holders if not given.isdisjoint(it.ids))
    return room_on_cards.free_by_card(planned, TakenRoom(planned.name, in_use))
