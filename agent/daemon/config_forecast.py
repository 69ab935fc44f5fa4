"""What a config makes of given cards: device IDs, whether the kubelet takes their list, and placements."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agent.config import Config
from agent.config.schema import size_of
from agent.core.allocation.best_free_ids import prefer
from agent.core.devices.cards_of_resources import Offer
from agent.core.devices.ids_in_use import ResourceUsage
from agent.core.devices.memory_units import counted_in
from agent.core.devices.offers import OfferedResources, VendorRules
from agent.core.devices.plan import plan
from agent.core.devices.topology import topology
from agent.core.devices.unit_changes import UnitPlan, plan_units
from agent.core.errors import UsageError
from agent.core.model import DeviceStatus, Health, NodeSnapshot, Resource, VendorState, VendorStatus
from agent.daemon.vendor_config import vendor_rules, wanted_plugins
from agent.host import files
from agent.kubelet.device_list import KUBELET_RECEIVE_LIMIT, list_size, too_long
from agent.vendor_api.agent import Device, State, Vendor

#: More cards than any node has.
MAX_CARDS = 1024
#: Bytes of a text with the links of that many cards.
MAX_TEXT = 1 << 20
_CARDS = re.compile(r"([0-9]{1,4})x([0-9A-Za-z. ]*[A-Za-z])")


def cards_of(text: str) -> tuple[int, ...]:
    """The memory of each card in bytes, from `8x48GiB` or `4x16GiB,4x32GiB`.

    Raises:
        UsageError: The text has another form.
    """
    sizes: list[int] = []
    for part in text.split(","):
        found = _CARDS.fullmatch(part.strip())
        try:
            sizes += [size_of(found[2])] * int(found[1]) if found else [0]
        except ValueError:
            sizes += [0]
    if not all(sizes) or not 0 < len(sizes) <= MAX_CARDS:
        raise UsageError(f"--cards: '{text[:60]}' is no number of cards and their memory; write 8x48GiB")
    return tuple(sizes)


def forecast(
    config: Config, rules: Mapping[str, VendorRules], sizes: Sequence[int]
) -> Iterator[tuple[str, bool]]:
    """A sentence for each planned resource, and whether the kubelet would take its list.

    `rules` are of the vendors with an installed plugin. `sizes`: the memory of each card, bytes. Half of
    the cards are on NUMA node 0, as in most machines; other numbers make a list a few percent longer.
    """
    for vendor, settings in config.vendors.items():
        half = (len(sizes) + 1) // 2
        devices = [_card(index, size, index // half) for index, size in enumerate(sizes)]
        snapshot = _snapshot({vendor: devices})
        offers: Sequence[Offer] = [Offer(vendor, settings.resources, dynamic=settings.modes == "dynamic")]
        if vendor in rules:
            offers = OfferedResources([rules[vendor]]).of(snapshot)
        for resource in _planned(offers, snapshot):
            refusal = too_long(resource)
            yield (str(refusal), False) if refusal else (_sentence(resource), True)


def cards_in_file(config: Config, path: Path) -> tuple[Vendor, Sequence[Device]]:
    """The cards and links in the output of the tool of a vendor that the config wants, and that vendor.

    Raises:
        UsageError: The file cannot be read, or is no such output; with line and column.
    """
    try:
        text = files.read(path, MAX_TEXT, devices=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--topology: {path} cannot be read: {why}") from error
    if len(text) > MAX_TEXT:
        raise UsageError(f"--topology: {path} is larger than {MAX_TEXT} bytes")
    refusal = "no vendor of the config reads such a file"
    for vendor in (it.vendor for it in wanted_plugins(config)):
        if vendor is None or vendor.topology_text is None:
            continue
        try:
            return vendor, vendor.topology_text(text.decode(errors="replace"))
        except ValueError as error:
            refusal = str(error)
    raise UsageError(f"--topology: {path}: {refusal}")


def placements(config: Config, vendor: Vendor, cards: Sequence[Device]) -> Iterator[str]:
    """A sentence for each request that is not larger than the number of cards, on a node without pods."""
    snapshot = _snapshot({vendor.name: cards})
    near, index = topology(snapshot), {it.uuid: it.index for it in cards}
    for resource in _planned(OfferedResources([vendor_rules(vendor, config)]).of(snapshot), snapshot):
        ids = [device_id for card in resource.cards for device_id in card]
        for size in range(1, min(len(resource.cards), len(ids)) + 1):
            chosen = prefer(resource, ids, [], size, near)
            got = Counter(index[card.uuid] for card in resource.cards_of(chosen) if card is not None)
            shown = ", ".join(str(it) if count == 1 else f"{it} ({count} IDs)" for it, count in got.items())
            yield f"{resource.name}, request of {size}: {f'cards {shown}' if shown else 'any card'}"


def lacking(rules: Sequence[VendorRules], found: Mapping[str, Sequence[Device]]) -> Iterator[str]:
    """A sentence for each reason why the agent would not be ready on a node with these devices, by vendor."""
    snapshot, offers = _snapshot(found), OfferedResources(rules)
    planned = _planned(offers.of(snapshot), snapshot)
    for vendor, complaints in offers.complaints.items():
        yield from (f"vendor {vendor}: {it}" for it in complaints)
    yield from (f"resource {it.name}: {wrong}" for it in planned if (wrong := too_long(it)))


def _planned(offers: Sequence[Offer], snapshot: NodeSnapshot) -> Sequence[Resource]:
    made = plan_units(offers, snapshot, ResourceUsage(), {}, UnitPlan(), lambda it: str(too_long(it) or ""))
    return tuple(plan(made.offers, snapshot).values())


def _snapshot(found: Mapping[str, Sequence[Device]]) -> NodeSnapshot:
    """A node on which all these cards are healthy."""
    vendors = tuple(VendorStatus(name, VendorState.OPEN) for name in found)
    well = Health(State.HEALTHY)
    devices = ((name, it) for name, its in found.items() for it in its)
    return NodeSnapshot(
        vendors, tuple(DeviceStatus(name, it, well, told_healthy=True) for name, it in devices)
    )


def _sentence(resource: Resource) -> str:
    unit = counted_in(resource.rule.sharing)
    counts = ", ".join(dict.fromkeys(str(len(card)) for card in resource.cards))
    units = f" in units of {unit} GiB, {counts} of each card" if unit else ""
    size = f"a list of at most {list_size(resource)} bytes of {KUBELET_RECEIVE_LIMIT}"
    return f"{resource.name}: {len(resource.cards)} cards, {resource.capacity} device IDs{units}, {size}"


def _card(index: int, memory: int, numa: int) -> Device:
    """A card with a uuid as long as most are."""
    return Device(f"GPU-00000000-0000-4000-8000-{index:012x}", index, index, numa=numa, memory=memory)
