"""Checks whether the running agent can measure the use of cards that the config wants measured."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

CHECK = "use"

OWN_PIDS = FindingKind(
    CHECK,
    "pids-hidden",
    Severity.WARNS,
    "the agent does not see the processes of the node",
    "Vendors' libraries name the processes on a card by the PIDs of the node. In a container with PIDs of "
    "its own a library names no process of another pod, so that no container shows any use.",
    "with the chart set usage.enabled: true, which gives the pod the host's PIDs; in a manifest of your own "
    "set hostPID: true; on a node that is itself a container, as those of kind, a library names the "
    "machine's PIDs, and use cannot be measured",
)
UNSAMPLED = FindingKind(
    CHECK,
    "use-unsampled",
    Severity.WARNS,
    "the use of a vendor's cards is not known, or not in full",
    "The series and views of these cards are missing or have gaps. Health, lists and Allocate are not "
    "affected.",
    "see what the finding names; a library that hangs over use is asked again once its process is replaced, "
    "and a library that crashes over use once its settings change or the agent starts again",
)


def use(around: Surroundings) -> Iterator[Finding]:
    """The sampling of the running agent, by what the config wants."""
    if not around.config.usage.enabled:
        yield well(CHECK, "the config does not want the use of cards measured (usage.enabled)")
        return
    document = around.use.value
    if not around.serves or document is None:
        yield not_made(CHECK, around.use.why or "no agent that serves this node could be asked")
        return
    if not document.sees_node_pids:
        yield OWN_PIDS.found(f"the agent's PIDs are not those of the machine; node {document.node}")
    for sampling in document.sampling:
        if sampling.error:
            why = sampling.error.removeprefix(f"{sampling.vendor}: ")  # many errors begin with the vendor
            yield UNSAMPLED.found(f"{sampling.vendor}: {why}")
    sampled = [it.vendor for it in document.sampling if it.up and not it.error]
    if sampled:
        yield well(CHECK, f"sampled each {document.interval_seconds:g} s: {', '.join(sampled)}")
