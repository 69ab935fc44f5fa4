"""Pods whose scheduler chose other cards than they have, as the running agent tells of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.config import Config, VendorSettings
from agent.daemon.scheduler_plugins import registered
from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor.checks import CHECKS
from agent.doctor.surroundings import Cluster, Configuration, Surroundings
from agent.http.inspect_document import from_builtins
from agent.scheduler_api.node_checks import Observed, SchedulerObjects
from agent.vendor_api.agent import ContainerEdits, Device, Placement, ResourceRule, Vendor

PODS = next(it for it in CHECKS if it.name == "koord-pods")
GPU = "acme.com/gpu"
CARD = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def pod(text: str, limits: dict[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "annotations": {ALLOCATED: text}},
        "spec": {
            "nodeName": "n",
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Running"},
    }


def chosen(uuid: str) -> str:
    return json.dumps({"gpu": [{"minor": 0, "id": uuid}]})


def held(uuid: str, **more: Any) -> dict[str, Any]:
    owner = {"uid": "u", "container": "main", "namespace": "default", "pod": "web"}
    return {"resource": GPU, "devices": [uuid], "owner": owner, "state": "done", **more}


def found(
    it: dict[str, Any],
    *rows: dict[str, Any],
    placement: Placement = "auto",
    ailment: str = "choice-not-heeded",
) -> list[str]:
    vendor = Vendor("acme", "", GPU, lambda *_: ContainerEdits())
    rules = (ResourceRule(GPU, placement=placement),)
    config = replace(Config(), vendors={"acme": VendorSettings(resources=rules)})
    around = Surroundings(
        "n",
        "1",
        configuration=Configuration(
            config, plugins=(VendorPlugin("acme", "here", "1", vendor),), schedulers=registered()
        ),
        vendors={"acme": Observed(tuple(Device(f"c{n}", n, minor=n) for n in range(2)))},
        inspected=Observed(from_builtins({"allocations": list(rows)})),
        cluster=Cluster(
            node=Observed({}),
            pods=Observed((it,)),
            schedulers={
                "koordinator": SchedulerObjects(
                    has_kind=Observed(value=True), object=Observed(()), pods={"waiting": Observed(())}
                )
            },
        ),
    )
    return [one.what for one in PODS.made(around) if one.kind == ailment]


@pytest.mark.parametrize(
    ("it", "rows", "expected"),
    [
        (pod(chosen("c0"), {GPU: "1", **CARD}), [], ""),
        (pod(chosen("c0"), {GPU: "1", **CARD}), [held("c0")], ""),
        (
            pod(chosen("c0"), {GPU: "1", **CARD}),
            [held("c1")],
            "default/web: container main has card c1; the scheduler chose card c0",
        ),
        (pod(chosen("c0"), {GPU: "1", **CARD}), [held("c1", state="released")], ""),
        (pod("{{", {GPU: "1", **CARD}), [], f"default/web: koordinator: {ALLOCATED} is no JSON"),
        (pod("{{", {GPU: "1", **CARD}), [held("c1", claim={"uid": "u"})], ""),
        (pod(chosen("c7"), CARD), [], f"default/web: {ALLOCATED} names c7, which is not here"),
        (pod(chosen("c0"), CARD), [], ""),
    ],
    ids=[
        "not answered yet",
        "as chosen",
        "another card",
        "another one in another life",
        "no sense",
        "no sense by now",
        "asks no plugin, a card of another node",
        "asks no plugin",
    ],
)
def test_a_choice_that_is_not_so_here_is_found(
    it: dict[str, Any], rows: list[dict[str, Any]], expected: str
) -> None:
    said = found(it, *rows)

    assert len(said) == bool(expected)
    assert all(one.startswith(expected) for one in said)
    assert found(it, *rows, placement="local") == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"source": "annotation", "reason": "c0 is held by default/b"},
            "default/web: c0 is held by default/b",
        ),
        ({"source": "annotation", "reason": ""}, ""),
        ({"source": "annotation", "reason": "its pod is gone", "state": "released"}, ""),
        ({"source": "allocate", "reason": "its pod is there"}, ""),
    ],
    ids=["another pod has it", "its own", "released", "asks a plugin"],
)
def test_a_card_that_a_scheduler_gave_away_twice_is_found(more: dict[str, str], expected: str) -> None:
    said = found(pod(chosen("c0"), CARD), held("c0", **more), ailment="card-given-twice")

    assert said == [expected] * bool(expected)
