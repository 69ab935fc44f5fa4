"""The tools of these tests, and the chart as helm renders it: objects by kind and name, or what helm says."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy/chart/xpu-agent"
NEWEST = "1.36.0"
#: A chart's objects are a thousand lines: libyaml reads them ten times as fast, where Python has it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def tool(request: pytest.FixtureRequest, name: str, remedy: str) -> Path:
    """A program. A test that lacks it is skipped by name, or is an error where `--require-tools` says so."""
    found = shutil.which(name, path=f"{ROOT / 'build/tools'}:/usr/local/bin:/usr/bin:/bin")
    if found is None:
        message = f"no {name} here: {remedy}"
        if request.config.getoption("--require-tools"):
            pytest.fail(message)
        pytest.skip(message)
    return Path(found)


def helm_of(request: pytest.FixtureRequest) -> Path:
    return tool(request, "helm", "make tools")


class Refused(Exception):
    """What helm prints where it does not render."""


class Rendered:
    """Every object of one rendering, and the manifest as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        return [it for it in yaml.load_all(self.text, Loader=LOADER) if it]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [it for it in self.objects if it["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> dict[str, Any]:
        found = [it for it in self.all(kind) if name in (None, it["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} {kind} {name or ''}"
        return found[0]

    def pod(self, pool: str = "nvidia") -> dict[str, Any]:
        spec: dict[str, Any] = self.one("DaemonSet", f"xpu-agent-{pool}")["spec"]["template"]["spec"]
        return spec

    def agent(self, pool: str = "nvidia") -> dict[str, Any]:
        [container] = self.pod(pool)["containers"]
        assert isinstance(container, dict)
        return container

    def env(self, pool: str = "nvidia") -> dict[str, str]:
        return {it["name"]: it.get("value", "") for it in self.agent(pool)["env"]}

    def mounts(self, pool: str = "nvidia") -> dict[str, dict[str, Any]]:
        """Host path to the mount of it."""
        paths = {it["name"]: it["hostPath"]["path"] for it in self.pod(pool)["volumes"] if "hostPath" in it}
        return {paths[it["name"]]: it for it in self.agent(pool)["volumeMounts"] if it["name"] in paths}


class Chart:
    """Runs helm on the chart of this checkout."""

    def __init__(self, helm: Path) -> None:
        self._helm = helm
        #: What was rendered before, by arguments and values: tests look at the same thing in many ways.
        self._rendered: dict[tuple[str, ...], str] = {}

    def render(
        self, values: Mapping[str, Any] | None = None, kubernetes: str = NEWEST, namespace: str = "xpu"
    ) -> Rendered:
        """Raises Refused with helm's words."""
        options = ("--kube-version", kubernetes, "--namespace", namespace)
        key = (*options, yaml.safe_dump(dict(values or {})))
        if key not in self._rendered:
            self._rendered[key] = self._run("template", values, *options)
        return Rendered(self._rendered[key])

    def notes(self, values: Mapping[str, Any] | None = None) -> str:
        """What helm prints after an install. It renders them for a server alone, so here a file has them."""
        with TemporaryDirectory() as directory:
            copy = Path(shutil.copytree(CHART, Path(directory) / CHART.name))
            shutil.move(copy / "templates/NOTES.txt", copy / "files/NOTES.txt")
            told = '{notes: {{ tpl (.Files.Get "files/NOTES.txt") . | toJson }}}'
            (copy / "templates/notes.yaml").write_text(told)
            options = ["--show-only", "templates/notes.yaml", "--kube-version", NEWEST, "--namespace", "xpu"]
            given = yaml.safe_dump(dict(values or {}))
            text = self._helm_run(["template", "xpu-agent", str(copy), *options, "--values", "-"], given)
        notes = yaml.safe_load(text)["notes"]
        assert isinstance(notes, str)
        return notes

    def lint(self, values: Mapping[str, Any] | None = None) -> None:
        self._run("lint", values, "--strict")

    def refusal(self, values: Mapping[str, Any]) -> str:
        """What helm says against these values; empty where it takes them."""
        try:
            self.render(values)
        except Refused as refused:
            return str(refused)
        return ""

    def release(
        self, verb: str, kubeconfig: Path, namespace: str, values: Mapping[str, Any] | None = None
    ) -> str:
        """Install, upgrade or uninstall on a server. Raises Refused with helm's words."""
        where = ["--kubeconfig", str(kubeconfig), "--namespace", namespace]
        if verb == "uninstall":
            return self._helm_run([verb, "xpu-agent", *where], "")
        return self._helm_run(
            [verb, "xpu-agent", str(CHART), "--values", "-", *where], yaml.safe_dump(dict(values or {}))
        )

    def _run(self, verb: str, values: Mapping[str, Any] | None, *more: str) -> str:
        name = ["xpu-agent"] if verb == "template" else []
        return self._helm_run(
            [verb, *name, str(CHART), "--values", "-", *more], yaml.safe_dump(dict(values or {}))
        )

    def _helm_run(self, arguments: list[str], values: str) -> str:
        told = subprocess.run(
            [self._helm, *arguments], input=values, capture_output=True, text=True, timeout=150
        )
        if told.returncode:
            raise Refused(told.stderr + told.stdout)
        return told.stdout
