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
from agent.schedulers.koordinator.doctor.report_mode_check import chosen, unconcerned
from agent.schedulers.koordinator.node_report import is_of_agent
from agent.schedulers.koordinator.reported_cards import MAX_MINOR
from agent.vendor_api.text import shorten

DEVICE = "koord-device"

MISSING = FindingKind(
    DEVICE,
    "device-missing",
    Severity.WARNS,
    "the node has cards and no Device object",
    "koord-scheduler leaves the cards of a node without a Device to the kubelet, and does not count "
    "these cards.",
    "run the doctor again in 10 s; if the Device is still missing: with mode feed look at koordlet's "
    "log and at the check koordlet, else at `report` in xpu-agent inspect",
)
EMPTY = FindingKind(
    DEVICE,
    "device-empty",
    Severity.STOPS,
    "the Device of this node lists no card",
    "koord-scheduler takes the node for a node without cards, and places no pod that asks for a card. "
    "koordlet writes an empty Device at its start, and while no file lists a card.",
    "run the doctor again in a minute: with report.mode auto the agent then writes the Device in place "
    "of a silent koordlet; if the Device is still empty see the checks koordinator, koordlet and "
    "device-daemon",
)
UNUSABLE = FindingKind(
    DEVICE,
    "device-unusable",
    Severity.STOPS,
    "the Device lists a card that koord-scheduler cannot count",
    "koord-scheduler panics at a card without a minor. It counts cards with one minor as one card. It "
    "has no room for a minor above 62.",
    "find the program that writes the card: kubectl get devices.scheduling.koordinator.sh {node} -o "
    "yaml --show-managed-fields; correct the list in that program; for koordlet look for cards that two "
    "of its files list",
)
OTHER = FindingKind(
    DEVICE,
    "device-of-others",
    Severity.WARNS,
    "the Device lists other cards than this node's agent serves",
    "koord-scheduler chooses cards that this node does not have. The agent does not follow this choice.",
    "choose the vendor with report.vendor, or stop the program that writes the Device (kubectl get with "
    "--show-managed-fields names the program); if the listed cards were removed: kubectl delete "
    "devices.scheduling.koordinator.sh {node}",
)
DIFFERS = FindingKind(
    DEVICE,
    "device-differs",
    Severity.WARNS,
    "the Device has other cards, or other health of cards, than the agent reports",
    "koord-scheduler may place a pod on a broken card, or never use a healthy card.",
    "run the doctor again in 10 s; if the Device still differs and the mode is feed, look at koordlet's "
    "log: when the API server refuses one card, koordlet cannot write any of the cards",
)
PRUNED = FindingKind(
    DEVICE,
    "device-kind-old",
    Severity.WARNS,
    "the cluster's definition of the kind Device drops the conditions of cards",
    "The definition is from a Koordinator before v1.7. The Device does not show why a card is "
    "unhealthy, and the agent writes the Device again at each look.",
    "update the definition: kubectl apply --server-side -f "
    "deploy/crd/devices.scheduling.koordinator.sh.yaml, or upgrade Koordinator",
)
LEFT = FindingKind(
    DEVICE,
    "device-left-behind",
    Severity.WARNS,
    "report.mode is none, and cards that an agent wrote are in the Device of this node",
    "No agent updates these cards. koord-scheduler counts cards that may be broken or removed.",
    "a running agent removes these cards if it may get, update and delete Devices (with the chart "
    "koordinator.enabled=true); or run kubectl delete devices.scheduling.koordinator.sh {node}",
)
STALE = FindingKind(
    DEVICE,
    "device-of-old-name",
    Severity.WARNS,
    "a Device of another name lists cards of this node",
    "The node had this name before, or the cards were moved from that node. koord-manager counts these "
    "cards twice.",
    "kubectl delete devices.scheduling.koordinator.sh {name}; if Node {name} exists and does not "
    "return: kubectl delete node {name}",
)


def devices(look: NodeLook) -> Iterator[Finding]:
    """Check the Device of this node, and Devices of other names that list cards of this node."""
    device = look.objects.object
    if idle := unconcerned(DEVICE, look):
        documents = device.value or ()
        left = [LEFT.found(_summary(look, documents), node=look.node) for it in documents if is_of_agent(it)]
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
        return "there is no Device, and koord-scheduler gets no card"
    cards = entries(devices[0])
    healthy = sum(card.get("health") is True for card in cards)
    return f"Device {look.node} lists {len(cards)} cards, {healthy} healthy"


def _missing(look: NodeLook) -> Iterator[Finding]:
    mode = chosen(look).mode
    if not look.serves or mode == "none":
        return
    if reported := _report(look).get("cards"):
        yield MISSING.found(f"the agent reports {reported} cards by {mode}")
    elif look.cards:
        yield MISSING.found(f"the node has {len(look.cards)} cards, and the agent reports none by {mode}")


def _wrong(look: NodeLook, device: ApiDocument) -> Iterator[Finding]:
    cards = entries(device)
    if not cards:
        yield EMPTY.found(f"Device {look.node} lists no card")
        return
    if unusable := list(_unusable(cards)):
        yield UNUSABLE.found("; ".join(unusable[:5]), node=look.node)
    if look.cards and look.cards.isdisjoint(text(card, "id") for card in cards):
        vendor = text(part_of(part_of(device, "metadata"), "labels"), VENDOR) or "none"
        named = f"Device {look.node}, of vendor {shorten(vendor)}"
        yield OTHER.found(
            f"{named}, has {shorten(text(cards[0], 'id'))} and no card of this node", node=look.node
        )
        return
    if look.serves and chosen(look).mode != "none":
        yield from _compared(look, cards)


def _unusable(cards: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    minors = Counter(card.get("minor") for card in cards if type(card.get("minor")) is int)
    for card in cards:
        name, minor = shorten(text(card, "id")) or "a card without an id", card.get("minor")
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
        what = "the agent reports {} cards, {} healthy".format(*wanted)
        yield DIFFERS.found("{}; the Device has {}, {} healthy".format(what, *listed))
    elif mode == "device" and not any(rows_of(card, "conditions") for card in cards):
        yield PRUNED.found(f"none of {len(cards)} cards of Device {look.node} has a condition")


def _report(look: NodeLook) -> Mapping[str, Any]:
    return part_of(look.status, "report")
