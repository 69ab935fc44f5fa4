"""Checks for files of earlier configurations that the agent does not keep any more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent.doctor.surroundings import Surroundings
from agent.host import scheduler_report_file
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.state.uninstall_record import NAME, UninstallRecord, is_out_of_sight

CHECK = "remains"

LEFT = FindingKind(
    CHECK,
    "file-left-behind",
    Severity.WARNS,
    "a file of an earlier configuration is left on the node",
    "Labels in such a file stay on the Node. A CDI spec may name other devices by now. The agent and "
    "xpu-agent uninstall remove the files that they can see; a pod sees only mounted directories.",
    "on the node: rm -f {path}, then delete its line from {remains}; or mount {directory} again (with "
    "the chart labels.directory, or cdi.dir) and run xpu-agent uninstall, which removes the file",
)


def remains(around: Surroundings) -> Iterator[Finding]:
    """Files in the record of the state directory that the agent does not keep and that may still exist."""
    record = around.config.agent.state_dir / NAME
    try:
        files = UninstallRecord(record).all()
    except OSError as exc:
        yield not_made(
            CHECK, f"{record}: {exc.strerror}; run the doctor as root, or as the user of the agent"
        )
        return
    left = [(it, why) for it in files if not _is_kept(around, it) and (why := _presence(it))]
    for path, why in left:
        yield LEFT.found(f"{path}: {why}", path=path, remains=record, directory=path.parent)
    if not left:
        yield well(CHECK, f"{record}: no file of an earlier configuration is left")


def _is_kept(around: Surroundings, path: Path) -> bool:
    """Whether the agent keeps the file.

    The spec of a disabled vendor is kept: its containers may start again.
    """
    report = around.config.report
    labels = report.features_file if report.published_as == "file" else ""
    cards = (
        Path(report.device_infos_dir, scheduler_report_file.NAME) if report.mode in ("auto", "feed") else None
    )
    return path.parent == around.config.agent.cdi_dir or str(path) == labels or path == cards


def _presence(path: Path) -> str:
    """A sentence that the file exists, or may exist; empty where it is gone."""
    if os.path.lexists(path):
        return "the file exists, and no agent keeps the file"
    hidden = is_out_of_sight(path, os.environ)
    return f"the file may be on the node: the node's {path.parent} is not mounted here" if hidden else ""
