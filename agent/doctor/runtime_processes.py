"""Checks whether a vendor's container runtime starts the node's containers, where the vendor needs that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent.doctor.container_runtime import RUNC, DefaultRuntime, Unreadable, defaults
from agent.doctor.host_parts import is_hidden, vendors_with_cards
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.vendor_api.agent import HostRuntime

CHECK = "container-runtime"

OTHER = FindingKind(
    CHECK,
    "runtime-not-default",
    Severity.WARNS,
    "a vendor's container runtime is not the one that starts the node's containers",
    "The vendor's runtime reads the variable with the names of the container's cards. Other runtimes "
    "ignore the variable. So only pods with the runtimeClassName of the vendor's runtime get what this "
    "runtime provides.",
    'set {key} to "{called}" in {source}, next to the runtime\'s own section there, then run {restart}; '
    "or give each pod that asks for cards a runtimeClassName with the handler {called}",
)


def containers(around: Surroundings) -> Iterator[Finding]:
    """The default runtime of Docker, containerd or CRI-O, whichever the kubelet uses."""
    wanted = {it.name: it.host.runtime for it in vendors_with_cards(around) if it.host.runtime is not None}
    if not wanted:
        yield well(CHECK, "no vendor with cards here needs a container runtime of its own")
        return
    try:
        found = _kubelet_runtimes(around)
    except Unreadable as exc:
        yield not_made(CHECK, str(exc))
        return
    if not found:
        yield not_made(CHECK, _no_runtime_seen(around, ", ".join(it.name for it in wanted.values())))
    for vendor, runtime in wanted.items():
        yield from (_judge(vendor, runtime, it) for it in found)


def _kubelet_runtimes(around: Surroundings) -> list[DefaultRuntime]:
    """The default of the container engine that the Node names; all defaults where it names none."""
    seen, engine = defaults(around.root), around.engine
    return [it for it in seen if engine in ("", it.engine)]


def _judge(vendor: str, runtime: HostRuntime, default: DefaultRuntime) -> Finding:
    program = Path(default.program).name
    path = f" ({default.program})" if default.program else ""
    fact = f"{default.engine} starts containers by {default.name}{path}"
    if program in runtime.programs or (not program and default.name == runtime.handler):
        return well(CHECK, f"{vendor}: {fact}, as {default.source} says")
    what = f"{vendor}: {fact}, as {default.source} says; without {runtime.name} {runtime.consequence}"
    return OTHER.found(
        what, key=default.key, called=runtime.handler, source=default.source, restart=default.restart
    )


def _no_runtime_seen(around: Surroundings, names: str) -> str:
    engine = around.engine or "Docker, containerd or CRI-O"
    if is_hidden(around):
        return (
            f"no configuration of {engine} is seen in a pod: mount the host's / and give the place with "
            f"--host-root; {names} has to be the default runtime"
        )
    below = "" if around.root == Path("/") else f" below {around.root}"
    return (
        f"no configuration of {engine} is seen{below}, so {engine} starts containers by {RUNC}; see {names}"
    )
