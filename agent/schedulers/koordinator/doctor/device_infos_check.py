"""Checks the other files in koordlet's directory, such as the file of koord-device-daemon."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from agent.scheduler_api.findings import Finding, FindingKind, Severity, well
from agent.scheduler_api.node_checks import NodeLook, OtherFile
from agent.schedulers.koordinator.doctor.programs import documents, running
from agent.schedulers.koordinator.doctor.report_mode_check import chosen, unconcerned

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
    "The agent leaves these cards out of its own file, because koordlet would count the cards twice. So the "
    "other file decides: koord-device-daemon looks at the cards every 15 minutes, and removes all cards "
    "while it restarts.",
    "keep koord-device-daemon off the agent's nodes: label these nodes, then helm upgrade koordinator "
    f"koordinator-sh/koordinator --reuse-values --set '{AFFINITY}.key=LABEL' --set "
    f"'{AFFINITY}.operator=DoesNotExist'; "
    "if no program writes the file any more: rm -f {path}",
)
BROKEN = FindingKind(
    CHECK,
    "device-infos-broken",
    Severity.WARNS,
    "a file in koordlet's directory cannot be read as a list of cards",
    "koordlet then reads none of the directory's files, not even the agent's file. koordlet keeps the "
    "cards that it read last.",
    "correct the file in the program that writes the file, or run rm -f {path}",
)
STRANGE = FindingKind(
    CHECK,
    "device-infos-strange",
    Severity.WARNS,
    "koordlet's directory has something that is no file with cards",
    "koordlet then reads none of the directory's files, not even the agent's file. koordlet keeps the "
    "cards that it read last.",
    "move the named files to another directory; if the directory is not koordlet's, set "
    "report.deviceInfosDir to koordlet's directory",
)
NO_DIRECTORY = FindingKind(
    CHECK,
    "device-infos-missing",
    Severity.WARNS,
    "the directory in which koordlet reads files with cards does not exist",
    "The agent cannot give koordlet the cards.",
    "koordlet makes the directory on the host: mount the directory in the agent's pod (with the chart "
    "koordinator.enabled=true), or set report.deviceInfosDir to the directory",
)


def daemons(look: NodeLook) -> Iterator[Finding]:
    """koord-device-daemon on this node, and the files from which koordlet knows cards."""
    if idle := unconcerned(CHECK, look):
        yield idle
        return
    here = [str(it) for it in running(documents(look.pods.value), DAEMON)]
    present = f"{', '.join(here)} runs here" if here else "koord-device-daemon is not seen here"
    if chosen(look).mode != "feed":
        yield well(CHECK, f"{present}; the agent writes no file with cards")
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
