"""What the agent would not be ready with the doctor says, and `config check` as far as it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import load
from agent.daemon.vendor_config import plugins_in_service, unserved_sentences
from agent.doctor.checks import CHECKS
from agent.doctor.servable_resources import served
from agent.doctor.surroundings import Surroundings
from agent.scheduler_api.node_checks import Observed
from agent.vendor_api.agent import Device

from .surveyed import around

CARDS = tuple(Device(f"GPU-{it}", it) for it in range(4))
TWICE = "[{name: nvidia.com/gpu}, {name: nvidia.com/gpu.shared, sharing: {kind: replicas, replicas: 2}}]"
SLICED = "settings: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
#: A configuration, and what it lacks on every node with cards; empty where it lacks nothing.
CASES = {
    f"nvidia: {{resources: {TWICE}}}": "nvidia.com/gpu.shared asks for all devices, nvidia.com/gpu has them",
    "nvidia: {resources: [{name: nvidia.com/gpu}, {name: a.b/c, devices: 2}]}": "a.b/c asks for ",
    f"nvidia: {{{SLICED}, resources: [{{name: nvidia.com/gpu}}]}}": "timeSlicing is not applied if",
    "nvidia: {resources: [{name: nvidia.com/gpu}, {name: nvidia.com/mig-1g.10gb}]}": "",
    "nvidia: {resources: [{name: a.b/c, devices: 2}, {name: nvidia.com/gpu}]}": "",
    f"nvidia: {{modes: dynamic, resources: {TWICE.replace('2}}', '2}, ids: minor}')}}}": "",
    "metax: {resources: [{name: a.b/c}, {name: a.b/d}]}": "a.b/d asks for all devices, ",
    "metax: {resources: [{name: a.b/c, devices: [0]}, {name: a.b/d}]}": "",
    "enflame: {modes: fixed, resources: [{name: enflame.com/gcu}, {name: a.b/c}]}": "a.b/c asks for all ",
    "enflame: {resources: [{name: enflame.com/gcu}, {name: enflame.com/gcu-memory}]}": "",
}


def found(text: str, place: Path) -> tuple[Surroundings, tuple[str, ...]]:
    """A node with four cards of the first vendor that the configuration names, and what the check says."""
    path = place / "config.yaml"
    path.write_text(f"vendors: {{{text}}}")
    config, name = load(path, "node"), text.partition(":")[0]
    return around(
        *plugins_in_service(config), config=config, found={name: Observed(CARDS)}
    ), unserved_sentences(config)


@pytest.mark.parametrize(("text", "said"), CASES.items())
def test_the_check_of_the_configuration_says_what_no_node_can_serve_and_the_doctor_and_run_say_the_same(
    text: str, said: str, tmp_path: Path
) -> None:
    node, told = found(text, tmp_path)

    findings = list(served(node))

    assert len(told) == bool(said)
    assert all(f"{tmp_path}/config.yaml:1: vendors." in it and said in it for it in told)
    assert [it.kind for it in findings] == ["resource-unserved" if said else ""]
    assert said in findings[0].what


def test_what_a_node_has_too_few_cards_for_the_doctor_alone_says(tmp_path: Path) -> None:
    node, told = found("nvidia: {resources: [{name: nvidia.com/gpu, devices: 5}]}", tmp_path)

    assert not told
    assert ["nvidia has 4 for it" in it.what for it in served(node)] == [True]


def test_a_vendor_whose_resource_another_serves_is_named_by_both(tmp_path: Path) -> None:
    node, told = found("metax: {resources: [{name: nvidia.com/gpu}]}", tmp_path)

    library = next(it for it in CHECKS if it.name == "vendor-library")
    left = [it.what for it in library.made(node) if it.kind == "vendor-left-out"]

    assert len(told) == len(left) == 1
    assert "metax already serves nvidia.com/gpu" in told[0]
    assert "metax already serves nvidia.com/gpu" in left[0]


def test_a_list_that_the_kubelet_does_not_take_is_said_before_the_agent_runs(tmp_path: Path) -> None:
    shared = "sharing: {kind: replicas, replicas: 131072}"
    node, _ = found(f"nvidia: {{resources: [{{name: nvidia.com/gpu, {shared}}}]}}", tmp_path)

    assert [it.kind for it in served(node)] == ["resource-unserved"]


def test_what_the_running_agent_complains_of_is_not_said_twice(tmp_path: Path) -> None:
    node, _ = found(f"nvidia: {{resources: {TWICE}}}", tmp_path)
    [said] = [it.what for it in served(node)]
    serving = around(
        *node.configuration.plugins, config=node.config, found=node.vendors, told={"troubles": [said]}
    )

    assert ["(see check agent)" in it.what for it in served(serving)] == [True]
