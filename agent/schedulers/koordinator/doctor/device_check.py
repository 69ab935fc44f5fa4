"""Compares the Device of this node with its cards, and finds Devices of earlier names of the node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeLook
from agent.scheduler_api.node_report import ApiDocument
from agent.schedulers.koordinator.device_object import VENDOR
from agent.schedulers.koordinator.doctor.report_path import chosen, unconcerned
from agent.schedulers.koordinator.node_report import is_ours
from agent.schedulers.koordinator.report import MAX_MINOR
from agent.vendor_api.text import shorten

DEVICE = "koord-device"

MISSING = FindingKind(
    DEVICE,
    "device-missing",
    Severity.WARNS,
    "the node has cards and no Device object",
    "koord-scheduler leaves the cards of a node without a Device to the kubelet, and books nothing.",
    "look again in 10 s; if it stays so, and the agent tells by feed, look at koordlet's log and at the "
    "check koordlet, else at `report` in xpu-agent inspect",
)
EMPTY = FindingKind(
    DEVICE,
    "device-empty",
    Severity.STOPS,
    "the Device of this node lists no card",
    "For koord-scheduler that is a node without cards: no pod that asks for one is placed here. koordlet "
    "writes one at its start, and where no file tells it of a card.",
    "look again in a minute, in which report.mode auto takes over from a koordlet that does nothing; if it "
    "stays so, see the checks koordinator, koordlet and device-daemon",
)
UNUSABLE = FindingKind(
    DEVICE,
    "device-unusable",
    Severity.STOPS,
    "the Device lists a card that koord-scheduler cannot count with",
    "It ends in a panic at a card without a minor, books cards of one minor as one, and has no room for a "
    "minor above 62.",
    "have the program that writes such an entry mend it: kubectl get devices.scheduling.koordinator.sh "
    "{node} -o yaml --show-managed-fields; for koordlet see what its files list twice",
)
OTHER = FindingKind(
    DEVICE,
    "device-of-others",
    Severity.WARNS,
    "the Device speaks of other cards than this node's agent serves",
    "koord-scheduler promises cards by ids that this node does not have: its choice is not heeded.",
    "choose the vendor by report.vendor, or stop the program that writes the Device "
    "(--show-managed-fields); a Device of cards that are gone: kubectl delete "
    "devices.scheduling.koordinator.sh {node}",
)
DIFFERS = FindingKind(
    DEVICE,
    "device-differs",
    Severity.WARNS,
    "the Device has other cards, or other health, than the agent tells",
    "koord-scheduler places pods by it: on a card that is broken, or never on one that is whole.",
    "look again in 10 s; if it stays so, and the agent tells by feed, look at koordlet's log: one entry that "
    "the API server refuses keeps all from it",
)
PRUNED = FindingKind(
    DEVICE,
    "device-kind-old",
    Severity.WARNS,
    "the cluster's kind of Device drops the conditions of cards",
    "It is of a Koordinator before v1.7: why a card is unhealthy is lost, and the agent writes it anew at "
    "each look.",
    "bring the kind up to date: kubectl apply --server-side -f "
    "deploy/crd/devices.scheduling.koordinator.sh.yaml, or upgrade Koordinator",
)
LEFT = FindingKind(
    DEVICE,
    "device-left-behind",
    Severity.WARNS,
    "report.mode is none, and cards that an agent wrote are in the Device of this node",
    "No agent keeps them up: koord-scheduler counts cards that may be broken or gone.",
    "an agent that runs takes them out by itself, where it may get, update and delete Devices (with the "
    "chart koordinator.enabled=true); or kubectl delete devices.scheduling.koordinator.sh {node}",
)
STALE = FindingKind(
    DEVICE,
    "device-of-old-name",
    Severity.WARNS,
    "a Device of another name lists cards of this node",
    "The node had that name before, or the cards were there: koord-manager and people count them twice.",
    "kubectl delete devices.scheduling.koordinator.sh {name}, and kubectl delete node {name} where that is "
    "there and does not come back",
)


def devices(look: NodeLook) -> Iterator[Finding]:
    """The Device of this node, and those of other names that list its cards."""
    device = look.objects.object
    if idle := unconcerned(DEVICE, look):
        documents = device.value or ()
        left = [LEFT.found(_summary(look, documents), node=look.node) for it in documents if is_ours(it)]
        yield from left or [idle]
        return
    old = list(_of_old_names(look))
    if device.value is None:
        yield from [not_made(DEVICE, device.why), *old]
        return
    found = list(_wrong(look, device.value[0]) if device.value else _missing(look))
    yield from [*found, *old] or [well(DEVICE, _summary(look, device.value))]


def _of_old_names(look: NodeLook) -> Iterator[Finding]:
    stale = look.objects.stale
    if stale.value is None:
        yield not_made(DEVICE, stale.why)
    for device in stale.value or ():
        cards = ", ".join(device.cards[:3])
        what = f"Device {device.name} lists {cards}, and Node {device.name} {device.gone}"
        yield STALE.found(what, name=device.name)


def entries(device: ApiDocument) -> list[Mapping[str, Any]]:
    """The Device's entries of accelerators."""
    return [it for it in rows_of(part_of(device, "spec"), "devices") if it.get("type") == "gpu"]


def _summary(look: NodeLook, devices: Sequence[ApiDocument]) -> str:
    if not devices:
        return "there is no Device, and no scheduler is told of a card"
    cards = entries(devices[0])
    healthy = sum(card.get("health") is True for card in cards)
    return f"Device {look.node} lists {len(cards)} cards, {healthy} healthy"


def _missing(look: NodeLook) -> Iterator[Finding]:
    mode = chosen(look).mode
    if not look.serves or mode == "none":
        return
    if reported := _report(look).get("cards"):
        yield MISSING.found(f"the agent tells of {reported} cards by {mode}")
    elif look.cards:
        yield MISSING.found(f"the node has {len(look.cards)} cards, and the agent tells of none by {mode}")


def _wrong(look: NodeLook, device: ApiDocument) -> Iterator[Finding]:
    cards = entries(device)
    if not cards:
        yield EMPTY.found(f"Device {look.node} is there, without a card")
        return
    if unusable := list(_unusable(cards)):
        yield UNUSABLE.found("; ".join(unusable[:5]), node=look.node)
    if look.cards and look.cards.isdisjoint(text(card, "id") for card in cards):
        vendor = text(part_of(part_of(device, "metadata"), "labels"), VENDOR) or "none"
        named = f"Device {look.node}, of vendor {shorten(vendor)}"
        yield OTHER.found(f"{named}, has {shorten(text(cards[0], 'id'))} and none of ours", node=look.node)
        return
    if look.serves and chosen(look).mode != "none":
        yield from _compared(look, cards)


def _unusable(cards: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    minors = Counter(card.get("minor") for card in cards if type(card.get("minor")) is int)
    for card in cards:
        name, minor = shorten(text(card, "id")) or "one without an id", card.get("minor")
        if type(minor) is not int:
            yield f"{name} has no minor"
        elif not 0 <= minor <= MAX_MINOR:
            yield f"{name} has minor {minor}"
        elif minors[minor] > 1:
            yield f"{name} shares its minor {minor}"


def _compared(look: NodeLook, cards: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    report, mode = _report(look), chosen(look).mode
    wanted = report.get("cards"), report.get("healthy")
    listed = len(cards), sum(card.get("health") is True for card in cards)
    # Other files of koordlet's directory may list more cards than the agent's file.
    if wanted[0] and listed != wanted and (mode == "device" or listed[0] <= int(wanted[0])):
        what = "the agent tells of {} cards, {} healthy".format(*wanted)
        yield DIFFERS.found("{}; the Device has {}, {} healthy".format(what, *listed))
    elif mode == "device" and not any(rows_of(card, "conditions") for card in cards):
        yield PRUNED.found(f"none of {len(cards)} cards of Device {look.node} has a condition")


def _report(look: NodeLook) -> Mapping[str, Any]:
    return part_of(look.status, "report")
