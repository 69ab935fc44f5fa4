"""Which way Koordinator hears of the cards, and whether its own programs are set up for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeLook
from agent.scheduler_api.node_report import ModeChoice, ModeQuestion, ShownReport
from agent.schedulers.koordinator.doctor.programs import Program, documents, running, sign, with_gate
from agent.schedulers.koordinator.doctor.queries import PROGRAMS_QUERY, colocation_off
from agent.schedulers.koordinator.report_mode import NO_KIND, choice

WAY = "koordinator"
PROGRAMS = "koord-programs"

NO_DEVICES = FindingKind(
    WAY,
    "koordinator-kind-missing",
    Severity.STOPS,
    "the config tells Koordinator of the cards, and the cluster has no Device objects",
    "Neither the agent nor koordlet can write what koord-scheduler is to know, and an agent whose config "
    "says `device` is not ready.",
    "install Koordinator, or the kind alone: helm upgrade with crd.install=true; where there is to be none, "
    "set report.mode to auto or none",
)
IN_THE_WAY = FindingKind(
    WAY,
    "koordlet-in-the-way",
    Severity.STOPS,
    "the config says `device`, and a koordlet on this node writes that Device, too",
    "Two who write one list would undo each other every few seconds, so the agent writes nothing.",
    "set report.mode to auto or feed: then koordlet reports what the agent tells it; or keep koordlet off "
    "these nodes (koordlet.nodeAffinity in Koordinator's chart) or without Accelerators (koordlet.features)",
)
OVERWRITTEN = FindingKind(
    WAY,
    "device-overwritten",
    Severity.WARNS,
    "a koordlet overwrote the Device that the agent had written",
    "Its pod was not seen to report accelerators, so the agent learned of it too late; it has left the "
    "Device to it since, and feeds it where report.mode is auto.",
    "let the agent see koordlet's pod (in the chart pods.enabled=true), or set report.mode to feed",
)
NOT_TOLD = FindingKind(
    WAY,
    "cards-not-told",
    Severity.WARNS,
    "Koordinator is there and is not told of the cards",
    "Without a Device koord-scheduler leaves the node's cards to the kubelet: it shares and packs none of "
    "them.",
    "do as is said there; where it is meant so set report.mode to none",
)
LEFT_OUT = FindingKind(
    WAY,
    "cards-left-out",
    Severity.WARNS,
    "Koordinator is not told of some cards",
    "It places no pod on them, and they are lost to those that it schedules.",
    "choose the vendor by report.vendor, for a node has one; give the card to a resource of the config; and "
    "see the check device-daemon where another file lists it",
)
SCHEDULER_GATE = FindingKind(
    PROGRAMS,
    "scheduler-gate-off",
    Severity.WARNS,
    "koord-scheduler runs without DevicePluginAdaption",
    "It then writes no vendor's own annotations, and takes no lock of the Node: of two pods that ask alike "
    "the wrong one may get the card.",
    "helm upgrade koordinator koordinator-sh/koordinator --reuse-values --set-string "
    "'scheduler.featureGates={gates}'",
)
MANAGER_GATE = FindingKind(
    PROGRAMS,
    "manager-gate-off",
    Severity.WARNS,
    "koord-manager runs without EnableSyncGPUSharedResource",
    "The Node then offers no koordinator.sh/gpu.shared, and pods that ask for a share of a card stay "
    "Pending.",
    "helm upgrade koordinator koordinator-sh/koordinator --reuse-values --set-string 'featureGates={gates}'",
)
COLOCATION = FindingKind(
    PROGRAMS,
    "colocation-off",
    Severity.WARNS,
    "koord-manager is not enabled for nodes",
    "It takes the Device's cards to the Node only where colocation is enabled; until then no pod that asks "
    "for koordinator.sh/ resources finds a place.",
    'kubectl -n {namespace} edit configmap slo-controller-config: "enable": true in the JSON of '
    "colocation-config; a ConfigMap that is gone comes back by helm upgrade koordinator "
    "koordinator-sh/koordinator --reuse-values",
)
OLD = FindingKind(
    PROGRAMS,
    "koordinator-old",
    Severity.WARNS,
    "Koordinator is too old for MetaX's cards",
    "Before 1.8.0 koord-scheduler writes no annotation that says which slice of which card a container gets, "
    "and knows no lock of the Node, by which of two pods that ask alike each gets its own.",
    "helm upgrade koordinator koordinator-sh/koordinator --version 1.8.0 --reuse-values",
)
#: The release from which Koordinator knows MetaX's cards (pkg/scheduler/plugins/deviceshare, v1.8.0).
METAX, KNOWS_METAX = "metax", (1, 8)
SCHEDULER, MANAGER = "koord-scheduler", "koord-manager"


def unconcerned(check: str, look: NodeLook) -> Finding | None:
    """That there is nothing to look at: Koordinator is not there, or is not to be told. None where it is."""
    kind = look.objects.has_kind
    if look.mode == "none":
        return well(check, "report.mode is 'none': Koordinator is told of nothing")
    if kind.value is None:
        return not_made(check, kind.why)
    return None if kind.value else well(check, NO_KIND)


def chosen(look: NodeLook) -> ModeChoice:
    """Which way the running agent tells, and why; which way one would, where none runs."""
    if look.serves and (told := part_of(look.status, "report")).get("mode"):
        return ModeChoice(told["mode"], str(told.get("why")))
    kind = look.objects.has_kind.value is True
    shown = ShownReport(has_kind=kind, program=sign(look))
    its = choice(ModeQuestion(look.mode, shown, True, look.shares))
    return its or ModeChoice("none", "")


def way(look: NodeLook) -> Iterator[Finding]:
    """Which way Koordinator hears of the cards, if it does."""
    wanted, kind = look.mode, look.objects.has_kind
    if wanted in ("device", "feed") and kind.value is False:
        yield NO_DEVICES.found(f"report.mode is '{wanted}', and {NO_KIND}")
        return
    if idle := unconcerned(WAY, look):
        yield idle
        return
    told = part_of(look.status, "report") if look.serves else {}
    found = list(_wrong(look, chosen(look)))
    if told.get("overwritten") is True and not sign(look):
        found.append(OVERWRITTEN.found(f"it tells by {told.get('mode')}: {told.get('why')}"))
    left = told.get("leftOut")
    if isinstance(left, list) and left:
        found.append(LEFT_OUT.found("; ".join(map(str, left))))
    elif others := _passed_over(look):
        found.append(LEFT_OUT.found(others))
    its = chosen(look)
    yield from found or [well(WAY, f"the cards are told by {its.mode}: {its.why}")]


def _wrong(look: NodeLook, its: ModeChoice) -> Iterator[Finding]:
    named = look.mode == "device"
    told = part_of(look.status, "report") if look.serves else {}
    # An agent that writes beside one which does nothing is in nobody's way.
    writes = its.mode == "device" and told.get("overwritten") is not True
    if named and not writes and (shown := sign(look)):
        yield IN_THE_WAY.found(shown)
    elif its.mode == "none":
        yield NOT_TOLD.found(its.why or "the agent has not found a way yet")


def _passed_over(look: NodeLook) -> str:
    """Whose cards are not told as the config names a vendor without any; empty where that is not so."""
    named = look.vendor
    counts = {name: len(vendor.devices.value or ()) for name, vendor in look.vendors.items()}
    others = ", ".join(f"{count} of {it}" for it, count in counts.items() if count)
    if not named or counts.get(named) or not others:
        return ""
    return f"report.vendor is '{named}', which lists no cards, and the node has {others}"


def programs(look: NodeLook) -> Iterator[Finding]:
    """The feature gates of koord-scheduler and koord-manager, as far as their pods show them."""
    if idle := unconcerned(PROGRAMS, look):
        yield idle
        return
    pods = look.queried[PROGRAMS_QUERY]
    if pods.value is None:
        yield not_made(PROGRAMS, pods.why)
        return
    schedulers, managers = running(documents(pods.value), SCHEDULER), running(documents(pods.value), MANAGER)
    found = list(_without(schedulers, "DevicePluginAdaption", SCHEDULER_GATE))
    found += _without(managers, "EnableSyncGPUSharedResource", MANAGER_GATE)
    if look.has_cards(METAX):
        found += _old((*schedulers, *managers))
    if off := colocation_off(look.objects):
        found.append(COLOCATION.found(off, namespace=shlex.quote(look.objects.namespace)))
    missing = [name for name, its in ((SCHEDULER, schedulers), (MANAGER, managers)) if not its]
    if missing:
        found.append(not_made(PROGRAMS, f"no pod of {' and '.join(missing)} is seen in this cluster"))
    yield from found or [
        well(PROGRAMS, "koord-scheduler and koord-manager have the gates for device plugins")
    ]


def _old(running: Iterable[Program]) -> Iterator[Finding]:
    """Those whose image says a release that does not know MetaX's cards."""
    old = [it for it in running if it.version is not None and it.version < KNOWS_METAX]
    if old:
        told = ", ".join(f"{it} is of version {'.'.join(map(str, it.version or ()))}" for it in old[:3])
        yield OLD.found(told)


def _without(running: list[Program], gate: str, ailment: FindingKind) -> Iterator[Finding]:
    off = [it for it in running if not it.has(gate)]
    if off:
        what = f"{', '.join(map(str, off[:3]))}: without {gate}=true in --feature-gates"
        yield ailment.found(what, gates=with_gate(off[0].gates, gate))
