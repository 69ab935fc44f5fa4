"""Files that agents of this node have left, and that the agent of today keeps no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent.doctor.surroundings import Surroundings
from agent.host import report_directory
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.state.uninstall_record import NAME, UninstallRecord, is_out_of_sight

CHECK = "remains"

LEFT = FindingKind(
    CHECK,
    "file-left-behind",
    Severity.WARNS,
    "a file of an earlier configuration is left on the node",
    "Labels in such a file hold on, and a CDI spec names devices that may be others by now. The agent and "
    "xpu-agent uninstall remove what they see; in a pod that is what is mounted.",
    "on the node: rm -f {path}, then strike its line out of {remains}; or mount {directory} again (with the "
    "chart labels.directory, or cdi.dir), and xpu-agent uninstall removes it",
)


def remains(around: Surroundings) -> Iterator[Finding]:
    """What is written down as ours, and neither kept nor seen to be gone."""
    noted = around.config.agent.state_dir / NAME
    try:
        files = UninstallRecord(noted).all()
    except OSError as exc:
        yield not_made(CHECK, f"{noted}: {exc.strerror}; ask as root, or as who runs the agent")
        return
    left = [(it, why) for it in files if not _is_kept(around, it) and (why := _there(it))]
    for path, why in left:
        yield LEFT.found(f"{path}: {why}", path=path, remains=noted, directory=path.parent)
    if not left:
        yield well(CHECK, f"{noted}: no file of an earlier configuration is left")


def _is_kept(around: Surroundings, path: Path) -> bool:
    """A spec of a vendor that is off is kept, too: containers of it may start again."""
    report = around.config.report
    labels = report.features_file if report.published_as == "file" else ""
    cards = Path(report.device_infos_dir, report_directory.NAME) if report.mode in ("auto", "feed") else None
    return path.parent == around.config.agent.cdi_dir or str(path) == labels or path == cards


def _there(path: Path) -> str:
    """That it is there, or may be; empty where it is gone."""
    if os.path.lexists(path):
        return "it is there, and nobody keeps it"
    hidden = is_out_of_sight(path, os.environ)
    return f"it may be on the node, whose {path.parent} is not mounted here" if hidden else ""
