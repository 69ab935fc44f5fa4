"""What each resource lists now: snapshot, rules and IDs in use in, resources out. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.core.model import (
    AdvertisedDevice,
    DeviceStatus,
    IdForm,
    IdRange,
    NodeSnapshot,
    Plan,
    Policy,
    Resource,
    ResourceRule,
    VendorState,
    old_form,
)

#: Resource name to device ID to the uuid of its card.
Held = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Offer:
    """A vendor and the resources that the config makes of its devices."""

    vendor: str
    rules: tuple[ResourceRule, ...]


def plan(offers: Iterable[Offer], snapshot: NodeSnapshot, held: Held, before: Plan) -> dict[str, Resource]:
    """The resources to serve. IDs in use stay listed until freed, whatever the config says now.

    A resource without devices is planned only once it has been served: the kubelet must see it empty. IDs in
    use bring it back after a restart, but not before its vendor was heard: they would seem lost until then.
    A card in use in another way (by another resource, whole where it is now shared) is offered once free.
    """
    uses = _uses(held)
    starting = {it.name for it in snapshot.vendors if it.state is VendorState.STARTING}
    resources: dict[str, Resource] = {}
    stems = _stems(snapshot.devices)
    for offer in offers:
        left = list(snapshot.of(offer.vendor))
        for rule in offer.rules:
            chosen = _chosen(rule, left)
            taken = {status.uuid for status in chosen}
            left = [status for status in left if status.uuid not in taken]
            offered = (_card(rule, status, stems) for status in chosen)
            cards = tuple(card for card in offered if not _used_otherwise(rule, card, uses))
            served = rule.name in before or (rule.name in held and offer.vendor not in starting)
            if rule.name not in resources and (cards or served):
                resources[rule.name] = Resource(rule.name, offer.vendor, rule, _policy(rule), cards)
    for name, resource in before.items():
        if name not in resources and not (resource.retired and not resource.cards and name not in held):
            resources[name] = Resource(
                name, resource.vendor, resource.rule, resource.policy, (), retired=True
            )
    return {name: _keeping(it, held.get(name, {}), snapshot) for name, it in resources.items()}


def _chosen(rule: ResourceRule, statuses: Sequence[DeviceStatus]) -> Sequence[DeviceStatus]:
    if rule.devices == "all":
        return statuses
    if isinstance(rule.devices, int):
        return statuses[: rule.devices]
    wanted = set(rule.devices)
    return [it for it in statuses if it.uuid in wanted or it.device.index in wanted]


def _policy(rule: ResourceRule) -> Policy:
    return rule.policy or ("aligned" if rule.sharing.kind == "exclusive" else "distributed")


def _card(
    rule: ResourceRule, status: DeviceStatus, stems: Mapping[str, Mapping[IdForm, str]]
) -> AdvertisedDevice:
    replicas = None if rule.sharing.kind == "exclusive" else rule.sharing.replicas
    # Where a scheduler chooses the card, a NUMA hint could make the kubelet skip the preferred call.
    numa = status.device.numa if rule.placement == "local" else None
    ids = IdRange(stems[status.uuid][rule.ids], replicas)
    return AdvertisedDevice(status.uuid, ids, status.told_healthy, numa)


def _uses(held: Held) -> Mapping[str, list[tuple[str, str]]]:
    """Card to the (resource, device ID) pairs in use on it."""
    uses: dict[str, list[tuple[str, str]]] = {}
    for resource, ids in held.items():
        for device_id, uuid in ids.items():
            uses.setdefault(uuid, []).append((resource, device_id))
    return uses


def _used_otherwise(
    rule: ResourceRule, card: AdvertisedDevice, uses: Mapping[str, list[tuple[str, str]]]
) -> bool:
    """Whether the card is held in a way that the rule does not know: it must not be given out twice."""
    for resource, device_id in uses.get(card.uuid, ()):
        shares = "::" in device_id or old_form(device_id) in card
        if resource != rule.name or (
            device_id not in card and not (shares and rule.sharing.kind == "replicas")
        ):
            return True
    return False


def _keeping(resource: Resource, held: Mapping[str, str], snapshot: NodeSnapshot) -> Resource:
    """The resource with IDs in use that its rule no longer makes."""
    strays: dict[str, list[str]] = {}
    for device_id, uuid in held.items():
        card = resource.card_of(device_id)
        if card is None or (card.uuid != uuid and device_id not in card):  # only its old form fits there
            strays.setdefault(uuid, []).append(device_id)
    if not strays:
        return resource
    cards = {card.uuid: card for card in resource.cards}
    for uuid, ids in strays.items():
        status = snapshot.device(uuid)
        old = cards.get(uuid)
        cards[uuid] = AdvertisedDevice(
            uuid,
            old.ids if old else None,
            status.told_healthy if status else False,
            status.device.numa if status and resource.rule.placement == "local" else None,
            tuple(sorted(ids)),
        )
    return Resource(
        resource.name,
        resource.vendor,
        resource.rule,
        resource.policy,
        tuple(cards.values()),
        resource.retired,
    )


def _stems(statuses: Sequence[DeviceStatus]) -> dict[str, dict[IdForm, str]]:
    shorts = short_forms([status.uuid for status in statuses])
    return {
        it.uuid: {
            "uuid": it.uuid,
            "minor": str(it.device.index if it.device.minor is None else it.device.minor),
            "short": shorts[it.uuid],
        }
        for it in statuses
    }


def short_forms(uuids: Sequence[str]) -> dict[str, str]:
    """Six base32 characters of SHA-256(uuid) each, longer for those that collide; derived, never stored."""
    left = {
        uuid: base64.b32encode(hashlib.sha256(uuid.encode()).digest()).decode().lower().rstrip("=")
        for uuid in uuids
    }
    shorts: dict[str, str] = {}
    length = 6
    while left:
        count = Counter(digest[:length] for digest in left.values())
        alone = {uuid for uuid, digest in left.items() if count[digest[:length]] == 1}
        shorts.update((uuid, left.pop(uuid)[:length]) for uuid in alone)
        length += 1
    return shorts
