"""koordlet on this node: whether it reads what the agent writes for it, and what it does to containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeLook
from agent.schedulers.koordinator.device_infos_file import DIRECTORY
from agent.schedulers.koordinator.doctor.device_check import entries
from agent.schedulers.koordinator.doctor.programs import Program, documents, on_host, running, sign, with_gate
from agent.schedulers.koordinator.doctor.report_path import chosen, unconcerned
from agent.schedulers.koordinator.koordlet_signs import ALL_GATES, GATE, NAME, keeps

KOORDLET = "koordlet"

UNREAD = FindingKind(
    KOORDLET,
    "koordlet-not-reporting",
    Severity.WARNS,
    "the cards are told by a file, and no koordlet on this node is seen to report accelerators",
    "Nobody reads the file: Koordinator hears nothing of the cards.",
    "switch its gate on: helm upgrade koordinator koordinator-sh/koordinator --reuse-values --set-string "
    "'koordlet.features={gates}'; or set report.mode to auto: then the agent writes the Device itself a "
    "minute after nobody does what the file says",
)
OLD = FindingKind(
    KOORDLET,
    "koordlet-too-old",
    Severity.WARNS,
    "the koordlet of this node reads no files of cards",
    "It does from v1.7 on. An older one reports what it finds by itself, which are NVIDIA's cards alone.",
    "upgrade Koordinator to v1.7 or later, or switch its gate Accelerators off and set report.mode to device",
)
ELSEWHERE = FindingKind(
    KOORDLET,
    "koordlet-reads-elsewhere",
    Severity.WARNS,
    "koordlet reads another directory than the agent writes",
    "The file lies where nobody looks: Koordinator hears nothing of the cards.",
    "give both the same directory of the host: with the chart koordinator.directory={directory}, and of "
    "koordlet the mount and -xpu-device-infos-dir",
)
INJECTS = FindingKind(
    KOORDLET,
    "koordlet-injects",
    Severity.WARNS,
    "koordlet writes NVIDIA_VISIBLE_DEVICES into containers, too",
    "With its gate GPUEnvInject every container of a pod gets all cards of the pod, by minors, over what the "
    "agent has given just this container.",
    "switch it off where pods ask for the agent's resources: helm upgrade koordinator "
    "koordinator-sh/koordinator --reuse-values --set-string 'koordlet.features={gates}'",
)
#: What Koordinator's chart sets where koordlet.features is empty, but for Accelerators (v1.8.0).
USUAL = {"BECPUEvict": True, "BEMemoryEvict": True, "CgroupReconcile": True}
INJECT_GATE = "GPUEnvInject"
#: The first that reads files (koordinator v1.7.0, collector_xpu.go).
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
    reports, fed = sign(look), chosen(look).mode == "feed"
    found = []
    if fed and not reports and not _is_read(look):
        where = f"{here[0]} runs without {GATE} (or {ALL_GATES})" if here else "none runs here"
        gates = with_gate(here[0].gates if here else USUAL, GATE)
        found.append(UNREAD.found(where, gates=gates))
    for it in here:
        found += _wrong(look, it, fed=fed and bool(reports))
    said = reports or (
        "a koordlet runs here without Accelerators" if here else "no koordlet runs on this node"
    )
    yield from found or [well(KOORDLET, said)]


def _is_read(look: NodeLook) -> bool:
    """Whether the Device is by the hand of a koordlet, and has cards: of one whose pod is not seen."""
    return any(keeps(it) and entries(it) for it in look.objects.object.value or ())


def _lists_ours(look: NodeLook) -> bool:
    """Whether the Device has a card of this node: then what is written is read, wherever it lies."""
    there = look.objects.object.value or ()
    return any(text(card, "id") in look.cards for it in there for card in entries(it))


def _wrong(look: NodeLook, it: Program, *, fed: bool) -> Iterator[Finding]:
    if fed and it.version is not None and it.version < READS:
        yield OLD.found(f"{it} is of version {it.version[0]}.{it.version[1]}")
    if fed and not _lists_ours(look):
        yield from _elsewhere(look, it)
    if it.has(INJECT_GATE) and look.has_cards("nvidia"):
        gates = with_gate(it.gates, INJECT_GATE, on=False)
        yield INJECTS.found(f"{it} runs with {INJECT_GATE}=true", gates=gates)


def _elsewhere(look: NodeLook, it: Program) -> Iterator[Finding]:
    own = PurePosixPath(look.directory)
    wanted = _of_the_agent(look, own)
    reads = it.on_host(PurePosixPath(it.flags.get(FLAG) or DIRECTORY))
    if reads is None:
        yield ELSEWHERE.found(f"{it} has no directory of the host there", directory=wanted)
    elif reads != wanted:
        yield ELSEWHERE.found(f"{it} reads {reads}, the agent writes {wanted}", directory=reads)


def _of_the_agent(look: NodeLook, path: PurePosixPath) -> PurePosixPath:
    """Where the host has what an agent in a pod sees there."""
    for pod in documents(look.pods.value):
        if part_of(part_of(pod, "metadata"), "labels").get("app.kubernetes.io/name") == "xpu-agent":
            places = (on_host(pod, it, path) for it in rows_of(part_of(pod, "spec"), "containers"))
            return next((it for it in places if it is not None), path)
    return path
