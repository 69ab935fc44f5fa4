"""Checks koordlet on this node: whether it reads the agent's file, and what it writes into containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeLook
from agent.schedulers.koordinator.device_infos_file import DIRECTORY
from agent.schedulers.koordinator.doctor.device_check import entries
from agent.schedulers.koordinator.doctor.programs import (
    Program,
    documents,
    koordlet_sign,
    on_host,
    running,
    with_gate,
)
from agent.schedulers.koordinator.doctor.report_mode_check import chosen, unconcerned
from agent.schedulers.koordinator.koordlet_signs import ALL_GATES, GATE, NAME, wrote_devices

KOORDLET = "koordlet"

UNREAD = FindingKind(
    KOORDLET,
    "koordlet-not-reporting",
    Severity.WARNS,
    "the agent writes the cards to a file, and no koordlet on this node is seen to report accelerators",
    "No koordlet reads the file, so Koordinator does not get the cards.",
    "switch koordlet's gate on: helm upgrade koordinator koordinator-sh/koordinator --reuse-values "
    "--set-string 'koordlet.features={gates}'; or set report.mode to auto: the agent then writes the "
    "Device after koordlet has not reported the file's cards for a minute",
)
OLD = FindingKind(
    KOORDLET,
    "koordlet-too-old",
    Severity.WARNS,
    "the koordlet of this node reads no files with cards",
    "koordlet reads files from v1.7 on. An older koordlet reports only the cards that it finds by "
    "itself, which are NVIDIA's.",
    "upgrade Koordinator to v1.7 or later, or switch koordlet's gate Accelerators off and set "
    "report.mode to device",
)
ELSEWHERE = FindingKind(
    KOORDLET,
    "koordlet-reads-elsewhere",
    Severity.WARNS,
    "koordlet reads another directory than the agent writes to",
    "koordlet does not see the agent's file, so Koordinator does not get the cards.",
    "give agent and koordlet the same directory of the host: in the agent's chart set "
    "koordinator.directory={directory}; for koordlet set the mount and -xpu-device-infos-dir",
)
INJECTS = FindingKind(
    KOORDLET,
    "koordlet-injects",
    Severity.WARNS,
    "koordlet also writes NVIDIA_VISIBLE_DEVICES into containers",
    "With its gate GPUEnvInject koordlet gives every container of a pod all cards of the pod, by "
    "minors. This value replaces the value that the agent gave the container.",
    "where pods ask for the agent's resources switch the gate off: helm upgrade koordinator "
    "koordinator-sh/koordinator --reuse-values --set-string 'koordlet.features={gates}'",
)
#: The gates that Koordinator's chart sets by default, without Accelerators (v1.8.0).
USUAL = {"BECPUEvict": True, "BEMemoryEvict": True, "CgroupReconcile": True}
INJECT_GATE = "GPUEnvInject"
#: The first version that reads files (koordinator v1.7.0, collector_xpu.go).
READS = (1, 7)
FLAG = "xpu-device-infos-dir"


def koordlets(look: NodeLook) -> Iterator[Finding]:
    """koordlet's presence here, its gates, its version, and the directory that it reads."""
    if idle := unconcerned(KOORDLET, look):
        yield idle
        return
    if look.pods.value is None:
        yield not_made(KOORDLET, look.pods.why)
        return
    here = running(documents(look.pods.value), NAME)
    reports, fed = koordlet_sign(look), chosen(look).mode == "feed"
    found = []
    if fed and not reports and not _is_read(look):
        where = f"{here[0]} runs without {GATE} (or {ALL_GATES})" if here else "no koordlet runs here"
        gates = with_gate(here[0].gates if here else USUAL, GATE)
        found.append(UNREAD.found(where, gates=gates))
    for koordlet in here:
        found += _wrong(look, koordlet, fed=fed and bool(reports))
    silent = "a koordlet runs here without Accelerators" if here else "no koordlet runs on this node"
    yield from found or [well(KOORDLET, reports or silent)]


def _is_read(look: NodeLook) -> bool:
    """Whether a koordlet wrote cards into the Device, so that one runs though its pod is not seen."""
    return any(wrote_devices(it) and entries(it) for it in look.objects.object.value or ())


def _lists_cards_of_node(look: NodeLook) -> bool:
    """Whether the Device has a card of this node: koordlet then reads the agent's file in any case."""
    devices = look.objects.object.value or ()
    return any(text(card, "id") in look.cards for device in devices for card in entries(device))


def _wrong(look: NodeLook, koordlet: Program, *, fed: bool) -> Iterator[Finding]:
    version = koordlet.version
    if fed and version is not None and version < READS:
        yield OLD.found(f"{koordlet} is of version {version[0]}.{version[1]}")
    if fed and not _lists_cards_of_node(look):
        yield from _elsewhere(look, koordlet)
    if koordlet.has(INJECT_GATE) and look.has_cards("nvidia"):
        gates = with_gate(koordlet.gates, INJECT_GATE, on=False)
        yield INJECTS.found(f"{koordlet} runs with {INJECT_GATE}=true", gates=gates)


def _elsewhere(look: NodeLook, koordlet: Program) -> Iterator[Finding]:
    wanted = _of_the_agent(look, PurePosixPath(look.directory))
    reads = koordlet.on_host(PurePosixPath(koordlet.flags.get(FLAG) or DIRECTORY))
    if reads is None:
        yield ELSEWHERE.found(f"{koordlet} has no directory of the host at its -{FLAG}", directory=wanted)
    elif reads != wanted:
        yield ELSEWHERE.found(f"{koordlet} reads {reads}, the agent writes {wanted}", directory=reads)


def _of_the_agent(look: NodeLook, path: PurePosixPath) -> PurePosixPath:
    """The path on the host of a path in the agent's pod."""
    for pod in documents(look.pods.value):
        if part_of(part_of(pod, "metadata"), "labels").get("app.kubernetes.io/name") == "xpu-agent":
            places = (on_host(pod, it, path) for it in rows_of(part_of(pod, "spec"), "containers"))
            return next((it for it in places if it is not None), path)
    return path
