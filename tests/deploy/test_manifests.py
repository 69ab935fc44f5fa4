"""The plain manifests are the chart as it is now, and need nobody to render anything."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from agent.schedulers.koordinator.device_infos_file import DIRECTORY

from .chart import ROOT

MANIFESTS = ROOT / "deploy/manifests"


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("render", "xpu-agent.yaml"),
        ("uninstall", "uninstall.yaml"),
        ("uninstall_koordinator", "uninstall-koordinator.yaml"),
    ],
)
def test_they_are_what_the_chart_renders_now(helm: Path, function: str, file: str) -> None:
    told = subprocess.run(
        [ROOT / "deploy/manifests.sh", "--print", function],
        env={**os.environ, "HELM": str(helm)},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )

    assert told.stdout == (MANIFESTS / file).read_text(), "run `make manifests`"


def test_the_helm_of_make_tools_renders_for_a_kubernetes_of_its_own_time() -> None:
    """One that is only installed takes 1.20, for which the chart has no admission policy."""
    told = subprocess.run(
        ["make", "--dry-run", "--always-make", "build/tools/helm"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    found = re.findall(r"pkg/(\S+)\.k8sVersionMinor=(\d+)", told.stdout)

    assert {where for where, _ in found} == {"chartutil", "lint/rules"}
    assert all(int(minor) >= 30 for _, minor in found)


def test_they_bring_the_namespace_that_all_their_objects_are_in() -> None:
    [namespace, *objects] = [
        it for it in yaml.safe_load_all((MANIFESTS / "xpu-agent.yaml").read_text()) if it
    ]

    assert namespace["kind"] == "Namespace"
    assert {it["metadata"].get("namespace") for it in objects} == {None, namespace["metadata"]["name"]}


def test_what_koordinator_was_told_is_taken_back_with_a_token_and_the_directory_of_its_files() -> None:
    objects = [it for it in yaml.safe_load_all((MANIFESTS / "uninstall-koordinator.yaml").read_text()) if it]
    pod = next(it for it in objects if it["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    rules = next(it for it in objects if it["kind"] == "ClusterRole")["rules"]
    [worker] = pod["initContainers"]

    assert pod["automountServiceAccountToken"] is True
    assert pod["serviceAccountName"] in {
        it["metadata"]["name"] for it in objects if it["kind"] == "ServiceAccount"
    }
    assert DIRECTORY in {it["mountPath"] for it in worker["volumeMounts"]}
    assert "NODE_NAME" in {it["name"] for it in worker["env"]}
    [its] = [it for it in rules if it["resources"] == ["devices"]]
    assert {"get", "update", "delete"} <= {*its["verbs"]}


@pytest.mark.parametrize("file", ["xpu-agent.yaml", "uninstall.yaml", "uninstall-koordinator.yaml"])
def test_they_bear_no_mark_of_helm(file: str) -> None:
    text = (MANIFESTS / file).read_text()

    assert "helm.sh/" not in text
    assert ": Helm" not in text
