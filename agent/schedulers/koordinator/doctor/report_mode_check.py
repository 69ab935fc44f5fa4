"""Checks the report mode for Koordinator, and the settings of Koordinator's own programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeLook
from agent.scheduler_api.node_report import ModeChoice, ModeQuestion, ShownReport
from agent.schedulers.koordinator.doctor.programs import Program, documents, koordlet_sign, running, with_gate
from agent.schedulers.koordinator.doctor.queries import PROGRAMS_QUERY, colocation_off
from agent.schedulers.koordinator.report_mode import NO_KIND, choice

REPORT_MODE = "koordinator"
PROGRAMS = "koord-programs"

NO_DEVICES = FindingKind(
    REPORT_MODE,
    "koordinator-kind-missing",
    Severity.STOPS,
    "the config reports the cards to Koordinator, and the cluster has no Device objects",
    "Neither the agent nor koordlet can write the Device that koord-scheduler reads. With report.mode "
    "device the agent is not ready.",
    "install Koordinator, or the kind Device alone: helm upgrade with crd.install=true; without "
    "Koordinator set report.mode to auto or none",
)
IN_THE_WAY = FindingKind(
    REPORT_MODE,
    "koordlet-in-the-way",
    Severity.STOPS,
    "report.mode is device, and koordlet on this node writes the same Device",
    "Two writers of one list would undo each other every few seconds. So the agent writes nothing.",
    "set report.mode to auto or feed, so that koordlet reports the cards in the agent's file; or keep "
    "koordlet off these nodes (koordlet.nodeAffinity in Koordinator's chart) or switch its gate "
    "Accelerators off (koordlet.features)",
)
OVERWRITTEN = FindingKind(
    REPORT_MODE,
    "device-overwritten",
    Severity.WARNS,
    "koordlet overwrote the Device that the agent had written",
    "The agent did not see that koordlet's pod reports accelerators, and wrote the Device. Since then "
    "koordlet writes the Device; with report.mode auto the agent gives koordlet the cards in a file.",
    "let the agent see koordlet's pod (in the chart pods.enabled=true), or set report.mode to feed",
)
NOT_REPORTED = FindingKind(
    REPORT_MODE,
    "cards-not-told",
    Severity.WARNS,
    "Koordinator is installed and does not get the cards",
    "Without a Device koord-scheduler leaves the node's cards to the kubelet. It shares and packs none "
    "of these cards.",
    "follow the reason that the finding names; if Koordinator shall not get the cards, set report.mode "
    "to none",
)
LEFT_OUT = FindingKind(
    REPORT_MODE,
    "cards-left-out",
    Severity.WARNS,
    "Koordinator does not get some cards",
    "koord-scheduler places no pod on these cards.",
    "a node reports the cards of one vendor: choose the vendor with report.vendor; add a resource for "
    "the card to the config; if another file lists the card, see the check device-daemon",
)
SCHEDULER_GATE = FindingKind(
    PROGRAMS,
    "scheduler-gate-off",
    Severity.WARNS,
    "koord-scheduler runs without DevicePluginAdaption",
    "koord-scheduler then writes no annotations of the vendor and takes no lock of the Node. Of two "
    "pods with equal requests the wrong pod may get the card.",
    "helm upgrade koordinator koordinator-sh/koordinator --reuse-values --set-string "
    "'scheduler.featureGates={gates}'",
)
MANAGER_GATE = FindingKind(
    PROGRAMS,
    "manager-gate-off",
    Severity.WARNS,
    "koord-manager runs without EnableSyncGPUSharedResource",
    "The Node then offers no koordinator.sh/gpu.shared. Pods that ask for a share of a card stay Pending.",
    "helm upgrade koordinator koordinator-sh/koordinator --reuse-values --set-string 'featureGates={gates}'",
)
COLOCATION = FindingKind(
    PROGRAMS,
    "colocation-off",
    Severity.WARNS,
    "koord-manager is not enabled for nodes",
    "koord-manager writes the Device's cards to the Node only where colocation is enabled. Until then "
    "no pod that asks for koordinator.sh/ resources is placed here.",
    'kubectl -n {namespace} edit configmap slo-controller-config: set "enable": true in the JSON of '
    "colocation-config; if the ConfigMap is missing: helm upgrade koordinator "
    "koordinator-sh/koordinator --reuse-values",
)
OLD = FindingKind(
    PROGRAMS,
    "koordinator-old",
    Severity.WARNS,
    "Koordinator is too old for MetaX's cards",
    "Before 1.8.0 koord-scheduler writes no annotation with the card and the slice of each container. "
    "It also takes no lock of the Node, so that of two pods with equal requests the wrong pod may get "
    "the card.",
    "helm upgrade koordinator koordinator-sh/koordinator --version 1.8.0 --reuse-values",
)
#: The first release of Koordinator with MetaX's cards (pkg/scheduler/plugins/deviceshare, v1.8.0).
METAX, KNOWS_METAX = "metax", (1, 8)
SCHEDULER, MANAGER = "koord-scheduler", "koord-manager"


def unconcerned(check: str, look: NodeLook) -> Finding | None:
    """A finding that Koordinator is not there, or gets no report; None where it is to get one."""
    kind = look.objects.has_kind
    if look.mode == "none":
        return well(check, "report.mode is 'none': Koordinator gets no cards")
    if kind.value is None:
        return not_made(check, kind.why)
    return None if kind.value else well(check, NO_KIND)


def chosen(look: NodeLook) -> ModeChoice:
    """The report mode of the running agent, and why; without an agent the mode that one would choose."""
    if look.serves and (report := part_of(look.status, "report")).get("mode"):
        return ModeChoice(report["mode"], str(report.get("why")))
    kind = look.objects.has_kind.value is True
    shown = ShownReport(has_kind=kind, program=koordlet_sign(look))
    question = ModeQuestion(look.mode, shown, api=True, shares=look.shares)
    return choice(question) or ModeChoice("none", "")


def report_mode(look: NodeLook) -> Iterator[Finding]:
    """The report mode: how Koordinator gets the report of the cards."""
    wanted, kind = look.mode, look.objects.has_kind
    if wanted in ("device", "feed") and kind.value is False:
        yield NO_DEVICES.found(f"report.mode is '{wanted}', and {NO_KIND}")
        return
    if idle := unconcerned(REPORT_MODE, look):
        yield idle
        return
    report, current = part_of(look.status, "report") if look.serves else {}, chosen(look)
    found = list(_wrong(look, current))
    if report.get("overwritten") is True and not koordlet_sign(look):
        found.append(OVERWRITTEN.found(f"the agent reports by {report.get('mode')}: {report.get('why')}"))
    left = report.get("leftOut")
    if isinstance(left, list) and left:
        found.append(LEFT_OUT.found("; ".join(map(str, left))))
    elif others := _passed_over(look):
        found.append(LEFT_OUT.found(others))
    yield from found or [well(REPORT_MODE, f"the agent reports the cards by {current.mode}: {current.why}")]


def _wrong(look: NodeLook, current: ModeChoice) -> Iterator[Finding]:
    named = look.mode == "device"
    report = part_of(look.status, "report") if look.serves else {}
    # An agent that writes the Device beside a koordlet that does nothing is no conflict.
    writes = current.mode == "device" and report.get("overwritten") is not True
    if named and not writes and (koordlet := koordlet_sign(look)):
        yield IN_THE_WAY.found(koordlet)
    elif current.mode == "none":
        yield NOT_REPORTED.found(current.why or "the agent has not chosen a report mode yet")


def _passed_over(look: NodeLook) -> str:
    """That the config names a vendor without cards while other vendors have some; empty otherwise."""
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
    missing = [name for name, pods in ((SCHEDULER, schedulers), (MANAGER, managers)) if not pods]
    if missing:
        found.append(not_made(PROGRAMS, f"no pod of {' and '.join(missing)} is seen in this cluster"))
    yield from found or [
        well(PROGRAMS, "koord-scheduler and koord-manager have the gates for device plugins")
    ]


def _old(running: Iterable[Program]) -> Iterator[Finding]:
    """Programs of a release without MetaX's cards, by the tag of the image."""
    old = [it for it in running if it.version is not None and it.version < KNOWS_METAX]
    if old:
        listed = ", ".join(f"{it} is of version {'.'.join(map(str, it.version or ()))}" for it in old[:3])
        yield OLD.found(listed)


def _without(running: list[Program], gate: str, kind: FindingKind) -> Iterator[Finding]:
    off = [it for it in running if not it.has(gate)]
    if off:
        what = f"{', '.join(map(str, off[:3]))}: without {gate}=true in --feature-gates"
        yield kind.found(what, gates=with_gate(off[0].gates, gate))
