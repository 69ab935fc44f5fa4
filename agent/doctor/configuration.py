"""Checks the configuration: whether it can be used, and whether the running agent uses it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, well

CHECK = "config"
#: Warnings that are shown.
SHOWN = 20

REFUSED = FindingKind(
    CHECK,
    "config-refused",
    Severity.STOPS,
    "the configuration cannot be used",
    "The agent goes on with the last good one, after a restart too; without one it does not serve. Checks "
    "that follow from it are not made; the others look where flags, variables, what can be used of the "
    "file's `agent`, and defaults say.",
    "mend the place that is named, then: xpu-agent config check {arguments}",
)
AWAITED = FindingKind(
    CHECK,
    "config-awaits-labels",
    Severity.STOPS,
    "the configuration depends on labels of the Node that are not known",
    "An agent that starts now uses the labels in its checkpoint or with its last good config; without them "
    "it waits and is not ready. Checks that follow from it are not made; the others look where flags, "
    "variables, what can be used of the file's `agent`, and defaults say.",
    "mend the way to the API server (check api-server), or match by names",
)
ODD = FindingKind(
    CHECK,
    "config-odd",
    Severity.WARNS,
    "something in the configuration is probably a mistake",
    "It is read as it stands, and may do nothing.",
    "mend the place that is named; xpu-agent config check {arguments} prints what holds",
)
STALE = FindingKind(
    CHECK,
    "config-not-taken",
    Severity.STOPS,
    "the running agent refuses its configuration",
    "It goes on with the last good one, or waits for one.",
    "mend the place that is named; it is taken in at once, or with kill -HUP",
)
OTHER = FindingKind(
    CHECK,
    "config-other",
    Severity.WARNS,
    "the running agent has another configuration than this command",
    "What is right depends on it: directories, vendors, resources. The other checks may look in the wrong "
    "place.",
    "run it with the same flags and variables: xpu-agent doctor --config {source}, or in the agent's pod",
)


def configuration(around: Surroundings) -> Iterator[Finding]:
    """The configuration as an agent would read it now, and as the running agent has it."""
    read = around.configuration
    arguments = f"--config {read.source}" if read.source != "defaults" else ""
    kind = AWAITED if read.awaits_labels else REFUSED
    found = [kind.found(read.error, arguments=arguments)] if read.error else []
    found += [ODD.found(it, arguments=arguments) for it in read.config.warnings[:SHOWN]]
    error, source = around.document.config.error, around.document.config.source
    # One error gives one finding. The agent appends what it does meanwhile to the text of the error, and the
    # document says nothing else by which the two errors could be compared.
    if error and not (read.error and error.startswith(read.error)):
        found.append(STALE.found(error))
    if source and source != read.source and not read.error:
        what = f"the agent has {source}, this command {read.source}"
        found.append(OTHER.found(what, source=source))
    yield from found or [well(CHECK, f"{read.source} can be used")]
