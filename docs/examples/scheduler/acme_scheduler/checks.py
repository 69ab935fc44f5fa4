"""Checks of `xpu-agent doctor` for Acme's scheduler."""

from collections.abc import Iterator

from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import NodeCheck, NodeLook, SchedulerChecks

CHECK = "acme-pods"
NOT_HEEDED = FindingKind(
    CHECK,
    "acme-choice-not-heeded",
    Severity.WARNS,
    "the agent ignores a choice of Acme's scheduler",
    "The pod has or gets other cards than the scheduler counts for the pod.",
    "kubectl -n {namespace} delete pod {pod}, then see that only acme-scheduler writes the pod's annotation",
)


def pods(look: NodeLook) -> Iterator[Finding]:
    """Pods of this node with a choice of Acme's scheduler that the agent ignores."""
    if look.pods.value is None:
        yield not_made(CHECK, look.pods.why)
        return
    found = []
    for checked in look.pods.value:
        pod = checked.candidate
        if pod is not None and pod.scheduler == "acme-scheduler" and checked.objection:
            found.append(NOT_HEEDED.found(checked.objection, namespace=pod.namespace, pod=pod.name))
    yield from found or [well(CHECK, f"none of {len(look.pods.value)} pods has another card than chosen")]


CHECKS = SchedulerChecks(pod_checks=(NodeCheck(CHECK, pods),), kinds=(NOT_HEEDED,))
