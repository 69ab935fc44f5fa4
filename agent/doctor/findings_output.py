"""The findings as output: a list for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

from agent.host import terminal
from agent.scheduler_api.findings import Finding, Severity

_STYLES = {
    Severity.STOPS: "bold red",
    Severity.WARNS: "yellow",
    Severity.NOT_MADE: "cyan",
    Severity.OK: "green",
}
_WORDS = {Severity.STOPS: "STOPS", Severity.WARNS: "warns", Severity.NOT_MADE: "not made", Severity.OK: "ok"}
_WIDTH = 100


def stops(findings: Sequence[Finding]) -> bool:
    """Whether a finding keeps this node from its work."""
    return any(it.severity is Severity.STOPS for it in findings)


def document(node: str, version: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """What --json prints. Keys may be added; keys that are here stay."""
    counts = Counter(it.severity for it in findings)
    return {
        "node": node,
        "version": version,
        "counts": {str(it): counts[it] for it in Severity},
        "findings": [_encoded(it) for it in findings],
    }


def _encoded(finding: Finding) -> dict[str, str]:
    """The finding's JSON object. Readers know the kind by the key `ailment`."""
    return {
        "check": finding.check,
        "severity": str(finding.severity),
        "what": finding.what,
        "ailment": finding.kind,
        "why": finding.why,
        "remedy": finding.remedy,
    }


def summary(findings: Sequence[Finding]) -> str:
    counts = Counter(it.severity for it in findings)
    counted = ", ".join(f"{counts[it]} {_WORDS[it]}" for it in Severity if counts[it])
    return f"{counted}: {'this stops work' if stops(findings) else 'nothing stops work'}"


def show(node: str, version: str, findings: Sequence[Finding], stream: TextIO | None = None) -> None:
    """Print a line for each finding, and below it why the finding matters and what mends it."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        severity = Text(_WORDS[finding.severity], _STYLES[finding.severity])
        table.add_row(severity, Text(finding.check), Text(finding.what))
        if finding.why:
            table.add_row("", "", Padding(Text(f"why: {finding.why}", "dim"), (0, 0, 0, 2)))
            table.add_row("", "", Padding(Text(f"do:  {finding.remedy}"), (0, 0, 0, 2)))
    heading = terminal.styled(f"node {node}, xpu-agent {version}", "bold")
    terminal.show([heading, table, terminal.styled(summary(findings), "bold")], stream, _WIDTH)
