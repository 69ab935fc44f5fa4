"""Checks the agents of this node: which one holds the lock, which one serves, and their version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agent.doctor.surroundings import Surroundings
from agent.host.file_locks import holders, program
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

AGENT = "agent"
SECOND = "second-agent"

NONE = FindingKind(
    AGENT,
    "agent-not-running",
    Severity.WARNS,
    "no agent serves this node",
    "Nothing is offered to the kubelet until one does. Checks that need no agent were made.",
    "start it: xpu-agent run, or kubectl -n NAMESPACE get pods -l app.kubernetes.io/name=xpu-agent -o wide; "
    "one that runs with another state directory is asked with --state-dir",
)
UNREADY = FindingKind(
    AGENT,
    "agent-not-ready",
    Severity.STOPS,
    "the agent runs and is not ready",
    "Something that the config asks for is not served.",
    "mend what is named there, in this order: vendors, resources, files; xpu-agent inspect shows the rest",
)
DOUBTFUL = FindingKind(
    AGENT,
    "cards-doubtful",
    Severity.WARNS,
    "cards are offered, and something about them needs repair",
    "The agent serves, and new pods do not get all that the cards could give; the finding says what.",
    "do what the finding says; the agent sees the change by itself",
)
NO_RECEIPT = FindingKind(
    AGENT,
    "receipts-unwritten",
    Severity.WARNS,
    "pods that have their devices do not tell their schedulers so",
    "A scheduler that waits for the receipt treats them as pods without devices.",
    "where the right is missing name the annotations in the chart's pods.receipts",
)
NOT_COUNTED = FindingKind(
    AGENT,
    "extended-resources-unwritten",
    Severity.WARNS,
    "the Node lacks the extended resources that a vendor counts for it",
    "Schedulers that use them skip this node, or count wrong. Pods that have devices are not affected.",
    "where the right is missing name the extended resources in the chart's nodeStatus.resources",
)
SKEW = FindingKind(
    AGENT,
    "version-skew",
    Severity.WARNS,
    "the agent that runs is of another version than this command",
    "What this command checks and advises is meant for its own version.",
    "run the doctor of the agent's own image: kubectl -n NAMESPACE exec POD -- xpu-agent doctor; or restart "
    "the agent with the version that is installed",
)
SILENT = FindingKind(
    SECOND,
    "lock-without-service",
    Severity.STOPS,
    "the process that holds the lock does not serve",
    "Every other agent of this node stands by until the lock is free.",
    "where it has just started run the doctor again; else look at its log, and where it hangs kill {pid}: "
    "the kernel frees the lock at once",
)
TWO_AGENTS = FindingKind(
    SECOND,
    "second-agent",
    Severity.STOPS,
    "two agents serve this node",
    "One holds the lock, another one answers at the admin socket: both register the same resources.",
    "end one of them: kill {pid}; two DaemonSets that fit the same node do that: kubectl get daemonsets -A "
    "-l xpu-agent.io/pool",
)
ELSEWHERE = FindingKind(
    SECOND,
    "agent-elsewhere",
    Severity.WARNS,
    "an agent that does not answer here serves this node",
    "One agent serves a kubelet, whatever its state directory is: another one stands by. That one has a "
    "state directory that this command does not look at, or no admin socket.",
    "name its state directory with --state-dir; where it is not the one that is meant end it: {end}",
)
STANDBY = FindingKind(
    SECOND,
    "agent-stands-by",
    Severity.WARNS,
    "a second agent stands by",
    "During a rollout that is right. For longer it means that two DaemonSets, or a DaemonSet and a service "
    "of the host, run an agent on this node.",
    "kubectl get pods -A -o wide --field-selector spec.nodeName={node} | grep xpu-agent, and remove the one "
    "that is not meant",
)


def agent(around: Surroundings) -> Iterator[Finding]:
    """Whether the agent runs, is ready, and is of this version."""
    document = around.inspected.value
    if document is None:
        if around.sockets.agent is None:
            yield NONE.found(around.inspected.why or "no agent answers")
        return
    if document.version != around.version:
        yield SKEW.found(f"the agent is xpu-agent {document.version}, this command is {around.version}")
    yield from (DOUBTFUL.found(doubt) for doubt in document.doubts)
    if document.receipts.error:
        yield NO_RECEIPT.found(document.receipts.error)
    if document.extended_resources.error:
        yield NOT_COUNTED.found(document.extended_resources.error)
    if document.troubles:
        yield UNREADY.found("; ".join(_short(trouble) for trouble in document.troubles))
    else:
        yield well(AGENT, f"xpu-agent {document.version} serves node {document.node}, ready")


def _short(trouble: str) -> str:
    """The trouble, without the text of an error of the config, which the check config has.

    `AgentStatus.troubles` begins that sentence with this word; the document has no other mark on it.
    """
    return "its config (see check config)" if trouble.startswith("config: ") else trouble


def second(around: Surroundings) -> Iterator[Finding]:
    """Compares the processes that hold the locks with the process that serves."""
    state_dir, kubelet_dir = around.config.agent.state_dir, around.config.agent.kubelet_dir
    serving = around.sockets.admin
    try:
        state = _lock_holders(state_dir / "agent.lock", state_dir)
        held = {**_lock_holders(kubelet_dir), **state}
    except OSError as exc:
        yield not_made(SECOND, f"{exc.filename or state_dir}: {exc.strerror}")
        return
    on_port = around.inspected_on_port.value
    standby = on_port.standby if on_port else ""
    if standby:
        yield STANDBY.found(f"{around.config.agent.http}: {standby} holds the lock", node=around.node)
    silent = serving.state != "listens"
    others = [pid for pid in held if pid and serving.pid and pid != serving.pid]
    if silent and (pid := next(filter(None, state), 0)):
        yield SILENT.found(f"{_named(pid)} holds {state[pid]}, {serving.found}", pid=pid)
    elif others:
        what = f"{_named(others[0])} holds {held[others[0]]}, {serving} serves agent.sock"
        yield TWO_AGENTS.found(what, pid=serving.pid)
    elif standby:
        return
    elif silent and (pid := next(filter(None, held), 0)):
        yield ELSEWHERE.found(f"{_named(pid)} holds {held[pid]}, {serving.found}", end=f"kill {pid}")
    elif silent and around.sockets.agent is not None:
        path, other = around.sockets.agent
        end = f"kill {other.pid}" if other.pid else "kubectl get daemonsets -A -l xpu-agent.io/pool"
        yield ELSEWHERE.found(f"{path} is served by {other}, {serving.found}", end=end)
    else:
        yield well(SECOND, "one agent holds the lock and serves" if held else "no process holds the lock")


def _named(pid: int) -> str:
    return f"{program(pid)} (pid {pid})"


def _lock_holders(*paths: Path) -> dict[int, Path]:
    """Pid of each process that locks one of these paths, to the path. Pid 0 is a process of another pod."""
    found: dict[int, Path] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            for pid in holders(path):
                found.setdefault(pid, path)
    return found
