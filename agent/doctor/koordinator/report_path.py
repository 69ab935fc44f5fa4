"""Which way Koordinator hears of the cards, and whether its own programs are set up for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from agent.config.validation import replicas_as_cards
from agent.doctor.findings import Finding, FindingKind, Severity, not_made, well
from agent.doctor.koordinator.programs import Program, running, with_gate
from agent.doctor.koordinator.reporting_signs import sign
from agent.doctor.surroundings import Surroundings
from agent.http.inspect_document import InspectedReport
from agent.scheduler_api.node_report import ModeChoice, ModeQuestion, ShownReport
from agent.schedulers.common.resource_names import WHOLE_CARDS
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


def unconcerned(check: str, around: Surroundings) -> Finding | None:
    """That there is nothing to look at: Koordinator is not there, or is not to be told. None where it is."""
    kind = around.cluster.koordinator.kind
    if around.config.report.mode == "none":
        return well(check, "report.mode is 'none': Koordinator is told of nothing")
    if kind.value is None:
        return not_made(check, kind.why)
    return None if kind.value else well(check, NO_KIND)


def chosen(around: Surroundings) -> ModeChoice:
    """Which way the running agent tells, and why; which way one would, where none runs."""
    if around.serves and (report := around.document.report).mode:
        return ModeChoice(report.mode, report.why)
    shares = next((rule.name for _, _, rule in replicas_as_cards(around.config, WHOLE_CARDS)), "")
    kind = around.cluster.koordinator.kind.value is True
    shown = ShownReport(has_kind=kind, program=sign(around))
    its = choice(ModeQuestion(around.config.report.mode, shown, True, shares))
    return its or ModeChoice("none", "")


def way(around: Surroundings) -> Iterator[Finding]:
    """Which way Koordinator hears of the cards, if it does."""
    wanted, kind = around.config.report.mode, around.cluster.koordinator.kind
    if wanted in ("device", "feed") and kind.value is False:
        yield NO_DEVICES.found(f"report.mode is '{wanted}', and {NO_KIND}")
        return
    if idle := unconcerned(WAY, around):
        yield idle
        return
    report = around.document.report if around.serves else InspectedReport()
    found = list(_wrong(around, chosen(around)))
    if report.overwritten and not sign(around):
        found.append(OVERWRITTEN.found(f"it tells by {report.mode}: {report.why}"))
    if report.left_out:
        found.append(LEFT_OUT.found("; ".join(report.left_out)))
    elif others := _passed_over(around):
        found.append(LEFT_OUT.found(others))
    its = chosen(around)
    yield from found or [well(WAY, f"the cards are told by {its.mode}: {its.why}")]


def _wrong(around: Surroundings, its: ModeChoice) -> Iterator[Finding]:
    named = around.config.report.mode == "device"
    report = around.document.report if around.serves else InspectedReport()
    # An agent that writes beside one which does nothing is in nobody's way.
    writes = its.mode == "device" and not report.overwritten
    if named and not writes and (shown := sign(around)):
        yield IN_THE_WAY.found(shown)
    elif its.mode == "none":
        yield NOT_TOLD.found(its.why or "the agent has not found a way yet")


def _passed_over(around: Surroundings) -> str:
    """Whose cards are not told as the config names a vendor without any; empty where that is not so."""
    named = around.config.report.vendor
    counts = {it: len(look.value or ()) for it, look in around.vendors.items()}
    others = ", ".join(f"{count} of {it}" for it, count in counts.items() if count)
    if not named or counts.get(named) or not others:
        return ""
    return f"report.vendor is '{named}', which lists no cards, and the node has {others}"


def programs(around: Surroundings) -> Iterator[Finding]:
    """The feature gates of koord-scheduler and koord-manager, as far as their pods show them."""
    if idle := unconcerned(PROGRAMS, around):
        yield idle
        return
    pods = around.cluster.koordinator.programs
    if pods.value is None:
        yield not_made(PROGRAMS, pods.why)
        return
    schedulers, managers = running(pods.value, SCHEDULER), running(pods.value, MANAGER)
    found = list(_without(schedulers, "DevicePluginAdaption", SCHEDULER_GATE))
    found += _without(managers, "EnableSyncGPUSharedResource", MANAGER_GATE)
    if around.has_cards(METAX):
        found += _old((*schedulers, *managers))
    if off := around.cluster.koordinator.colocation.value:
        found.append(COLOCATION.found(off, namespace=shlex.quote(around.cluster.koordinator.namespace)))
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
