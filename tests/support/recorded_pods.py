"""What the real koord-scheduler wrote on pods (schedulers/data/koordinator-annotations.json), as pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.scheduler_api import Candidate, PodContainer
from agent.scheduler_api.quantities import whole

FILE = Path(__file__).parents[1] / "schedulers" / "data" / "koordinator-annotations.json"


@dataclass(frozen=True, slots=True)
class Case:
    """A pod, and what the scheduler wrote on it; nothing where it refused the pod."""

    name: str
    node: str
    #: Container to its limits, in order.
    limits: Mapping[str, Mapping[str, int]]
    annotations: Mapping[str, str]
    scheduled: bool

    @property
    def candidate(self) -> Candidate:
        containers = tuple(PodContainer(name, its) for name, its in self.limits.items())
        return Candidate(f"uid-{self.name}", "default", self.name, containers, self.annotations)


def cases(node: str) -> list[Case]:
    """The pods of one of the recorded nodes (metax1, nv1, enf1), in their order."""
    return [_case(it) for it in json.loads(FILE.read_text())["cases"] if it["node"] == node]


def devices(node: str) -> Mapping[str, int | None]:
    """uuid to minor."""
    return {it["id"]: it["minor"] for it in json.loads(FILE.read_text())["nodes"][node]["devices"]}


def _case(said: Mapping[str, Any]) -> Case:
    limits = {it["name"]: _counts(it["limits"]) for it in said["containers"]}
    annotations = {**said["podAnnotations"], **said["written"]["annotations"]}
    return Case(said["case"], said["node"], limits, annotations, said["scheduled"])


def _counts(limits: Mapping[str, str]) -> Mapping[str, int]:
    return {name: count for name, text in limits.items() if "/" in name and (count := whole(text))}
