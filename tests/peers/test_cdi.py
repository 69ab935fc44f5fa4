"""The library of container runtimes takes our CDI specs, and gives containers what they are meant to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.driver_tree import LIBRARIES, UBUNTU, VERSION, lay, lay_nodes

from agent.vendor_api.agent import Device, Fault
from agent.vendors.nvidia.child import cdi_spec

from .cdi import Refused, asked, schema_errors

GPU = "k8s.device-plugin.nvidia.com/gpu="
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm")
CAPS = ("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4")
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
EXTRAS = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs0", "/dev/nvidia-fs1"),
    "mofed": ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"),
}
HOST = (
    *CONTROL,
    *CAPS,
    CHANNEL,
    "/dev/nvidia0",
    "/dev/nvidia1",
    *(path for paths in EXTRAS.values() for path in paths),
)
NODE = {"driver-version": VERSION, "control-nodes": ",".join(CONTROL), "imex-channels": "0"}
DEVICES = [
    Device("GPU-a", 0, paths=("/dev/nvidia0",), attributes=NODE),
    Device("MIG-a", 0, paths=("/dev/nvidia0", *CAPS), attributes=NODE, parent="GPU-a", slice=1),
    Device("GPU-b", 1, paths=("/dev/nvidia1",), attributes=NODE),
    Device("GPU-c", 2, paths=("/dev/nvidia2",), attributes=NODE, fault=Fault("lost")),
]
READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A driver's root of which the library finds every node."""
    lay(tmp_path / "root", {**UBUNTU, "etc/cufile.json": "", "run/udev/data": ""})
    return lay_nodes(tmp_path / "root", *HOST)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "cdi"
    path.mkdir()
    return path


def write(directory: Path, settings: Mapping[str, Any], devices: Sequence[Device] = DEVICES) -> None:
    wanted = {"deviceListStrategy": ["cdi-cri"], **settings}
    for name, text in cdi_spec.specs(wanted, devices).items():
        (directory / name).write_text(text)


def below(root: Path) -> dict[str, Any]:
    """Settings of a driver whose root is at the same place for us and for the host."""
    return {"driverRoot": str(root), "containerDriverRoot": str(root)}


def nodes(answer: Mapping[str, Any]) -> list[str]:
    return [device["path"] for device in answer["spec"]["linux"]["devices"]]


def mounts(answer: Mapping[str, Any]) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in answer["spec"].get("mounts", [])}


def everything(root: Path) -> dict[str, Any]:
    enabled = {f"{kind}Enabled": True for kind in EXTRAS}
    return {**below(root), **enabled, "nvidiaCDIHookPath": "/usr/bin/nvidia-ctk"}


@pytest.mark.parametrize("strategy", ["uuid", "index"])
def test_every_spec_is_taken_and_states_the_version_that_its_content_needs(
    binary: Path, directory: Path, root: Path, strategy: str
) -> None:
    write(directory, {**everything(root), "deviceIDStrategy": strategy})
    answer = asked(binary, directory)
    assert answer["versions"] == {
        f"k8s.device-plugin.nvidia.com-{kind}.json": {"stated": "0.5.0", "needed": "0.5.0"}
        for kind in ("gpu", "imex-channel", *EXTRAS)
    }
    cards = ["0", "0:1", "1", "2"] if strategy == "index" else ["GPU-a", "GPU-b", "GPU-c", "MIG-a"]
    assert [name.removeprefix(GPU) for name in answer["devices"] if name.startswith(GPU)] == [*cards, "all"]


def test_every_spec_is_what_the_schema_wants(binary: Path, directory: Path, root: Path) -> None:
    write(directory, everything(root))
    made = [json.loads(path.read_text()) for path in sorted(directory.iterdir())]
    assert len(made) == 2 + len(EXTRAS)
    assert [schema_errors(spec) for spec in made] == [[] for _ in made]
    del made[-1]["devices"][0]["containerEdits"]["deviceNodes"][0]["path"]
    assert schema_errors(made[-1]) == ["'path' is a required property"]


@pytest.mark.parametrize(
    ("strategy", "names", "wanted"),
    [
        ("uuid", ["GPU-a"], ["/dev/nvidia0"]),
        ("uuid", ["GPU-b", "GPU-a"], ["/dev/nvidia1", "/dev/nvidia0"]),
        ("uuid", ["MIG-a"], ["/dev/nvidia0", *CAPS]),
        ("uuid", ["all"], ["/dev/nvidia0", *CAPS, "/dev/nvidia1"]),
        ("index", ["1"], ["/dev/nvidia1"]),
        ("index", ["0:1", "1"], ["/dev/nvidia0", *CAPS, "/dev/nvidia1"]),
    ],
)
def test_a_container_gets_the_nodes_of_its_devices_and_no_others(
    binary: Path, directory: Path, root: Path, strategy: str, names: list[str], wanted: list[str]
) -> None:
    write(directory, {**below(root), "deviceIDStrategy": strategy})
    answer = asked(binary, directory, *(GPU + name for name in names))
    assert nodes(answer) == [*CONTROL, *wanted]
    assert "NVIDIA_VISIBLE_DEVICES=void" in answer["spec"]["process"]["env"]


def test_a_container_gets_the_drivers_files_at_their_own_paths_and_where_loaders_look(
    binary: Path, directory: Path, root: Path
) -> None:
    write(directory, below(root))
    answer = asked(binary, directory, GPU + "GPU-a")
    ends = {"libcuda.so": ("", ".1", f".{VERSION}"), "libnvidia-ml.so": (".1", f".{VERSION}")}
    folders = {f"/{LIBRARIES}", *cdi_spec.SEARCHED.get(os.uname().machine, ())}
    assert mounts(answer) == {
        **{
            f"{folder}/{name}{end}": f"{root}/{LIBRARIES}/{name}.{VERSION}"
            for name in ends
            for end in ends[name]
            for folder in folders
        },
        "/usr/bin/nvidia-smi": f"{root}/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": (
            f"{root}/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
        ),
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": (
            f"{root}/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
        ),
    }
    assert all(mount["options"] == READ_ONLY for mount in answer["spec"]["mounts"])
    assert "hooks" not in answer["spec"]


def test_with_a_hook_binary_a_container_gets_hooks_instead_of_mounts_by_soname(
    binary: Path, directory: Path, root: Path
) -> None:
    write(directory, everything(root))
    answer = asked(binary, directory, GPU + "GPU-a")
    assert f"/{LIBRARIES}/libcuda.so.1" not in mounts(answer)
    assert list(answer["spec"]["hooks"]) == ["createContainer"]
    hooks = answer["spec"]["hooks"]["createContainer"]
    assert {hook["path"] for hook in hooks} == {"/usr/bin/nvidia-ctk"}
    assert [hook["args"][2] for hook in hooks] == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
        "update-application-profile",
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("imex-channel=0", (CHANNEL,)), *((f"{kind}=all", paths) for kind, paths in EXTRAS.items())],
)
def test_a_container_gets_what_is_enabled_beside_its_cards(
    binary: Path, directory: Path, root: Path, name: str, wanted: tuple[str, ...]
) -> None:
    write(directory, everything(root))
    answer = asked(binary, directory, GPU + "GPU-a", f"k8s.device-plugin.nvidia.com/{name}")
    assert nodes(answer) == [*CONTROL, "/dev/nvidia0", *wanted]
    disks = {"/etc/cufile.json": f"{root}/etc/cufile.json", "/run/udev": f"{root}/run/udev"}
    assert (disks.items() <= mounts(answer).items()) is name.startswith("gds")


def test_nodes_and_files_are_taken_from_the_hosts_side_of_each_root(
    binary: Path, directory: Path, root: Path, tmp_path: Path
) -> None:
    lay_nodes(tmp_path / "host", *HOST)
    roots = {"driverRoot": "/run/nvidia/driver", "devRoot": str(tmp_path / "host")}
    write(directory, {**roots, "containerDriverRoot": str(root)})
    answer = asked(binary, directory, GPU + "GPU-a")
    assert nodes(answer) == [*CONTROL, "/dev/nvidia0"]
    assert mounts(answer)["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"


def test_without_a_root_the_hosts_own_nodes_are_asked_for(binary: Path, directory: Path, root: Path) -> None:
    card = Device("GPU-x", 0, paths=("/dev/nvidia-of-no-host",))
    write(directory, {"containerDriverRoot": str(root)}, [card])
    with pytest.raises(Refused, match=r'"?/dev/nvidia-of-no-host"?: no such file'):
        asked(binary, directory, GPU + "GPU-x")


@pytest.mark.parametrize("name", ["GPU-z", "0", ""])
def test_an_unknown_name_is_refused(binary: Path, directory: Path, root: Path, name: str) -> None:
    write(directory, below(root))
    with pytest.raises(Refused, match=f"unresolvable CDI devices {GPU}{name}$"):
        asked(binary, directory, GPU + "GPU-a", GPU + name)


def test_a_lost_card_keeps_no_other_from_a_container(binary: Path, directory: Path, root: Path) -> None:
    write(directory, below(root))
    with pytest.raises(Refused, match=r"nvidia2.*no such file or directory"):
        asked(binary, directory, GPU + "GPU-c")
    assert nodes(asked(binary, directory, GPU + "GPU-a")) == [*CONTROL, "/dev/nvidia0"]


def test_a_wrong_spec_is_refused(binary: Path, directory: Path, root: Path) -> None:
    write(directory, below(root))
    (directory / "wrong.com-kind.json").write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": "wrong.com/kind", "devices": [{"name": "no edits"}]})
    )
    with pytest.raises(Refused, match="invalid"):
        asked(binary, directory, GPU + "GPU-a")
