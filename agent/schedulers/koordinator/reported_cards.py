"""Makes Koordinator's report of the node's cards from the devices of the node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from agent.scheduler_api.node_cards import CardOnNode, NodeCards
from agent.scheduler_api.node_report import LinkedCards, Report, ReportedCard, Status
from agent.schedulers.koordinator.gpu_partitions import groups
from agent.vendor_api.agent import DRIVER_VERSION, PCIE_ROOT, Device, State
from agent.vendor_api.label_values import label_value
from agent.vendor_api.text import printable

#: The scheduler packs a set of minors into one int, with 1 << minor (allocator_gpu.go, hashMinors).
MAX_MINOR = 62

#: Our name of a vendor to Koordinator's, where both differ (apis/extension/device_share.go).
_VENDORS = {"kunlun": "baidu"}
#: The same for models, by vendor: the Device in Koordinator's manual for MetaX.
_MODELS = {"metax": {"MXC500": "C500"}}

#: Prefix of a card's labels, by which pods choose cards. These attributes mean the same for every vendor. The
#: driver's version is among them: koord-manager takes labels to the Node only when a card has changed.
LABELS = "xpu-agent.io/"
_MODEL = f"{LABELS}model"
#: The attributes of a card that become labels.
LABELLED = ("architecture", "compute-capability", "pci-device-id", DRIVER_VERSION)

_NO_LETTERS = re.compile(r"[^A-Za-z0-9]+")
_REASON_LIMIT, _MESSAGE_LIMIT = 128, 1024

#: The reason for a card that no vendor's process watches any more.
_LOST = "lost-contact"


def report(
    snapshot: NodeCards,
    vendor: str = "",
    before: Report | None = None,
    withheld: Mapping[str, str] | None = None,
) -> Report | None:
    """The report, never without cards. None: nothing can be said, and the last report stays.

    `vendor`: the name that the config chose; empty chooses the vendor with most cards.
    `before`: the last report, also of an earlier agent. Cards that are not listed now keep their place, and
    cards without a minor of their own keep their minor.
    `withheld`: uuid of each card that no pod gets as a whole, with the reason; it is reported as unhealthy.

    The cards of a vendor that lists none stay in the report: unchanged at first, unhealthy once the vendor is
    known to have failed. So a failed probe empties no report, and no card without its vendor looks healthy.
    """
    name = _chosen(snapshot, vendor, before)
    if name is None:
        return None
    listed = _cards(snapshot, name)
    if not listed:
        return _lost(snapshot, before)
    if before is not None and before.vendor != koordinator_vendor(name):
        before = None
    return _made(snapshot, name, listed, before, withheld or {})


def is_served(snapshot: NodeCards, vendor: str, last: Report) -> bool:
    """Whether the vendor of the report `last` is in service, or is not known yet; `vendor` as in `report`."""
    vendors = [it for it in snapshot.vendors if vendor in (it.name, "")]
    return any(it.state == "starting" or koordinator_vendor(it.name) == last.vendor for it in vendors)


def passed_over(snapshot: NodeCards, vendor: str) -> tuple[str, ...]:
    """A sentence for each vendor that is left out while the config chooses a vendor without cards here."""
    counts = {it.name: len(_cards(snapshot, it.name)) for it in snapshot.vendors}
    states = {it.name: it.state for it in snapshot.vendors}
    if not vendor or counts.get(vendor) or states.get(vendor) == "starting":
        return ()
    lacks = "lists no cards" if vendor in counts else "is not in service here"
    return tuple(
        f"{count} cards of {name} are not reported: report.vendor is '{vendor}', which {lacks}"
        for name, count in counts.items()
        if count
    )


def koordinator_vendor(name: str) -> str:
    """Koordinator's name of the vendor, by which Koordinator finds its adapter."""
    return _VENDORS.get(name, label_value(name))


def model_name(vendor: str, model: str) -> str:
    """The model as a label's value, without the vendor's name: the form that koordlet writes."""
    short = model[len(vendor) + 1 :] if model.lower().startswith(f"{vendor.lower()} ") else model
    return label_value(_MODELS.get(vendor, {}).get(short, short))


def reason(text: str) -> str:
    """The text in the form that the CRD takes as a condition's reason: xid-79 becomes Xid79."""
    words = _NO_LETTERS.split(text[:_MESSAGE_LIMIT])
    whole = "".join(word[:1].upper() + word[1:] for word in words)
    return (whole if whole[:1].isalpha() else f"Fault{whole}" if whole else "Unknown")[:_REASON_LIMIT]


def _chosen(snapshot: NodeCards, vendor: str, before: Report | None) -> str | None:
    """The vendor to report; None while that is not known.

    For a vendor that has not listed its cards since the start, the cards of its last report count.
    """
    vendors = [it for it in snapshot.vendors if vendor in (it.name, "")]
    silent = {it.name for it in vendors if it.state != "open" and not snapshot.of(it.name)}
    if any(it.state == "starting" and it.name in silent for it in vendors):
        return None

    def weight(name: str) -> tuple[int, bool]:
        cards = before.cards if before is not None and before.vendor == koordinator_vendor(name) else ()
        return len(_cards(snapshot, name)) or len(cards) * (name in silent), bool(cards)

    return max((it.name for it in vendors), key=weight, default=None)


def _cards(snapshot: NodeCards, name: str) -> tuple[CardOnNode, ...]:
    """The vendor's physical cards that have a name; slices are parts of them."""
    return tuple(it for it in snapshot.of(name) if it.device.parent is None and not it.device.nameless)


def _lost(snapshot: NodeCards, before: Report | None) -> Report | None:
    """The last report with all cards lost; None where none of the node's vendors has those cards."""
    vendors = [it for it in snapshot.vendors if before and koordinator_vendor(it.name) == before.vendor]
    if before is None or not vendors or not before.cards:
        return None
    why = vendors[0].reason or "the library lists no cards"
    return replace(before, cards=tuple(_unhealthy(it, _LOST, why, "Unknown") for it in before.cards))


def _made(
    snapshot: NodeCards,
    name: str,
    listed: Sequence[CardOnNode],
    before: Report | None,
    withheld: Mapping[str, str],
) -> Report | None:
    known = {card.uuid: card for card in before.cards} if before is not None else {}
    uuids = {it.uuid for it in listed}
    absent = [it for it in snapshot.absent if it.uuid in known and it.uuid not in uuids]
    minors = _minors(listed, [it.uuid for it in absent], known)
    sliced = {it.device.parent for it in snapshot.of(name) if not it.gone}
    # A platform without NUMA information has one node. koordlet does the same.
    unknown_numa = -1 if any(it.device.numa is not None for it in listed) else 0
    cards = []
    for on_node in listed:
        if on_node.uuid in minors:
            minor, last = minors[on_node.uuid], known.get(on_node.uuid)
            card = _card(name, on_node.device, minor, unknown_numa, last)
            cards.append(_with_health(card, on_node, sliced, withheld))
    for gone in absent:
        if gone.uuid in minors:
            card = replace(known[gone.uuid], minor=minors[gone.uuid])
            why = gone.condition.message or "it is not listed any more"
            status: Status = "Unknown" if gone.condition.state is State.UNKNOWN else "False"
            cards.append(_unhealthy(card, gone.condition.reason or _LOST, why, status))
    drivers = {it.device.attributes.get(DRIVER_VERSION, "") for it in listed} - {""}
    models = {card.model for card in cards} - {""}
    return Report(
        vendor=koordinator_vendor(name),
        cards=tuple(sorted(cards, key=lambda card: card.minor)),
        model=models.pop() if len(models) == 1 else "",
        driver=label_value(drivers.pop()) if len(drivers) == 1 else before.driver if before else "",
        links=_links(name, listed, minors, before),
        left_out=tuple(_left_out(snapshot, name, uuids - minors.keys())),
    )


def _minors(
    listed: Sequence[CardOnNode], absent: Sequence[str], known: Mapping[str, ReportedCard]
) -> Mapping[str, int]:
    """The minor of each card, by uuid: the driver's, the last one, the card's index, or a free one.

    The scheduler books cards by minor. So a card keeps its minor, and no two cards share one.
    """
    taken: dict[int, str] = {}
    minors: dict[str, int] = {}

    def take(uuid: str, minor: int | None) -> None:
        if uuid not in minors and minor is not None and 0 <= minor <= MAX_MINOR and minor not in taken:
            minors[uuid], taken[minor] = minor, uuid

    uuids = [*(it.uuid for it in listed), *absent]
    for card in listed:
        take(card.uuid, card.device.minor)
    for uuid in uuids:
        take(uuid, known[uuid].minor if uuid in known else None)
    for card in listed:
        take(card.uuid, card.device.index)
    free = (minor for minor in range(MAX_MINOR + 1) if minor not in taken)
    for uuid in uuids:
        if uuid not in minors:
            take(uuid, next(free, None))
    return minors


def _card(
    vendor: str, device: Device, minor: int, unknown_numa: int, known: ReportedCard | None
) -> ReportedCard:
    """The card without its health. Values that the device lacks now are those of the last report."""
    numa = known.numa if device.numa is None and device.fault and known else device.numa
    model = model_name(vendor, device.model) or (known.model if known else "")
    pci = device.pci or (known.pci if known else "")
    values = {name: label_value(device.attributes[name]) for name in LABELLED if name in device.attributes}
    labels = {**(known.labels if known else {}), **{f"{LABELS}{name}": it for name, it in values.items()}}
    return ReportedCard(
        uuid=device.uuid,
        minor=minor,
        memory=device.memory or (known.memory if known else 0),
        model=model,
        numa=unknown_numa if numa is None else numa,
        # Cards of one root are near each other to the scheduler. Without a root a card is near no other.
        pcie=device.attributes.get(PCIE_ROOT) or (known.pcie if known else "") or _own_root(pci),
        pci=pci,
        labels={**labels, _MODEL: model} if model else labels,
        resources=known.resources if known else {},
    )


def _own_root(pci: str) -> str:
    return f"pci{pci.rpartition(':')[0]}" if pci else ""


def _with_health(
    card: ReportedCard, on_node: CardOnNode, sliced: Set[str | None], withheld: Mapping[str, str]
) -> ReportedCard:
    """The card with the health that the kubelet is told, and with the reason."""
    health = on_node.condition
    unknown = health.state is State.UNKNOWN
    if not on_node.healthy:
        return _unhealthy(card, health.reason, health.message, "Unknown" if unknown else "False")
    if on_node.uuid in withheld:
        return _unhealthy(card, "NotOffered", withheld[on_node.uuid])
    if on_node.uuid in sliced:
        return _unhealthy(card, "Sliced", "the hardware cut it into slices, and no pod gets it as a whole")
    if on_node.cordon:
        return _unhealthy(card, "Cordoned", on_node.cordon)
    if not card.memory:
        return _unhealthy(card, "MemoryUnknown", "the scheduler divides by its memory, which is not known")
    if unknown and not health.lost:
        return replace(card, status="Unknown", reason=reason(health.reason), message=_message(health.message))
    # Lost contact is often restored at once. Until its grace ends, the last health stays.
    return card


def _unhealthy(card: ReportedCard, why: str, message: str, status: Status = "False") -> ReportedCard:
    return replace(card, healthy=False, status=status, reason=reason(why), message=_message(message))


def _message(text: str) -> str:
    return printable(text[:_MESSAGE_LIMIT])[:_MESSAGE_LIMIT]


def _links(
    vendor: str, listed: Sequence[CardOnNode], minors: Mapping[str, int], before: Report | None
) -> tuple[LinkedCards, ...]:
    """The groups of linked cards. Groups of the last report stay until the links of all cards are read."""
    devices = {minors[it.uuid]: it.device for it in listed if it.uuid in minors}
    unread = [it for it in listed if it.healthy and not it.device.links]
    if not unread:
        return groups(devices, vendor)
    return tuple(it for it in before.links if devices.keys() >= set(it.minors)) if before is not None else ()


def _left_out(snapshot: NodeCards, name: str, without: Set[str]) -> Iterator[str]:
    for vendor in snapshot.vendors:
        others = len(_cards(snapshot, vendor.name))
        if vendor.name != name and others:
            chosen = f"the node reports {name}, and one vendor alone: report.vendor chooses"
            yield f"{others} cards of {vendor.name} are not reported: {chosen}"
    for status in snapshot.of(name):
        if status.device.nameless:
            yield f"card {status.device.index} of {name} is not reported: it cannot tell its uuid"
    for uuid in sorted(without):
        yield f"{uuid} is not reported: Koordinator knows no more than {MAX_MINOR + 1} cards of a node"
