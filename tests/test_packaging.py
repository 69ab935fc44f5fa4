"""What is shipped: the package, its types, its generated code, its locks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PB = ROOT / "agent" / "kubelet" / "pb"


def test_the_installed_version_is_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert metadata.version("xpu-agent") == project["version"]


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("agent").joinpath("py.typed").is_file()


def test_what_a_vendor_s_process_imports_stays_empty() -> None:
    assert (ROOT / "agent/__init__.py").read_text() == ""
    assert (ROOT / "agent/core/__init__.py").read_text() == ""


def test_the_generated_messages_are_those_of_the_proto_files(tmp_path: Path) -> None:
    for api, name in (("deviceplugin/v1beta1", "deviceplugin"), ("podresources/v1", "podresources")):
        out = tmp_path / name
        out.mkdir()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"-I{ROOT / 'proto' / api}",
                f"--python_betterproto2_out={out}",
                "--python_betterproto2_opt=client_generation=none",
                "--python_betterproto2_opt=server_generation=none",
                "api.proto",
            ],
            check=True,
            capture_output=True,
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        )
        for fresh in out.rglob("*.py"):
            committed = PB / name / fresh.relative_to(out)
            assert committed.read_text() == fresh.read_text(), f"{committed}: run `make proto`"


@pytest.mark.parametrize("lock", ["runtime.txt", "dev.txt"])
def test_a_lock_pins_with_hashes_and_names_no_address(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()

    pins = re.findall(r"^([a-z0-9][a-z0-9._-]*)(==|.?@)", text, re.MULTILINE | re.IGNORECASE)
    assert pins
    assert all(operator == "==" for _, operator in pins)
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text
    assert "--index" not in text


def test_every_dependency_has_its_line_of_why() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    contributing = (ROOT / "CONTRIBUTING.md").read_text()

    for requirement in project["dependencies"]:
        name = re.split(r"[<>=]", requirement)[0]
        assert f"| {name} |" in contributing, name


def test_helm_is_built_anew_for_another_version_or_other_flags_and_never_else(tmp_path: Path) -> None:
    """The Makefile's rule, with a `go` that notes what it is asked for."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    go, asked = tmp_path / "bin/go", tmp_path / "asked"
    go.parent.mkdir()
    go.write_text(
        f'#!/bin/sh\n[ -e "{tmp_path}/cut-short" ] && exit 1\necho "$*" >> "{asked}"\ntouch "$GOBIN/helm"\n'
    )
    go.chmod(0o755)

    def make(*variables: str) -> int:
        """How often it was built so far."""
        subprocess.run(
            ["make", "-s", "tools", *variables],
            cwd=tmp_path,
            capture_output=True,
            env={"PATH": f"{go.parent}:/usr/bin:/bin"},
            check=not (tmp_path / "cut-short").exists(),
        )
        return len(asked.read_text().splitlines())

    assert [make(), make()] == [1, 1]
    assert [make("HELM=v3.0.0"), make("HELM=v3.0.0")] == [2, 2]
    assert asked.read_text().splitlines()[-1].endswith("helm@v3.0.0")
    assert [make("HELM_KUBERNETES=9"), make("HELM_KUBERNETES=9")] == [3, 3]
    assert "k8sVersionMinor=9" in asked.read_text().splitlines()[-1]
    (tmp_path / "cut-short").touch()
    assert make() == 3
    (tmp_path / "cut-short").unlink()
    assert [make(), make()] == [4, 4]
