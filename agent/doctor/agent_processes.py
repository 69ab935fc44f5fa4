"""The agents of this node: who holds the lock, who serves, and of which version it is."""

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
    "Nothing is offered to the kubelet until one does; what can be checked without one was.",
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
    "cards are offered, and something of them is to be mended",
    "The agent serves, and new pods do not get all that the cards could give; the finding says what.",
    "do what the finding says; the agent takes it in by itself",
)
UNTOLD = FindingKind(
    AGENT,
    "receipts-unwritten",
    Severity.WARNS,
    "pods that have their devices do not tell their schedulers so",
    "A scheduler that waits to read it takes them for pods that were not served.",
    "where the right is missing name the annotations in the chart's pods.receipts",
)
UNCOUNTED = FindingKind(
    AGENT,
    "extended-resources-unwritten",
    Severity.WARNS,
    "the Node lacks the extended resources that a vendor counts for it",
    "Schedulers that go by them pass this node by, or reckon wrong. All that is given out is well.",
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
    "who holds the lock does not serve",
    "Every other agent of this node stands by until the lock is free.",
    "where it has just started look again; else look at its log, and where it hangs kill {pid}: the kernel "
    "frees the lock at once",
)
RIVAL = FindingKind(
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
    "In a rollout that is as it should be; for longer it means that two DaemonSets, or one and a service of "
    "the host, fit this node.",
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
        yield UNTOLD.found(document.receipts.error)
    if document.extended_resources.error:
        yield UNCOUNTED.found(document.extended_resources.error)
    if document.troubles:
        yield UNREADY.found("; ".join(_short(trouble) for trouble in document.troubles))
    else:
        yield well(AGENT, f"xpu-agent {document.version} serves node {document.node}, ready")


def _short(trouble: str) -> str:
    """The trouble; what is wrong with the config its own check says."""
    return "its config (see check config)" if trouble.startswith("config: ") else trouble


def second(around: Surroundings) -> Iterator[Finding]:
    """Who holds the locks, beside who serves."""
    state_dir, kubelet_dir = around.config.agent.state_dir, around.config.agent.kubelet_dir
    serving = around.sockets.admin
    try:
        state = _held(state_dir / "agent.lock", state_dir)
        held = {**_held(kubelet_dir), **state}
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
        yield RIVAL.found(what, pid=serving.pid)
    elif standby:
        return
    elif silent and (pid := next(filter(None, held), 0)):
        yield ELSEWHERE.found(f"{_named(pid)} holds {held[pid]}, {serving.found}", end=f"kill {pid}")
    elif silent and around.sockets.agent is not None:
        path, there = around.sockets.agent
        end = f"kill {there.pid}" if there.pid else "kubectl get daemonsets -A -l xpu-agent.io/pool"
        yield ELSEWHERE.found(f"{path} is served by {there}, {serving.found}", end=end)
    else:
        yield well(SECOND, "one agent holds the lock and serves" if held else "nobody holds the lock")


def _named(pid: int) -> str:
    return f"{program(pid)} (pid {pid})"


def _held(*paths: Path) -> dict[int, Path]:
    """Who holds these, each with the first; 0 is a process of another pod."""
    found: dict[int, Path] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            for pid in holders(path):
                found.setdefault(pid, path)
    return found
