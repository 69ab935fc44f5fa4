"""The Device of this node against its cards, and Devices that an earlier name of the node left."""

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
    "writes one at its start, and where nobody tells it of any card.",
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
    "who writes such an entry mends it: kubectl get devices.scheduling.koordinator.sh {node} -o yaml "
    "--show-managed-fields; for koordlet see what its files list twice",
)
OTHER = FindingKind(
    DEVICE,
    "device-of-others",
    Severity.WARNS,
    "the Device speaks of other cards than this node's agent serves",
    "koord-scheduler promises cards by ids that nobody here can give: its choice is not heeded.",
    "choose the vendor by report.vendor, or have who writes the Device (--show-managed-fields) write no "
    "more; one of cards that are gone: kubectl delete devices.scheduling.koordinator.sh {node}",
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
    "Nobody keeps them up: koord-scheduler counts cards that may be broken or gone.",
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
    if idle := unconcerned(DEVICE, look):
        there = look.objects.object.value or ()
        left = [LEFT.found(_told(look, there), node=look.node) for it in there if is_ours(it)]
        yield from left or [idle]
        return
    stale = look.objects.stale
    old = [
        STALE.found(
            f"Device {it.name} lists {', '.join(it.cards[:3])}, and Node {it.name} {it.gone}", name=it.name
        )
        for it in stale.value or ()
    ]
    if stale.value is None:
        old = [not_made(DEVICE, stale.why)]
    its = look.objects.object
    if its.value is None:
        yield from [not_made(DEVICE, its.why), *old]
        return
    found = list(_wrong(look, its.value[0]) if its.value else _missing(look))
    yield from [*found, *old] or [well(DEVICE, _told(look, its.value))]


def entries(device: ApiDocument) -> list[Mapping[str, Any]]:
    """What it lists as accelerators."""
    return [it for it in rows_of(part_of(device, "spec"), "devices") if it.get("type") == "gpu"]


def _told(look: NodeLook, there: Sequence[ApiDocument]) -> str:
    if not there:
        return "there is no Device, and nobody is told of a card"
    its = entries(there[0])
    return f"Device {look.node} lists {len(its)} cards, {sum(it.get('health') is True for it in its)} healthy"


def _missing(look: NodeLook) -> Iterator[Finding]:
    mode = chosen(look).mode
    if not look.serves or mode == "none":
        return
    if told := _reported(look).get("cards"):
        yield MISSING.found(f"the agent tells of {told} cards by {mode}")
    elif look.cards:
        yield MISSING.found(f"the node has {len(look.cards)} cards, and the agent tells of none by {mode}")


def _wrong(look: NodeLook, device: ApiDocument) -> Iterator[Finding]:
    its = entries(device)
    if not its:
        yield EMPTY.found(f"Device {look.node} is there, without a card")
        return
    if unusable := list(_unusable(its)):
        yield UNUSABLE.found("; ".join(unusable[:5]), node=look.node)
    own = look.cards
    if own and own.isdisjoint(text(it, "id") for it in its):
        vendor = text(part_of(part_of(device, "metadata"), "labels"), VENDOR) or "none"
        named = f"Device {look.node}, of vendor {shorten(vendor)}"
        yield OTHER.found(f"{named}, has {shorten(text(its[0], 'id'))} and none of ours", node=look.node)
        return
    if look.serves and chosen(look).mode != "none":
        yield from _compared(look, its)


def _unusable(its: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    minors = Counter(it.get("minor") for it in its if type(it.get("minor")) is int)
    for it in its:
        name, minor = shorten(text(it, "id")) or "one without an id", it.get("minor")
        if type(minor) is not int:
            yield f"{name} has no minor"
        elif not 0 <= minor <= MAX_MINOR:
            yield f"{name} has minor {minor}"
        elif minors[minor] > 1:
            yield f"{name} shares its minor {minor}"


def _compared(look: NodeLook, its: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    told, mode = _reported(look), chosen(look).mode
    wanted = told.get("cards"), told.get("healthy")
    there = len(its), sum(it.get("health") is True for it in its)
    # In koordlet's files others may list more cards than ours.
    if wanted[0] and there != wanted and (mode == "device" or there[0] <= int(wanted[0])):
        what = "the agent tells of {} cards, {} healthy".format(*wanted)
        yield DIFFERS.found("{}; the Device has {}, {} healthy".format(what, *there))
    elif mode == "device" and not any(rows_of(it, "conditions") for it in its):
        yield PRUNED.found(f"none of {len(its)} cards of Device {look.node} has a condition")


def _reported(look: NodeLook) -> Mapping[str, Any]:
    return part_of(look.status, "report")
