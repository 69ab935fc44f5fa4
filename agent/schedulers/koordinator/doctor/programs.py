"""A program of Koordinator in a pod: its flags and gates, and the directories of the host that it sees.

Sources: koordinator-sh/charts v1.8.0 (labels, commands, mounts), koordinator config/manager, where
koord-device-daemon has koordlet's label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from agent.scheduler_api.document_parts import part_of, rows_of, text
from agent.scheduler_api.node_checks import CheckedPod, NodeLook
from agent.scheduler_api.node_report import ApiDocument
from agent.schedulers.koordinator.koordlet_signs import ALL_GATES, NAME, reporting
from agent.schedulers.koordinator.program_arguments import arguments, flags, gates
from agent.vendor_api.text import shorten

LABEL = "koord-app"
_GATE = re.compile("[A-Za-z0-9]{1,100}")
_TAG = re.compile(r":v?([0-9]{1,5})\.([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Program:
    """A running program. `gates`: the feature gates that its flags set; the others have their default."""

    pod: ApiDocument
    container: Mapping[str, Any]
    flags: Mapping[str, str]
    gates: Mapping[str, bool]

    def __str__(self) -> str:
        return name(self.pod)

    def has(self, gate: str) -> bool:
        """Whether this alpha gate is on; such a gate is off by default."""
        return self.gates.get(gate, self.gates.get(ALL_GATES, False))

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor version in the image's tag; None for another tag."""
        found = _TAG.search(text(self.container, "image"))
        return (int(found[1]), int(found[2])) if found else None

    def on_host(self, path: PurePosixPath) -> PurePosixPath | None:
        """The path on the host; None where no directory of the host is mounted there."""
        return on_host(self.pod, self.container, path)


def with_gate(before: Mapping[str, bool], gate: str, *, on: bool = True) -> str:
    """All gates, with this one changed, as a value for `helm --set-string`.

    The chart replaces its whole list by the value. helm splits values at commas, so commas are escaped.
    """
    known = {name: it for name, it in before.items() if _GATE.fullmatch(name)}
    return "\\,".join(f"{name}={str(it).lower()}" for name, it in (known | {gate: on}).items())


def running(pods: Iterable[ApiDocument], program: str) -> list[Program]:
    """The pods of Koordinator, by their label, in which the program runs."""
    found: list[Program] = []
    for pod in pods:
        labels, phase = part_of(part_of(pod, "metadata"), "labels"), part_of(pod, "status").get("phase")
        if LABEL not in labels or phase in ("Succeeded", "Failed"):
            continue
        containers = ((it, arguments(it, program)) for it in rows_of(part_of(pod, "spec"), "containers"))
        found += [Program(pod, it, dict(flags(words)), gates(words)) for it, words in containers if words]
    return found


def name(pod: ApiDocument) -> str:
    metadata = part_of(pod, "metadata")
    return f"{shorten(text(metadata, 'namespace'))}/{shorten(text(metadata, 'name'))}"


def on_host(pod: ApiDocument, container: Mapping[str, Any], path: PurePosixPath) -> PurePosixPath | None:
    """The path on the host of a path in the container; None where nothing of the host is mounted there."""
    mounts = [it for it in rows_of(container, "volumeMounts") if text(it, "mountPath")]
    above = [it for it in mounts if path.is_relative_to(it["mountPath"])]
    if not above:
        return None
    nearest = max(above, key=lambda it: len(PurePosixPath(it["mountPath"]).parts))
    volumes = (it for it in rows_of(part_of(pod, "spec"), "volumes") if it.get("name") == nearest.get("name"))
    host = text(part_of(next(volumes, {}), "hostPath"), "path")
    return (
        PurePosixPath(host, text(nearest, "subPath"), path.relative_to(nearest["mountPath"]))
        if host
        else None
    )


def koordlet_sign(look: NodeLook) -> str:
    """How a pod of this node shows that a koordlet reports accelerators; empty without such a pod."""
    koordlets = (pod.document for pod in look.pods.value or () if _is_koordlet(pod.document))
    return next((words for document in koordlets if (words := reporting(document))), "")


def documents(pods: Iterable[CheckedPod] | None) -> tuple[ApiDocument, ...]:
    """The pods as the API server has them."""
    return tuple(pod.document for pod in pods or ())


def _is_koordlet(pod: ApiDocument) -> bool:
    return part_of(part_of(pod, "metadata"), "labels").get(LABEL) == NAME
