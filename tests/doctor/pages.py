"""The table of findings as docs/doctor.md has to have it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.checks import AILMENTS, CHECKS
from agent.doctor.finding import Ailment

#: How a table of Markdown writes a bar in a cell.
PIPE = r"\|"


class _Places(dict[str, str]):
    """What only a node can tell stands in capitals."""

    def __missing__(self, key: str) -> str:
        return key.upper()


def rows() -> Iterator[str]:
    """A section for each check that can find something, a row for each thing that it can find."""
    for check in CHECKS:
        found = [it for it in AILMENTS if it.check == check.name]
        yield from (f"### {check.name}", "", _told(check.make.__doc__ or ""), "")
        yield from ("| finding | | what is wrong | why it matters | what mends it |", "|---|---|---|---|---|")
        yield from map(_row, found)
        yield ""


def _row(it: Ailment) -> str:
    cells = (f"`{it.name}`", str(it.severity), it.title, it.why, it.remedy.format_map(_Places()))
    return f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |"


def _told(doc: str) -> str:
    return doc.strip().partition("\n")[0]
