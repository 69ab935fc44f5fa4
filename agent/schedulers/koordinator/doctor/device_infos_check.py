"""Checks the other files in koordlet's directory, such as the file of koord-device-daemon."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from agent.scheduler_api.findings import Finding, FindingKind, Severity, well
from agent.scheduler_api.node_checks import NodeLook, OtherFile
from agent.schedulers.koordinator.doctor.programs import documents, running
from agent.schedulers.koordinator.doctor.report_path import chosen, unconcerned

CHECK = "device-daemon"
DAEMON = "koord-device-daemon"

#: The affinity of its DaemonSet in Koordinator's chart (v1.8.0, templates/koord-device-daemon.yaml).
AFFINITY = (
    "deviceDaemon.nodeAffinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms[0].matchExpressions[0]"
)
TWICE = FindingKind(
    CHECK,
    "device-daemon-lists-cards",
    Severity.WARNS,
    "another file in koordlet's directory lists cards of this node",
    "The agent leaves them out of its own file, or koordlet would count them twice; what that file says "
    "holds then: koord-device-daemon looks every 15 minutes, and takes all cards away while it restarts.",
    "keep it off nodes of the agent's: label them, and helm upgrade koordinator koordinator-sh/koordinator "
    f"--reuse-values --set '{AFFINITY}.key=LABEL' --set '{AFFINITY}.operator=DoesNotExist'; where no program "
    "writes the file any more: rm -f {path}",
)
BROKEN = FindingKind(
    CHECK,
    "device-infos-broken",
    Severity.WARNS,
    "a file in koordlet's directory cannot be read as a list of cards",
    "koordlet then takes none of the directory's files, the agent's among them: it stays with what it knew.",
    "have the program that writes it mend it, or rm -f {path}",
)
STRANGE = FindingKind(
    CHECK,
    "device-infos-strange",
    Severity.WARNS,
    "something in koordlet's directory is no file of cards",
    "koordlet then takes none of the directory's files, the agent's among them: it stays with what it knew.",
    "have its owner put it elsewhere; where the directory is not koordlet's at all, name koordlet's in "
    "report.deviceInfosDir",
)
NO_DIRECTORY = FindingKind(
    CHECK,
    "device-infos-missing",
    Severity.WARNS,
    "the directory where koordlet looks for files of cards is not there",
    "The agent cannot tell koordlet of the cards.",
    "koordlet makes it on the host: mount it there (with the chart koordinator.enabled=true), or name the "
    "directory in report.deviceInfosDir",
)


def daemons(look: NodeLook) -> Iterator[Finding]:
    """koord-device-daemon on this node, and the files from which koordlet knows cards."""
    if idle := unconcerned(CHECK, look):
        yield idle
        return
    here = [str(it) for it in running(documents(look.pods.value), DAEMON)]
    present = f"{', '.join(here)} runs here" if here else "koord-device-daemon is not seen here"
    if chosen(look).mode != "feed":
        yield well(CHECK, f"{present}; the cards are not told by files")
        return
    if look.files.value is None:
        yield NO_DIRECTORY.found(f"{look.directory}: {look.files.why}")
        return
    found = list(_wrong(look, look.files.value, present))
    none = f"no other file in {look.directory} lists cards of this node"
    yield from found or [well(CHECK, f"{present}; {none}")]


def _wrong(look: NodeLook, files: Sequence[OtherFile], present: str) -> Iterator[Finding]:
    strange = [f"{file.path}: {file.error}" for file in files if file.error and not file.is_like_cards]
    for file in files:
        path, shared = shlex.quote(file.path), sorted(look.cards.intersection(file.cards))
        if file.error and file.is_like_cards:
            yield BROKEN.found(f"{file.path}: {file.error} ({present})", path=path)
        if shared:
            listed = f"{', '.join(shared[:3])}{' and more' if len(shared) > 3 else ''}"
            yield TWICE.found(f"{file.path} lists {listed}; {present}", path=path)
    if strange:
        more = f"; and {len(strange) - 3} more" if len(strange) > 3 else ""
        yield STRANGE.found(f"{'; '.join(strange[:3])}{more}")
