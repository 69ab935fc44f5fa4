"""The result of a campaign, for people and for programs."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .run import SOON, Result

#: What the project promises never to happen, and the kinds of violation that would be it.
PROMISES = {
    "lost": ("lost",),
    "doubled": ("doubled",),
    "swapped": ("swapped", "start"),
    "leaked": ("leaked",),
    "foreign slices touched": ("foreign",),
    "views apart": ("view", "away", "late"),
    "faults forgotten": ("forgotten",),
    "unplanned exits": ("exit",),
    "tracebacks": ("traceback",),
    "admissions that hung": ("hung",),
    "memory, files or processes without bound": ("memory", "descriptors", "orphans"),
}


def document(result: Result, command: str) -> dict[str, Any]:
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
        "agent_starts": result.starts,
        "serving_again": _spread(result.served_again),
        "memory": {
            "first_mib": [first >> 20 for first, _ in result.memory],
            "largest_mib": [largest >> 20 for _, largest in result.memory],
        },
        "descriptors": result.descriptors,
        "broken": [{"fault": str(one), "evidence": one.evidence} for one in result.struck if one.violations],
    }


def markdown(result: Result, command: str) -> str:
    """The same as a page, without the evidence."""
    return "\n".join(_lines(document(result, command)))


def _lines(it: dict[str, Any]) -> Iterator[str]:
    again = it["serving_again"]
    yield f"`{it['command']}`"
    yield ""
    nodes = ", ".join(f"{node} ({count})" for node, count in it["nodes"].items())
    yield f"{it['faults']} times in {it['seconds']:g} s, {it['several_at_once']} times two faults at once,"
    yield f"on {nodes}; Python {it['python']}."
    yield ""
    yield "| promise | broken |"
    yield "|---|---|"
    for name, count in it["violations"].items():
        yield f"| {name} | {count} |"
    yield ""
    if again:
        yield (
            f"Serving again after the process's end, {again['count']} times: median {again['p50']:g} s, "
            f"99 of 100 within {again['p99']:g} s, the longest {again['max']:g} s; "
            f"more than {SOON:g} s: {again['late']} times."
        )
    if it["memory"]["largest_mib"]:
        yield (
            f"Memory (PSS) of the agent's process: {min(it['memory']['first_mib'])} to "
            f"{max(it['memory']['first_mib'])} MiB at first, {max(it['memory']['largest_mib'])} MiB at most; "
            f"open files: {it['descriptors']} at most; starts: {it['agent_starts']}."
        )
    yield ""
    yield "| fault | times | did not come about |"
    yield "|---|---|---|"
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


def _spread(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    p50, p99 = (round(ordered[min(last, int(part * len(ordered)))], 2) for part in (0.5, 0.99))
    late = sum(it > SOON for it in ordered)
    return {"count": len(ordered), "p50": p50, "p99": p99, "max": round(ordered[last], 2), "late": late}


def text(result: Result, command: str) -> str:
    """The document as it is written to a file."""
    return json.dumps(document(result, command), indent=1)
