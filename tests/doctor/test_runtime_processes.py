"""Who starts the node's containers, by the configurations of Docker, containerd and CRI-O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.daemon.vendor_plugins import load
from agent.doctor import host_parts
from agent.doctor.runtime_processes import containers
from agent.scheduler_api.findings import Finding

from .surveyed import around

CRI1, CRI2 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
BINARY = "/usr/bin/nvidia-container-runtime"
DOCKER = {"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
CRIO = "etc/crio/crio.conf.d/99-nvidia.conf"


def containerd(plugin: str, version: int, name: str, more: str = "") -> str:
    at = f'[plugins."{plugin}".containerd'
    return (
        f'version = {version}\n{more}{at}]\ndefault_runtime_name = "{name}"\n'
        f'{at}.runtimes.nvidia.options]\nBinaryName = "{BINARY}"\n'
    )


def found(root: Path, files: Mapping[str, str], engine: str = "", vendor: str = "nvidia") -> list[Finding]:
    """What the check says of a node with these files, whose Node names this runtime."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    plugin = next(it for it in load({}, [vendor]) if it.name == vendor)
    node = {"status": {"nodeInfo": {"containerRuntimeVersion": engine}}}
    return list(containers(around(plugin, node=node, root=root)))


@pytest.mark.parametrize(
    ("files", "engine"),
    [
        ({"etc/docker/daemon.json": json.dumps(DOCKER)}, "docker://19.3.5"),
        ({"etc/containerd/config.toml": containerd(CRI1, 2, "nvidia")}, "containerd://1.7.20"),
        ({"etc/containerd/config.toml": containerd(CRI2, 3, "nvidia")}, ""),
        ({CRIO: '[crio.runtime]\ndefault_runtime = "nvidia"\n'}, "cri-o://1.30.0"),
        (
            {
                "etc/containerd/config.toml": 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
                "etc/containerd/conf.d/nvidia.toml": containerd(CRI1, 2, "nvidia"),
            },
            "containerd://1.7.20",
        ),
    ],
)
def test_a_node_whose_containers_the_vendors_runtime_starts_is_well(
    files: Mapping[str, str], engine: str, tmp_path: Path
) -> None:
    assert [it.kind for it in found(tmp_path, files, engine)] == [""]
    assert [it.severity for it in found(tmp_path, files, engine)] == ["ok"]


@pytest.mark.parametrize(
    ("files", "engine", "remedy"),
    [
        (
            {"etc/docker/daemon.json": json.dumps({**DOCKER, "default-runtime": "runc"})},
            "docker://19.3.5",
            'set "default-runtime" to "nvidia" in ',
        ),
        ({"etc/docker/daemon.json": "{}"}, "", "then run systemctl restart docker"),
        (
            {"etc/containerd/config.toml": containerd(CRI1, 2, "runc")},
            "containerd://1.7.20",
            f'set default_runtime_name under [plugins."{CRI1}".containerd] to "nvidia"',
        ),
        ({"etc/containerd/config.toml": containerd(CRI2, 3, "runc")}, "", f'[plugins."{CRI2}".containerd]'),
        ({CRIO: "[crio.runtime]\n"}, "cri-o://1.30.0", "set default_runtime under [crio.runtime]"),
    ],
)
def test_another_default_runtime_is_named_with_its_file_and_what_to_write_there(
    files: Mapping[str, str], engine: str, remedy: str, tmp_path: Path
) -> None:
    [its] = found(tmp_path, files, engine)

    assert its.kind == "runtime-not-default"
    assert str(tmp_path / next(iter(files))) in its.what
    assert "without NVIDIA's container runtime no container sees a card" in its.what
    assert remedy in its.remedy


def test_the_runtime_that_the_kubelet_does_not_speak_with_is_not_judged(tmp_path: Path) -> None:
    below_docker = containerd(CRI1, 2, "runc", 'disabled_plugins = ["cri"]\n')
    files = {"etc/docker/daemon.json": json.dumps(DOCKER), "etc/containerd/config.toml": below_docker}

    assert [it.kind for it in found(tmp_path, files)] == [""]
    assert [it.kind for it in found(tmp_path, {CRIO: "[crio.runtime]\n"}, "docker://19.3.5")] == [""]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/docker/daemon.json", "{"),
        ("etc/docker/daemon.json", "[1]"),
        ("etc/containerd/config.toml", "["),
        (CRIO, "nonsense"),
    ],
)
def test_a_configuration_that_can_not_be_read_is_no_silence(name: str, text: str, tmp_path: Path) -> None:
    [its] = found(tmp_path, {name: text})

    assert its.severity == "not-made"


def test_where_no_configuration_is_seen_the_check_is_not_made(tmp_path: Path) -> None:
    [its] = found(tmp_path, {}, "docker://19.3.5")

    assert (its.severity, "no configuration of docker is seen below" in its.what) == ("not-made", True)


@pytest.mark.parametrize(
    ("vendor", "program"),
    [
        ("metax", "/var/lib/metax/tools/usr/bin/mx-container-runtime"),
        ("enflame", "/usr/bin/enflame-container-runtime"),
    ],
)
def test_each_vendor_has_its_own_runtime(vendor: str, program: str, tmp_path: Path) -> None:
    its = {"default-runtime": "theirs", "runtimes": {"theirs": {"path": program}}}

    assert [
        it.kind for it in found(tmp_path, {"etc/docker/daemon.json": json.dumps(its)}, vendor=vendor)
    ] == [""]
    [other] = found(tmp_path, {"etc/docker/daemon.json": json.dumps(DOCKER)}, vendor=vendor)
    assert other.kind == "runtime-not-default"


@pytest.mark.parametrize("vendor", ["nvidia", "metax"])
def test_driver_and_container_runtime_are_looked_for_on_a_node_with_cards(
    vendor: str, tmp_path: Path
) -> None:
    plugin = next(it for it in load({}, [vendor]) if it.name == vendor)

    told = {it.what: it.kind for it in host_parts.parts(around(plugin, root=tmp_path))}

    assert list(told.values()) == ["", "part-lacking"]
    driver, runtime = told
    assert driver == f"{vendor}: the kernel's driver is there, because the vendor lists its cards"
    assert "container runtime is not there" in runtime


def test_with_cdi_names_alone_nvidias_runtime_is_not_needed() -> None:
    settings = {"nvidia": {"deviceListStrategy": ["cdi-cri"]}}
    plugin = next(it for it in load(settings, ["nvidia"]) if it.name == "nvidia")

    assert plugin.vendor is not None
    assert [it.name for it in plugin.vendor.host.parts] == ["the kernel's driver"]
    assert [it.severity for it in containers(around(plugin))] == ["ok"]
