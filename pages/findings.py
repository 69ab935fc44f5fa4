"""The findings of `xpu-agent doctor`, check by check, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.checks import CHECKS, FINDING_KINDS
from agent.scheduler_api.findings import FindingKind
from pages.table import code, table

_HEAD = ("finding", "", "what is wrong", "why it matters", "what mends it")


class _Places(dict[str, str]):
    """What only a node can tell stands in capitals."""

    def __missing__(self, key: str) -> str:
        return key.upper()


def findings() -> Iterator[str]:
    """A section for each check, a row for each thing that it can find."""
    for check in CHECKS:
        found = [it for it in FINDING_KINDS if it.check == check.name]
        yield from (f"### {check.name}", "", _told(check.make.__doc__ or ""), "")
        yield from (*table(_HEAD, map(_cells, found)), "")


def _cells(it: FindingKind) -> tuple[str, ...]:
    return (code(it.name), str(it.severity), it.title, it.why, it.remedy.format_map(_Places()))


def _told(doc: str) -> str:
    return doc.strip().partition("\n")[0]
