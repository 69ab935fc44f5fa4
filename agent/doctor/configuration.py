"""Checks the configuration: whether it can be used, and whether the running agent uses it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, well

CHECK = "config"
#: Warnings that are shown.
MAX_SHOWN_PROBLEMS = 20

REFUSED = FindingKind(
    CHECK,
    "config-refused",
    Severity.STOPS,
    "the configuration cannot be used",
    "The agent keeps the last good configuration, also after a restart. Without a last good "
    "configuration the agent does not serve. The doctor skips the checks that need a configuration. The "
    "other checks use flags, variables, the usable values of the file's `agent`, and defaults.",
    "correct the place that the finding names; then run: xpu-agent config check {arguments}",
)
AWAITED = FindingKind(
    CHECK,
    "config-awaits-labels",
    Severity.STOPS,
    "the configuration depends on labels of the Node that are not known",
    "An agent that starts now uses the labels from its checkpoint or its last good config. Without "
    "these labels the agent waits and is not ready. The doctor skips the checks that need a "
    "configuration. The other checks use flags, variables, the usable values of the file's `agent`, and "
    "defaults.",
    "repair the connection to the API server (check api-server), or match by names",
)
ODD = FindingKind(
    CHECK,
    "config-odd",
    Severity.WARNS,
    "something in the configuration is probably a mistake",
    "The agent uses the value as written. The value may have no effect.",
    "correct the place that the finding names; see the resulting config: xpu-agent config check {arguments}",
)
STALE = FindingKind(
    CHECK,
    "config-not-taken",
    Severity.STOPS,
    "the running agent refuses its configuration",
    "The agent keeps the last good configuration. Without a last good configuration the agent waits for "
    "a usable one.",
    "correct the place that the finding names; the agent reads the change at once, or after kill -HUP",
)
OTHER = FindingKind(
    CHECK,
    "config-other",
    Severity.WARNS,
    "the running agent has another configuration than this command",
    "The configuration decides which directories, vendors and resources are right. The other checks may "
    "look in the wrong place.",
    "run the doctor with the agent's flags and variables: xpu-agent doctor --config {source}; or run "
    "the doctor in the agent's pod",
)


def configuration(around: Surroundings) -> Iterator[Finding]:
    """The configuration as an agent would read it now, and as the running agent has it."""
    read = around.configuration
    arguments = f"--config {read.source}" if read.source != "defaults" else ""
    kind = AWAITED if read.awaits_labels else REFUSED
    found = [kind.found(read.error, arguments=arguments)] if read.error else []
    found += [ODD.found(it, arguments=arguments) for it in read.config.warnings[:MAX_SHOWN_PROBLEMS]]
    error, source = around.document.config.error, around.document.config.source
    # One error gives one finding. The agent appends what it does meanwhile to the text of the error, and the
    # document says nothing else by which the two errors could be compared.
    if error and not (read.error and error.startswith(read.error)):
        found.append(STALE.found(error))
    if source and source != read.source and not read.error:
        what = f"the agent has {source}, this command {read.source}"
        found.append(OTHER.found(what, source=source))
    yield from found or [well(CHECK, f"{read.source} can be used")]
