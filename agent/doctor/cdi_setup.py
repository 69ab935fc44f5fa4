"""Checks the directory of CDI specs: whether the runtime reads it, and whether the agent can write it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agent.doctor.container_runtime import Runtime, Unreadable, runtimes
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.document_parts import part_of
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well

CHECK = "cdi"

ELSEWHERE = FindingKind(
    CHECK,
    "cdi-directory-unread",
    Severity.STOPS,
    "the container runtime does not read the directory of the agent's CDI specs",
    "Containers get their devices by CDI names alone here. A container with a name that the runtime "
    "cannot resolve does not start.",
    "set agent.cdiDir (--cdi-dir, with the chart cdi.dir) to one of {directories}, or add {directory} to "
    "cdi_spec_dirs in {source} and restart the runtime",
)
OFF = FindingKind(
    CHECK,
    "cdi-off",
    Severity.STOPS,
    "the container runtime ignores CDI names",
    "Containers get their devices by CDI names alone here, and would start without the devices. "
    "containerd before 2.0 uses CDI only if its config enables CDI.",
    'set enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"] in {source}, then systemctl restart '
    "containerd",
)
UNWRITABLE = FindingKind(
    CHECK,
    "cdi-directory-closed",
    Severity.STOPS,
    "the agent cannot write CDI specs",
    "A container that gets its devices by CDI names starts only with the spec. So the agent lists such "
    "devices as unhealthy.",
    "mount {directory} from the host without readOnly, or name another directory with --cdi-dir",
)


def cdi(around: Surroundings) -> Iterator[Finding]:
    """Checked only where a vendor gives devices by CDI names alone.

    Other vendors' containers start without specs.
    """
    vendors = (it.vendor for it in around.configuration.plugins if it.vendor is not None)
    names = ", ".join(it.name for it in vendors if it.offers.cdi_only and around.has_cards(it.name))
    if not names:
        yield well(CHECK, "no vendor here gives its devices by CDI names alone")
        return
    directory = around.config.agent.cdi_dir
    if closed := why_closed(directory):
        yield UNWRITABLE.found(f"{names}: {closed}", directory=directory)
    try:
        found = runtimes(around.root)
    except Unreadable as exc:
        yield not_made(CHECK, str(exc))
        return
    if not found:
        yield not_made(
            CHECK, f"{_no_runtime_seen(around.root)}; see that {directory} is in cdi_spec_dirs of the runtime"
        )
    for runtime in found:
        yield from _judge(around, runtime, directory, names)


def why_closed(directory: Path) -> str:
    """Why the agent cannot write to the directory; empty where it can.

    A missing directory is no reason, because the agent makes the directory.
    """
    existing = directory
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is no directory"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written from here"


def _no_runtime_seen(root: Path) -> str:
    where = "" if root == Path("/") else f" below {root}"
    return (
        f"no configuration of containerd or CRI-O is seen{where}; in a container mount the host's /etc "
        "read-only and give the place with --host-root"
    )


def _judge(around: Surroundings, runtime: Runtime, directory: Path, names: str) -> Iterator[Finding]:
    places = ", ".join(runtime.directories) or "none"
    if runtime.cdi == "no" or (runtime.cdi == "unsaid" and _version(around).startswith("containerd://1.")):
        yield OFF.found(f"{names}: CDI is not enabled in {runtime.source}", source=runtime.source)
    elif not {_without_link(directory)} & {_without_link(Path(it)) for it in runtime.directories}:
        what = f"{names}: specs go to {directory}, {runtime.name} ({runtime.source}) reads {places}"
        yield ELSEWHERE.found(what, directories=places, directory=directory, source=runtime.source)
    elif runtime.cdi == "unsaid" and not _version(around):
        why = f"{runtime.source} does not set enable_cdi, and the Node's runtime version is not known"
        yield not_made(CHECK, f"{why}: containerd 1 needs enable_cdi = true")
    else:
        yield well(CHECK, f"{runtime.name} reads {directory}")


def _version(around: Surroundings) -> str:
    """The runtime with its version as the Node has it, such as containerd://1.7.20."""
    info = part_of(part_of(around.cluster.node.value or {}, "status"), "nodeInfo")
    return str(info.get("containerRuntimeVersion") or "")


def _without_link(path: Path) -> str:
    """The path with /run for /var/run, a link on every current distribution. The host may be out of sight."""
    text = os.path.normpath(path)
    return text.removeprefix("/var") if text.startswith("/var/run/") else text
