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
    "Without an agent the kubelet gets no devices of this node's cards. Checks that need no agent were made.",
    "start the agent: xpu-agent run; with the chart see why no pod runs: kubectl -n NAMESPACE get pods "
    "-l app.kubernetes.io/name=xpu-agent -o wide; if the agent has another state directory give it to "
    "the doctor with --state-dir",
)
UNREADY = FindingKind(
    AGENT,
    "agent-not-ready",
    Severity.STOPS,
    "the agent runs and is not ready",
    "The agent does not serve something that the config asks for.",
    "correct what the finding names, in this order: vendors, resources, files; xpu-agent inspect shows more",
)
DOUBTFUL = FindingKind(
    AGENT,
    "cards-doubtful",
    Severity.WARNS,
    "the agent offers cards, and something about the cards needs repair",
    "The agent serves. New pods do not get all that the cards could give; the finding names the reason.",
    "follow the finding; the agent notices the change by itself",
)
NO_RECEIPT = FindingKind(
    AGENT,
    "receipts-unwritten",
    Severity.WARNS,
    "the agent cannot write on pods that the pods have their devices",
    "A scheduler that waits for this receipt takes such a pod for a pod without devices.",
    "if a right is missing add the annotations to pods.receipts of the chart",
)
NOT_COUNTED = FindingKind(
    AGENT,
    "extended-resources-unwritten",
    Severity.WARNS,
    "the Node lacks the extended resources that a vendor counts for it",
    "Schedulers that use these resources skip this node or count wrong amounts. Pods that have devices "
    "are not affected.",
    "if a right is missing add the extended resources to nodeStatus.resources of the chart",
)
SKEW = FindingKind(
    AGENT,
    "version-skew",
    Severity.WARNS,
    "the running agent has another version than this command",
    "This command's checks and remedies are for its own version of the agent.",
    "run the doctor of the agent's image: kubectl -n NAMESPACE exec POD -- xpu-agent doctor; or restart "
    "the agent in the installed version",
)
SILENT = FindingKind(
    SECOND,
    "lock-without-service",
    Severity.STOPS,
    "the process that holds the lock does not serve",
    "Every other agent of this node stands by until the lock is free.",
    "if the process has just started run the doctor again; else look at the log of the process; if the "
    "process hangs: kill {pid}; the kernel then frees the lock at once",
)
TWO_AGENTS = FindingKind(
    SECOND,
    "second-agent",
    Severity.STOPS,
    "two agents serve this node",
    "One agent holds the lock, another agent answers at the admin socket. Both register the same resources.",
    "end one of the agents: kill {pid}; look for two DaemonSets that select this node: kubectl get "
    "daemonsets -A -l xpu-agent.io/pool",
)
ELSEWHERE = FindingKind(
    SECOND,
    "agent-elsewhere",
    Severity.WARNS,
    "an agent that does not answer here serves this node",
    "A kubelet has one serving agent, whatever the state directory of the agent is. Further agents "
    "stand by. The serving agent has another state directory than this command looks at, or no admin "
    "socket.",
    "give the state directory of the serving agent with --state-dir; if another agent shall serve: {end}",
)
STANDBY = FindingKind(
    SECOND,
    "agent-stands-by",
    Severity.WARNS,
    "a second agent stands by",
    "A second agent is normal during a rollout. If the second agent stays, two DaemonSets, or a "
    "DaemonSet and a service of the host, run an agent on this node.",
    "find both agents: kubectl get pods -A -o wide --field-selector spec.nodeName={node} | grep "
    "xpu-agent; remove the agent that is not wanted",
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
    return "the config (see check config)" if trouble.startswith("config: ") else trouble


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
