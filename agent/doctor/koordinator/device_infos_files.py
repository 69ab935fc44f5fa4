"""The files of cards beside the agent's own, above all koord-device-daemon's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from agent.doctor.findings import Finding, FindingKind, Severity, well
from agent.doctor.koordinator.programs import running
from agent.doctor.koordinator.report_path import chosen, unconcerned
from agent.doctor.surroundings import Surroundings
from agent.host import files
from agent.host.report_directory import MAX_FILES, NAME, listed
from agent.schedulers.koordinator.node_report import DEVICE_INFOS

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
    f"--reuse-values --set '{AFFINITY}.key=LABEL' --set '{AFFINITY}.operator=DoesNotExist'; where nobody "
    "writes the file any more: rm -f {path}",
)
BROKEN = FindingKind(
    CHECK,
    "device-infos-broken",
    Severity.WARNS,
    "a file in koordlet's directory cannot be read as a list of cards",
    "koordlet then takes none of the directory's files, the agent's among them: it stays with what it knew.",
    "have who writes it mend it, or rm -f {path}",
)
STRANGE = FindingKind(
    CHECK,
    "device-infos-strange",
    Severity.WARNS,
    "something in koordlet's directory is no file of cards",
    "koordlet then takes none of the directory's files, the agent's among them: it stays with what it knew.",
    "have whose it is put it elsewhere; where the directory is not koordlet's at all, name koordlet's in "
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


def daemons(around: Surroundings) -> Iterator[Finding]:
    """koord-device-daemon on this node, and the files from which koordlet knows cards."""
    if idle := unconcerned(CHECK, around):
        yield idle
        return
    here = [str(it) for it in running(around.cluster.pods.value or (), DAEMON)]
    present = f"{', '.join(here)} runs here" if here else "koord-device-daemon is not seen here"
    if chosen(around).mode != "feed":
        yield well(CHECK, f"{present}; the cards are not told by files")
        return
    directory = Path(around.config.report.device_infos_dir)
    try:
        found = list(_wrong(around, directory, present))
    except OSError as exc:
        found = [NO_DIRECTORY.found(f"{directory}: {exc.strerror}")]
    yield from found or [well(CHECK, f"{present}; no other file in {directory} lists cards of this node")]


def _wrong(around: Surroundings, directory: Path, present: str) -> Iterator[Finding]:
    own, strange = around.cards, []
    for path in _files(directory):
        try:
            shared = sorted(own.intersection(listed(path, DEVICE_INFOS) or ()))
        except (OSError, ValueError) as exc:
            what = f"{path}: {getattr(exc, 'strerror', '') or exc}"
            if _looks_like_cards(path):
                yield BROKEN.found(f"{what} ({present})", path=shlex.quote(str(path)))
            else:
                strange.append(what)
            continue
        if shared:
            told = f"{', '.join(shared[:3])}{' and more' if len(shared) > 3 else ''}"
            yield TWICE.found(f"{path} lists {told}; {present}", path=shlex.quote(str(path)))
    if strange:
        more = f"; and {len(strange) - 3} more" if len(strange) > 3 else ""
        yield STRANGE.found(f"{'; '.join(strange[:3])}{more}")


def _looks_like_cards(path: Path) -> bool:
    """Whether a writer of cards may have left it: what may be another's is not to be removed."""
    try:
        return files.read(path, 100, links=False).lstrip()[:1] in (b"[", b"{")
    except OSError:
        return False


def _files(directory: Path) -> list[Path]:
    """Those that koordlet reads, but for the agent's own; bounded."""
    entries = islice((it for it in directory.iterdir() if it.name != NAME), MAX_FILES)
    return sorted(it for it in entries if it.is_symlink() or not it.is_dir())
