"""What Koordinator is told of the node's cards: the devices in, one value out, whoever carries it."""

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

#: The scheduler makes a set of minors one int, with 1 << minor (allocator_gpu.go, hashMinors).
MAX_MINOR = 62

#: Vendors that koordinator calls otherwise than they call themselves (apis/extension/device_share.go).
_VENDORS = {"kunlun": "baidu"}
#: Models likewise, by vendor: the Device in koordinator's manual for MetaX.
_MODELS = {"metax": {"MXC500": "C500"}}

#: Pods choose cards by labels of theirs; no two vendors mean different things by these attributes. The driver
#: is among them so that a new one changes cards: else koord-manager takes no label of the Device to the Node.
LABELS = "xpu-agent.io/"
_MODEL = f"{LABELS}model"
#: The attributes of a card that its entry has as labels.
LABELLED = ("architecture", "compute-capability", "pci-device-id", DRIVER_VERSION)

_NO_LETTERS = re.compile(r"[^A-Za-z0-9]+")
_REASON_LIMIT, _MESSAGE_LIMIT = 128, 1024

#: What is said of a card that nobody watches any more.
_LOST = "lost-contact"


def report(
    snapshot: NodeCards,
    vendor: str = "",
    before: Report | None = None,
    withheld: Mapping[str, str] | None = None,
) -> Report | None:
    """What to tell now, never without cards. None: nothing can be said, so that what was told stays.

    `vendor`: the name that the config chose; empty is the vendor with most cards.
    `before`: what was told last (`device.told`, `feed.told`), also by an earlier agent: cards that are not
    listed now keep their place in it, and cards without a minor of their own the one that they had.
    `withheld`: uuid to a sentence why nobody gets the card as a whole; it is told as unhealthy.

    A vendor that does not list its cards leaves those that were told: first as they are, unhealthy once it is
    known to have failed. So no list gets empty because of a probe, and no card without its vendor looks well.
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


def is_served(snapshot: NodeCards, vendor: str, told: Report) -> bool:
    """Whether the vendor of what was told is in service, or nobody knows yet; `vendor` as in `report`."""
    asked = [it for it in snapshot.vendors if vendor in (it.name, "")]
    return any(it.state == "starting" or koordinator_vendor(it.name) == told.vendor for it in asked)


def passed_over(snapshot: NodeCards, vendor: str) -> tuple[str, ...]:
    """A sentence for each vendor whose cards are not reported as the config chose one without cards here."""
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
    """What Koordinator calls the vendor; its adapters are found by it."""
    return _VENDORS.get(name, label_value(name))


def model_name(vendor: str, model: str) -> str:
    """The model as a label has it: without the vendor's name, as koordlet has it."""
    short = model[len(vendor) + 1 :] if model.lower().startswith(f"{vendor.lower()} ") else model
    return label_value(_MODELS.get(vendor, {}).get(short, short))


def reason(text: str) -> str:
    """The text as the CRD takes it for a condition's reason, and xid-79 as Xid79."""
    words = _NO_LETTERS.split(text[:_MESSAGE_LIMIT])
    whole = "".join(word[:1].upper() + word[1:] for word in words)
    return (whole if whole[:1].isalpha() else f"Fault{whole}" if whole else "Unknown")[:_REASON_LIMIT]


def _chosen(snapshot: NodeCards, vendor: str, before: Report | None) -> str | None:
    """The vendor to report; None while nobody can say which.

    What was told of a vendor that has not listed its cards since the start still counts for it.
    """
    asked = [it for it in snapshot.vendors if vendor in (it.name, "")]
    silent = {it.name for it in asked if it.state != "open" and not snapshot.of(it.name)}
    if any(it.state == "starting" and it.name in silent for it in asked):
        return None

    def weight(name: str) -> tuple[int, bool]:
        told = before.cards if before is not None and before.vendor == koordinator_vendor(name) else ()
        return len(_cards(snapshot, name)) or len(told) * (name in silent), bool(told)

    return max((it.name for it in asked), key=weight, default=None)


def _cards(snapshot: NodeCards, name: str) -> tuple[CardOnNode, ...]:
    """The vendor's physical cards that have a name; slices are parts of them."""
    return tuple(it for it in snapshot.of(name) if it.device.parent is None and not it.device.nameless)


def _lost(snapshot: NodeCards, before: Report | None) -> Report | None:
    """What was told, with nobody there who serves it; None where another one than we has told it."""
    ours = [it for it in snapshot.vendors if before and koordinator_vendor(it.name) == before.vendor]
    if before is None or not ours or not before.cards:
        return None
    why = ours[0].reason or "the library lists no cards"
    return replace(before, cards=tuple(_unwell(it, _LOST, why, "Unknown") for it in before.cards))


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
    # A machine whose platform tells of no NUMA node has one; koordlet takes it so, too.
    nowhere = -1 if any(it.device.numa is not None for it in listed) else 0
    cards = [
        _judged(_card(name, it.device, minors[it.uuid], nowhere, known.get(it.uuid)), it, sliced, withheld)
        for it in listed
        if it.uuid in minors
    ]
    cards += [
        _unwell(
            replace(known[it.uuid], minor=minors[it.uuid]),
            it.condition.reason or _LOST,
            it.condition.message or "it is not listed any more",
            "Unknown" if it.condition.state is State.UNKNOWN else "False",
        )
        for it in absent
        if it.uuid in minors
    ]
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
    """The minor of each card, by uuid: what the driver says, what it had, its index, or a free one.

    The scheduler books by it, so that a card keeps its minor and shares it with nobody, whatever is said.
    """
    taken: dict[int, str] = {}
    minors: dict[str, int] = {}

    def take(uuid: str, minor: int | None) -> None:
        if uuid not in minors and minor is not None and 0 <= minor <= MAX_MINOR and minor not in taken:
            minors[uuid], taken[minor] = minor, uuid

    for it in listed:
        take(it.uuid, it.device.minor)
    for uuid in [*(it.uuid for it in listed), *absent]:
        take(uuid, known[uuid].minor if uuid in known else None)
    for it in listed:
        take(it.uuid, it.device.index)
    free = (minor for minor in range(MAX_MINOR + 1) if minor not in taken)
    for uuid in [*(it.uuid for it in listed), *absent]:
        if uuid not in minors:
            take(uuid, next(free, None))
    return minors


def _card(vendor: str, device: Device, minor: int, nowhere: int, known: ReportedCard | None) -> ReportedCard:
    """The card without its health. What it does not tell this time is as it was told before."""
    numa = known.numa if device.numa is None and device.fault and known else device.numa
    model = model_name(vendor, device.model) or (known.model if known else "")
    pci = device.pci or (known.pci if known else "")
    told = {name: label_value(device.attributes[name]) for name in LABELLED if name in device.attributes}
    labels = {**(known.labels if known else {}), **{f"{LABELS}{name}": it for name, it in told.items()}}
    return ReportedCard(
        uuid=device.uuid,
        minor=minor,
        memory=device.memory or (known.memory if known else 0),
        model=model,
        numa=nowhere if numa is None else numa,
        # Cards of one root are near each other to the scheduler: who does not tell its root is near nobody.
        pcie=device.attributes.get(PCIE_ROOT) or (known.pcie if known else "") or _own_root(pci),
        pci=pci,
        labels={**labels, _MODEL: model} if model else labels,
        resources=known.resources if known else {},
    )


def _own_root(pci: str) -> str:
    return f"pci{pci.rpartition(':')[0]}" if pci else ""


def _judged(
    card: ReportedCard, it: CardOnNode, sliced: Set[str | None], withheld: Mapping[str, str]
) -> ReportedCard:
    """The card with what the kubelet hears of its health, and why."""
    health = it.condition
    unknown = health.state is State.UNKNOWN
    if not it.healthy:
        return _unwell(card, health.reason, health.message, "Unknown" if unknown else "False")
    if it.uuid in withheld:
        return _unwell(card, "NotOffered", withheld[it.uuid])
    if it.uuid in sliced:
        return _unwell(card, "Sliced", "the hardware cut it into slices, and nobody gets it as a whole")
    if it.cordon:
        return _unwell(card, "Cordoned", it.cordon)
    if not card.memory:
        return _unwell(card, "MemoryUnknown", "the scheduler divides by its memory, which nobody tells")
    if unknown and not health.lost:
        return replace(card, status="Unknown", reason=reason(health.reason), message=_message(health.message))
    # Contact that is lost is often back at once: until patience ends, all stays as it was told.
    return card


def _unwell(card: ReportedCard, why: str, message: str, status: Status = "False") -> ReportedCard:
    return replace(card, healthy=False, status=status, reason=reason(why), message=_message(message))


def _message(text: str) -> str:
    return printable(text[:_MESSAGE_LIMIT])[:_MESSAGE_LIMIT]


def _links(
    vendor: str, listed: Sequence[CardOnNode], minors: Mapping[str, int], before: Report | None
) -> tuple[LinkedCards, ...]:
    """The groups of linked cards. They do not change with health, and stay while not all links are read."""
    devices = {minors[it.uuid]: it.device for it in listed if it.uuid in minors}
    unread = [it for it in listed if it.healthy and not it.device.links]
    if not unread:
        return groups(devices, vendor)
    return tuple(it for it in before.links if devices.keys() >= set(it.minors)) if before is not None else ()


def _left_out(snapshot: NodeCards, name: str, without: Set[str]) -> Iterator[str]:
    for it in snapshot.vendors:
        others = len(_cards(snapshot, it.name))
        if it.name != name and others:
            chosen = f"the node reports {name}, and one vendor alone: report.vendor chooses"
            yield f"{others} cards of {it.name} are not reported: {chosen}"
    for status in snapshot.of(name):
        if status.device.nameless:
            yield f"card {status.device.index} of {name} is not reported: it cannot tell its uuid"
    for uuid in sorted(without):
        yield f"{uuid} is not reported: Koordinator knows no more than {MAX_MINOR + 1} cards of a node"
