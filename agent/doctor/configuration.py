"""The configuration: whether it can be used, and what is odd in it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, well

CHECK = "config"
#: Warnings that are shown.
MOST = 20

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
    "the configuration depends on labels of the Node that nobody has told",
    "An agent that starts now knows those that it remembers, in its checkpoint or with its last good config, "
    "and else waits, not ready. Checks that follow from it are not made; the others look where flags, "
    "variables, what can be used of the file's `agent`, and defaults say.",
    "mend the way to the API server (check api-server), or match by names",
)
ODD = FindingKind(
    CHECK,
    "config-odd",
    Severity.WARNS,
    "something in the configuration is hardly meant so",
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
    """As the agent would read it now, and as the running one has it."""
    given = around.configuration
    arguments = f"--config {given.source}" if given.source != "defaults" else ""
    ailment = AWAITED if given.awaits_labels else REFUSED
    found = [ailment.found(given.error, arguments=arguments)] if given.error else []
    found += [ODD.found(it, arguments=arguments) for it in given.config.warnings[:MOST]]
    error, source = around.document.config.error, around.document.config.source
    # One error gives one finding. The agent appends what it does meanwhile to the text of the error, and the
    # document says nothing else by which the two errors could be compared.
    if error and not (given.error and error.startswith(given.error)):
        found.append(STALE.found(error))
    if source and source != given.source and not given.error:
        what = f"the agent has {source}, this command {given.source}"
        found.append(OTHER.found(what, source=source))
    yield from found or [well(CHECK, f"{given.source} can be used")]
