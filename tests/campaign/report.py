"""The result of a campaign, for people and for programs."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .faults.storage import REGIONS
from .fuzz import Tally, table
from .run import SOON, Result
from .stretches import Stretch

#: What the project promises never to happen, and the kinds of violation that would be it.
PROMISES = {
    "allocations or devices lost": ("lost",),
    "IDs with two owners": ("doubled",),
    "allocations with the wrong pod": ("swapped", "start"),
    "allocations or slices leaked": ("leaked",),
    "slices of others touched": ("foreign",),
    "views of kubelet and agent apart": ("view", "away", "late"),
    "faults or cordons forgotten": ("forgotten",),
    "unplanned exits": ("exit",),
    "exceptions in the log": ("traceback",),
    "admissions that hung": ("hung",),
    "memory, files or processes without bound": ("memory", "descriptors", "orphans"),
    "mistakes of the campaign's own": ("campaign",),
}
BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"
#: The same of the stretches beside Koordinator.
BESIDE = "<!-- koordinator: begin -->", "<!-- koordinator: end -->"


def write(result: Result, tallies: Sequence[Tally], command: str, at: Path) -> None:
    """Write AT.json, and AT.md: whole, or where it has a place for a result, into that."""
    everything = document(result, tallies, command)
    at.with_suffix(".json").write_text(f"{json.dumps(everything, indent=1)}\n")
    _put(at.with_suffix(".md"), markdown(result, tallies, command), BEGIN, END)


def write_stretches(lived: Sequence[Stretch], command: str, at: Path) -> None:
    """Write into AT.md, where it has a place for them, what was seen beside Koordinator."""
    _put(at.with_suffix(".md"), stretches(lived, command), *BESIDE)


def _put(page: Path, fresh: str, begin: str, end: str) -> None:
    old = page.read_text() if page.exists() else ""
    if begin not in old:
        old = f"{old}{begin}\n{end}\n"
    head, _, rest = old.partition(begin)
    page.write_text(f"{head}{begin}\n{fresh}\n{end}{rest.partition(end)[2]}")


def document(result: Result, tallies: Sequence[Tally], command: str) -> dict[str, Any]:
    """Everything, as JSON."""
    return {
        "seed": result.seed,
        "command": command,
        "python": platform.python_version(),
        "seconds": round(result.seconds, 1),
        "faults": len(result.struck),
        "several_at_once": sum(len(one.names) > 1 for one in result.struck),
        "nodes": dict(Counter(one.node for one in result.struck)),
        "kinds": _kinds(result),
        "violations": {name: _count(result, kinds) for name, kinds in PROMISES.items()},
        "regions_spoilt": {file: len(_regions(result, file)) for file in ("checkpoint", "journal")},
        "agent_starts": result.starts,
        "serving_again": _spread(result.served_again),
        "memory": {
            "first_mib": [first >> 20 for first, _ in result.memory],
            "largest_mib": [largest >> 20 for _, largest in result.memory],
        },
        "descriptors": result.descriptors,
        "fuzz": {it.name: {"inputs": it.inputs, "taken": it.taken, "refused": it.refused} for it in tallies},
        "broken": [{"fault": str(one), "evidence": one.evidence} for one in result.struck if one.violations],
    }


def markdown(result: Result, tallies: Sequence[Tally], command: str) -> str:
    """The same as a page, without the evidence."""
    lines = [*_lines(document(result, tallies, command))]
    return "\n".join([*lines, *(["", table(tallies)] if tallies else [])])


def stretches(lived: Sequence[Stretch], command: str) -> str:
    """The stretches beside Koordinator as a table."""
    rows = (f"| {it.name} | {_minutes(it)} | {_seen(it)} | {len(it.violations)} |" for it in lived)
    broken = (f"- {it.name}: {violation}" for it in lived for violation in it.violations)
    head = f"`{command}`; Python {platform.python_version()}."
    table = ("| stretch | minutes | seen | does not hold |", "|---|---|---|---|", *rows)
    return "\n".join([head, "", *table, *broken])


def _minutes(it: Stretch) -> str:
    return f"{it.seconds / 60:g}" if it.speed == 1 else f"{it.seconds / 60:g} at speed {it.speed:g}"


def _seen(it: Stretch) -> str:
    return ", ".join(f"{what}: {count}" for what, count in it.seen.items())


def _lines(it: dict[str, Any]) -> Iterator[str]:
    nodes = ", ".join(f"{node} ({count})" for node, count in it["nodes"].items())
    yield f"`{it['command']}`: {it['faults']} times in {it['seconds']:g} s,"
    yield f"{it['several_at_once']} times two faults at once, on {nodes}; Python {it['python']}."
    yield from ("", "| what must not happen | times |", "|---|---|")
    for name, count in it["violations"].items():
        yield f"| {name} | {count} |"
    yield ""
    if again := it["serving_again"]:
        yield f"Serving again after the end of the process, {again['count']} times:"
        yield f"median {again['p50']:g} s,"
        yield f"99 of 100 within {again['p99']:g} s, the longest {again['max']:g} s;"
        yield f"more than {SOON:g} s: {again['late']} times."
    if largest := it["memory"]["largest_mib"]:
        yield f"Memory (PSS) of the agent's process: {max(it['memory']['first_mib'])} MiB at first,"
        yield f"{max(largest)} MiB at most; {it['descriptors']} files open at most;"
        yield f"{it['agent_starts']} starts."
    for file, count in it["regions_spoilt"].items():
        yield f"The {file} was torn or edited in {count} of its {REGIONS} regions."
    yield from ("", "| fault | times | could not be struck |", "|---|---|---|")
    for name, counts in it["kinds"].items():
        yield f"| {name} | {counts['struck']} | {counts['unreached']} |"


def _kinds(result: Result) -> dict[str, dict[str, int]]:
    struck: Counter[str] = Counter()
    unreached: Counter[str] = Counter()
    for one in result.struck:
        for name, reached in zip(one.names, one.reached, strict=True):
            struck[name] += reached
            unreached[name] += not reached
    return {
        name: {"struck": struck[name], "unreached": unreached[name]} for name in sorted(struck | unreached)
    }


def _count(result: Result, kinds: tuple[str, ...]) -> int:
    return sum(any(it.kind in kinds for it in one.violations) for one in result.struck)


def _regions(result: Result, file: str) -> set[str]:
    details = (it for one in result.struck for it in one.details)
    return {found[1] for it in details if (found := re.search(rf"{file} region (\d+)", it))}


def _spread(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    p50, p99 = (round(ordered[min(last, int(part * len(ordered)))], 2) for part in (0.5, 0.99))
    late = sum(it > SOON for it in ordered)
    return {"count": len(ordered), "p50": p50, "p99": p99, "max": round(ordered[last], 2), "late": late}
