"""Checks schedulers' locks on the Node that were not freed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from agent.core.allocation.node_lock_rules import EXPIRES, parsed_lock
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.text import shorten

CHECK = "scheduler-locks"
#: Seconds by which a scheduler's clock may be ahead of this node's.
SKEW = 60.0

LEFT = FindingKind(
    CHECK,
    "lock-left-behind",
    Severity.WARNS,
    "a scheduler's lock on the Node is not freed",
    "The scheduler takes the lock before it binds a pod, and waits for up to 5 minutes until the agent "
    "of this node frees the lock. The agent frees the lock when the pod has its cards, when the pod has "
    "failed, or after 5 minutes.",
    "kubectl annotate node {node} {key}-; then see that an agent runs here and may patch its Node "
    "(check rbac; with the chart any labels.output but none)",
)
NONSENSE = FindingKind(
    CHECK,
    "lock-unreadable",
    Severity.WARNS,
    "a scheduler's lock on the Node is unreadable or has a future time",
    "The scheduler binds no pod to this node while it cannot read the lock or while the lock seems "
    "young. The agent frees a lock with a future time after 5 minutes. It never frees an unreadable "
    "lock.",
    "kubectl annotate node {node} {key}-; then correct the clocks of this node and of the scheduler's node",
)
FORBIDDEN = FindingKind(
    CHECK,
    "locks-not-freed",
    Severity.WARNS,
    "a scheduler locks the Node, and the agent may not free it",
    "After each pod that is bound under the lock the next pod waits for 5 minutes.",
    "let the agent patch its Node: set labels.output=node in the chart; where the admission policy is "
    "installed (Kubernetes 1.30) any labels.output but none will do",
)


def locks(around: Surroundings) -> Iterator[Finding]:
    """The annotations of the Node that are schedulers' locks, by their age."""
    node = around.cluster.node
    if node.value is None:
        yield not_made(CHECK, node.why)
        return
    annotations = part_of(part_of(node.value, "metadata"), "annotations")
    freed = around.configuration.locks
    checks = (it.checks for it in around.configuration.schedulers if it.checks is not None)
    unfreed = [key for it in checks for key in it.unfreed_locks]
    held = {key: str(annotations[key]) for key in (*freed, *unfreed) if key in annotations}
    found = [it for key, value in held.items() for it in _judge(around, key, value)]
    if held.keys() & {*freed} and any(_frees(it) for it in around.cluster.denied.value or ()):
        found.append(FORBIDDEN.found(f"{', '.join(held)}; patch nodes/{around.node} is forbidden"))
    summary = (
        f"locks held for less than 5 minutes: {', '.join(held)}"
        if held
        else "no scheduler holds a lock on the Node"
    )
    yield from found or [well(CHECK, summary)]


def _judge(around: Surroundings, key: str, value: str) -> Iterator[Finding]:
    held = parsed_lock(key, value)
    if held is None:
        yield NONSENSE.found(f"{key}: {shorten(value)}", node=around.node, key=key)
        return
    age = time.time() - held.taken
    if age < -SKEW:
        what = f"{key}: {shorten(value)}, a time {-age / 60:.0f} minutes in the future"
        yield NONSENSE.found(what, node=around.node, key=key)
    elif age >= EXPIRES:
        what = f"{key}: {shorten(value)}, for {age / 60:.0f} minutes"
        yield LEFT.found(what, node=around.node, key=key)


def _frees(need: object) -> bool:
    return str(need).startswith("patch nodes/")
