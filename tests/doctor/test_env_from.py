"""Containers that may set the vendor's variable by envFrom: what was read of it, and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.doctor import refused_pods
from agent.scheduler_api.findings import Finding
from agent.testing.simapi.sim_api_server import SimApiServer

from .patient import Patient
from .surveyed import around, vendor

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MAP, SECRET = {"configMapRef": {"name": "its"}}, {"secretRef": {"name": "its"}}
Read = Mapping[tuple[str, str], Mapping[str, str]]


def pod(*sources: Mapping[str, Any], **container: Any) -> dict[str, Any]:
    its = {"name": "main", "envFrom": list(sources), **container}
    return {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": [its]}}


def told(it: Mapping[str, Any], read: Read | None = None) -> list[Finding]:
    node = around(vendor(), its_pods=(it,))
    return list(refused_pods.around(replace(node, cluster=replace(node.cluster, config_maps=read or {}))))


@pytest.mark.parametrize(("source", "kind"), [(MAP, "ConfigMap its"), (SECRET, "Secret its")])
def test_a_container_whose_variables_nobody_has_read_is_named_as_one_that_may_set_it(
    source: Mapping[str, Any], kind: str
) -> None:
    [found] = told(pod(source))

    assert found.severity == "not-made"
    assert f"may set {VARIABLE} by envFrom: shop/web, container main from {kind};" in found.what
    assert "Secrets never" in found.what


@pytest.mark.parametrize(
    "its",
    [
        pod(),
        pod({**MAP, "prefix": "DB_"}),
        pod(MAP, env=[{"name": VARIABLE, "value": "void"}]),
        {**pod(MAP), "status": {"phase": "Succeeded"}},
    ],
    ids=["none", "prefix", "said itself", "ended"],
)
def test_who_can_not_set_it_that_way_is_not_named(its: Mapping[str, Any]) -> None:
    assert [it.severity for it in told(its)] == ["ok"]


@pytest.mark.parametrize(
    ("source", "data", "value"),
    [
        (MAP, {VARIABLE: "all"}, "all (ConfigMap its)"),
        ({**MAP, "prefix": "NVIDIA_"}, {"VISIBLE_DEVICES": "0"}, "0 (ConfigMap its)"),
    ],
)
def test_a_config_map_that_was_read_and_sets_it_is_named_with_the_value(
    source: Mapping[str, Any], data: Mapping[str, str], value: str
) -> None:
    [found] = told(pod(source), {("shop", "its"): data})

    assert found.kind == "pod-chooses-devices"
    assert f"shop/web, container main asks for no device and sets {VARIABLE}={value}" in found.what


def test_one_that_was_read_and_does_not_set_it_is_well_beside_one_of_another_namespace() -> None:
    assert [it.severity for it in told(pod(MAP), {("shop", "its"): {"A": "b"}})] == ["ok"]
    assert [it.severity for it in told(pod(MAP), {("shop", "its"): {VARIABLE: "void"}})] == ["ok"]
    assert [it.severity for it in told(pod(MAP), {("other", "its"): {"A": "b"}})] == ["not-made"]


async def test_config_maps_are_read_with_a_kubeconfig_alone_and_secrets_never(patient: Patient) -> None:
    its = {"envFrom": [{"configMapRef": {"name": "its"}}, {"secretRef": {"name": "its"}}]}
    patient.add_pod("web", its)
    metadata = {"name": "its", "namespace": "default"}
    patient.server.put_object(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {VARIABLE: "all"}}
    )

    found = (await patient.look()).cluster.config_maps

    assert found == {("default", "its"): {VARIABLE: "all"}}
    assert not [it for it in asked(patient.server) if "/secrets/" in it]


def asked(server: SimApiServer) -> list[str]:
    """The paths that were asked for."""
    return [it.path for it in server.requests]
