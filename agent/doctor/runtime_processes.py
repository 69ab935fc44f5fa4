"""Who starts the node's containers, where a vendor's own container runtime has to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent.doctor.container_runtime import RUNC, DefaultRuntime, Unreadable, defaults
from agent.doctor.host_parts import is_hidden, present
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.agent import HostRuntime

CHECK = "container-runtime"

OTHER = FindingKind(
    CHECK,
    "runtime-not-default",
    Severity.WARNS,
    "a vendor's container runtime is not the one that starts the node's containers",
    "It reads the variable by which the kubelet's answer names the cards. Another runtime leaves that alone, "
    "so that only pods whose runtimeClassName names the vendor's get what it brings.",
    'set {key} to "{called}" in {source}, beside the runtime\'s own entry there, then {restart}; or let each '
    "pod that asks for cards name a runtimeClassName with the handler {called}",
)


def containers(around: Surroundings) -> Iterator[Finding]:
    """The default runtime of Docker, containerd or CRI-O, whichever the kubelet speaks with."""
    wanted = {it.name: it.host.runtime for it in present(around) if it.host.runtime is not None}
    if not wanted:
        yield well(CHECK, "no vendor with cards here needs a container runtime of its own")
        return
    try:
        found = _spoken_with(around)
    except Unreadable as exc:
        yield not_made(CHECK, str(exc))
        return
    if not found:
        yield not_made(CHECK, _unseen(around, ", ".join(it.name for it in wanted.values())))
    for vendor, runtime in wanted.items():
        yield from (_judged(vendor, runtime, it) for it in found)


def _spoken_with(around: Surroundings) -> list[DefaultRuntime]:
    """The defaults of the one that the Node names; of all that are seen where it names none."""
    seen, engine = defaults(around.root), around.engine
    return [it for it in seen if engine in ("", it.engine)]


def _judged(vendor: str, runtime: HostRuntime, its: DefaultRuntime) -> Finding:
    program = Path(its.program).name
    told = f"{its.engine} starts containers by {its.name}{f' ({its.program})' if its.program else ''}"
    if program in runtime.programs or (not program and its.name == runtime.called):
        return well(CHECK, f"{vendor}: {told}, as {its.source} says")
    what = f"{vendor}: {told}, as {its.source} says; without {runtime.name} {runtime.without}"
    return OTHER.found(what, key=its.key, called=runtime.called, source=its.source, restart=its.restart)


def _unseen(around: Surroundings, names: str) -> str:
    engine = around.engine or "Docker, containerd or CRI-O"
    if is_hidden(around):
        return (
            f"no configuration of {engine} is seen in a pod: mount the host's / and name where with "
            f"--host-root; {names} is to be the default runtime"
        )
    below = "" if around.root == Path("/") else f" below {around.root}"
    return f"no configuration of {engine} is seen{below}, which starts containers by {RUNC} then; see {names}"
