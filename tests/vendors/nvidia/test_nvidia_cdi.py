"""A CDI spec names every device, and gives a container what NVIDIA's toolkit gives of the driver, no more."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.driver_tree import LIBRARIES, UBUNTU, VERSION, lay, lay_nodes

from agent.vendor_api.agent import Device, Fault
from agent.vendors.nvidia.child import cdi_spec, device_nodes

NODE = {"driver-version": VERSION, "control-nodes": "/dev/nvidiactl,/dev/nvidia-uvm"}
CARDS = [
    Device("GPU-a", 0, paths=("/dev/nvidia0",), attributes=NODE),
    Device("GPU-b", 1, paths=("/dev/nvidia1",), attributes=NODE),
]
SLICES = [
    Device(
        f"MIG-{number}",
        0,
        paths=("/dev/nvidia0", f"/dev/nvidia-caps/nvidia-cap{number}"),
        attributes=NODE,
        parent="GPU-a",
        slice=number,
    )
    for number in (1, 2)
]
ASKED = {"deviceListStrategy": ["cdi-cri"]}
READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
HOOK = "/usr/bin/nvidia-cdi-hook"


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node of a card that is here; what is mounted for loaders alone is another file's matter."""
    monkeypatch.setattr(device_nodes, "OWN_ROOT", str(tmp_path / "no-dev-of-ours"))
    monkeypatch.setattr(cdi_spec, "SEARCHED", {})


def spec(settings: Mapping[str, Any], devices: Sequence[Device] = CARDS, kind: str = "gpu") -> Any:
    return json.loads(
        cdi_spec.specs({**ASKED, **settings}, devices)[f"k8s.device-plugin.nvidia.com-{kind}.json"]
    )


def mounts(made: Any) -> dict[str, str]:
    """Path in the container to path on the host."""
    found = made["containerEdits"].get("mounts", [])
    return {mount["containerPath"]: mount["hostPath"] for mount in found}


def nodes(made: Any, name: str) -> list[str]:
    """Paths in the container."""
    (device,) = (device for device in made["devices"] if device["name"] == name)
    return [node["path"] for node in device["containerEdits"]["deviceNodes"]]


def hooks(made: Any) -> dict[str, list[str]]:
    """Name of each hook to its arguments."""
    found = made["containerEdits"].get("hooks", [])
    return {hook["args"][1]: hook["args"][2:] for hook in found}


def driver(root: Path, tree: Mapping[str, str] = UBUNTU) -> dict[str, str]:
    """Settings of a driver that lies in `root` for us, in /run/nvidia/driver for the host."""
    lay(root, tree)
    return {"driverRoot": "/run/nvidia/driver", "containerDriverRoot": str(root)}


@pytest.mark.parametrize(
    ("strategy", "wanted"),
    [
        (None, False),
        ("envvar", False),
        (["envvar", "volume-mounts"], False),
        ("cdi-cri", True),
        (["cdi-annotations"], True),
        (["envvar", "cdi-cri"], True),
    ],
)
def test_specs_are_made_for_cdi_strategies_only(strategy: str | list[str] | None, wanted: bool) -> None:
    assert bool(cdi_spec.specs({"deviceListStrategy": strategy}, CARDS)) is wanted


def test_cards_and_slices_are_named_by_uuid() -> None:
    made = spec({}, [*CARDS, *SLICES])
    assert made["cdiVersion"] == "0.5.0"
    assert made["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert [device["name"] for device in made["devices"]] == ["GPU-a", "MIG-1", "MIG-2", "GPU-b", "all"]
    assert nodes(made, "MIG-2") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap2"]
    assert nodes(made, "all") == [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia1",
    ]


def test_cards_and_slices_are_named_by_index() -> None:
    made = spec({"deviceIDStrategy": "index"}, [*CARDS, *SLICES])
    assert [device["name"] for device in made["devices"]] == ["0", "0:1", "0:2", "1", "all"]
    assert nodes(made, "0:1") == nodes(spec({}, SLICES), "MIG-1")


def test_the_order_of_devices_changes_nothing() -> None:
    devices = [*CARDS, *SLICES]
    assert cdi_spec.specs(ASKED, devices) == cdi_spec.specs(ASKED, devices[::-1])


@pytest.mark.parametrize(
    ("roots", "host"),
    [
        ({}, None),
        ({"driverRoot": "/run/nvidia/driver"}, "/run/nvidia/driver/dev/nvidia0"),
        ({"driverRoot": "/run/nvidia/driver/"}, "/run/nvidia/driver/dev/nvidia0"),
        ({"driverRoot": "/run/nvidia/driver", "devRoot": "/"}, None),
        ({"devRoot": "/run/dev"}, "/run/dev/dev/nvidia0"),
    ],
)
def test_a_node_names_its_path_on_the_host_where_it_differs(roots: dict[str, str], host: str | None) -> None:
    (node,) = spec(roots)["devices"][0]["containerEdits"]["deviceNodes"]
    assert node == ({"path": "/dev/nvidia0", "hostPath": host} if host else {"path": "/dev/nvidia0"})


def test_every_container_gets_the_control_nodes_that_exist_and_keeps_the_legacy_hook_out() -> None:
    edits = spec({})["containerEdits"]
    assert edits["deviceNodes"] == [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_device_with_a_fault_keeps_its_entry_and_is_none_of_all() -> None:
    lost = replace(CARDS[0], fault=Fault("lost"))
    made = spec({}, [lost, CARDS[1], SLICES[0]])
    assert nodes(made, "GPU-a") == ["/dev/nvidia0"]
    assert nodes(made, "all") == ["/dev/nvidia1"]
    assert [device["name"] for device in spec({}, [lost])["devices"]] == ["GPU-a"]


@pytest.mark.parametrize("uuid", ["", "MIG-GPU-a/1/0", "GPU a", "-GPU", "GPU-", "GPÜ", "all"])
def test_a_name_that_would_spoil_the_spec_is_left_out(uuid: str) -> None:
    odd = replace(CARDS[0], uuid=uuid)
    assert [device["name"] for device in spec({}, [odd, CARDS[1]])["devices"]] == ["GPU-b", "all"]
    assert cdi_spec.specs(ASKED, [odd]) == {}


def test_a_device_without_nodes_and_one_of_a_name_that_is_taken_are_left_out() -> None:
    devices = [CARDS[0], replace(CARDS[1], index=0), replace(CARDS[1], uuid="GPU-c", index=2, paths=())]
    made = spec({"deviceIDStrategy": "index"}, devices)
    assert [device["name"] for device in made["devices"]] == ["0", "all"]
    assert nodes(made, "0") == ["/dev/nvidia0"]


def test_cards_have_the_nodes_of_the_kernels_graphics_and_slices_do_not(tmp_path: Path) -> None:
    pci = "0000:3b:00.0"
    known = ("card1", "renderD128", "renderD129", "controlD64")
    lay(tmp_path, {f"sys/bus/pci/devices/{pci}/drm/{name}": "" for name in known})
    lay_nodes(tmp_path, *(f"/dev/dri/{name}" for name in ("card0", "card1", "renderD128", "controlD64")))
    roots = {"containerDriverRoot": str(tmp_path), "sysfs": str(tmp_path / "sys")}
    gfx = {**NODE, "mig-profile": "1g.12gb+gfx"}
    devices = [
        replace(CARDS[0], pci=pci),
        replace(SLICES[0], pci=pci),
        replace(SLICES[1], pci=pci, attributes=gfx),
        replace(CARDS[1], pci="0000:5e:00.0"),
        replace(CARDS[1], uuid="GPU-c", pci=pci, paths=()),
    ]
    made = spec(roots, devices)
    assert "GPU-c" not in {device["name"] for device in made["devices"]}
    assert nodes(made, "GPU-a") == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert nodes(made, "MIG-1") == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"]
    assert nodes(made, "MIG-2")[2:] == ["/dev/dri/card1", "/dev/dri/renderD128"]
    assert nodes(made, "GPU-b") == ["/dev/nvidia1"]


def test_the_drivers_files_are_mounted_where_the_host_has_them(tmp_path: Path) -> None:
    made = spec(driver(tmp_path))
    folder = f"/{LIBRARIES}"
    ends = {
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    }
    for stem, names in {"libcuda": ("", ".1"), "libnvidia-ml": (".1",)}.items():
        for name in (*names, f".{VERSION}"):
            ends[f"{folder}/{stem}.so{name}"] = f"{folder}/{stem}.so.{VERSION}"
    assert mounts(made) == {path: f"/run/nvidia/driver{real}" for path, real in ends.items()}
    assert list(mounts(made)) == sorted(ends)
    assert {tuple(mount["options"]) for mount in made["containerEdits"]["mounts"]} == {tuple(READ_ONLY)}
    assert made["containerEdits"]["env"][1:] == [f"NVIDIA_CTK_LIBCUDA_DIR={folder}"]


def library(path: str, *links: str) -> dict[str, str]:
    return {path: "", **{f"{Path(path).parent}/{link}": Path(path).name for link in links}}


CUDA = f"libcuda.so.{VERSION}"


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        pytest.param(
            library(f"usr/lib64/{CUDA}", "libcuda.so.1") | library(f"usr/lib/{CUDA}"),
            {f"/usr/lib64/{name}": f"/usr/lib64/{CUDA}" for name in (CUDA, "libcuda.so.1", "libcuda.so")},
            id="RPM, 32 bits beside",
        ),
        pytest.param(
            library(f"usr/lib/{CUDA}"),
            {f"/usr/lib/{name}": f"/usr/lib/{CUDA}" for name in (CUDA, "libcuda.so.1", "libcuda.so")},
            id="Arch",
        ),
        pytest.param(
            library(f"lib64/{CUDA}") | {"vulkan/icd.d/nvidia_icd.json": ""},
            {f"/lib64/{name}": f"/lib64/{CUDA}" for name in (CUDA, "libcuda.so.1", "libcuda.so")}
            | {"/etc/vulkan/icd.d/nvidia_icd.json": "/vulkan/icd.d/nvidia_icd.json"},
            id="GKE",
        ),
        pytest.param(
            {
                f"{LIBRARIES}/nvidia/current/{CUDA}": "",
                f"{LIBRARIES}/libcuda.so.1": "/etc/alternatives/cuda",
                "etc/alternatives/cuda": f"/{LIBRARIES}/nvidia/current/{CUDA}",
                "usr/bin/nvidia-smi": "/etc/alternatives/smi",
                "etc/alternatives/smi": "/usr/lib/nvidia/current/nvidia-smi",
                "usr/lib/nvidia/current/nvidia-smi": "",
            },
            {
                **{
                    f"/{LIBRARIES}/nvidia/current/{name}": f"/{LIBRARIES}/nvidia/current/{CUDA}"
                    for name in (CUDA, "libcuda.so.1", "libcuda.so")
                },
                f"/{LIBRARIES}/libcuda.so.1": f"/{LIBRARIES}/nvidia/current/{CUDA}",
                "/usr/bin/nvidia-smi": "/usr/lib/nvidia/current/nvidia-smi",
            },
            id="Debian",
        ),
    ],
)
def test_the_driver_is_found_where_distributions_put_it(
    tmp_path: Path, tree: dict[str, str], wanted: dict[str, str]
) -> None:
    assert mounts(spec(driver(tmp_path, tree))) == {
        path: f"/run/nvidia/driver{real}" for path, real in wanted.items()
    }


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        (f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}", True),
        (f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}", True),
        (f"{LIBRARIES}/libnvidia-nvvm70.so.4", True),
        (f"{LIBRARIES}/libnvidia-egl-wayland.so.1.1.19", True),
        (f"{LIBRARIES}/libnvidia-ml.so.575.57.08", False),
        (f"{LIBRARIES}/libEGL.so.1.1.0", False),
        (f"{LIBRARIES}/libnvidia-folder.so.{VERSION}/x", False),
        (f"{LIBRARIES}/nvidia/xorg/nvidia_drv.so", True),
        ("usr/lib/xorg/modules/drivers/nvidia_drv.so", True),
        (f"usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}", True),
        ("usr/bin/nvidia-debugdump", True),
        ("usr/sbin/nvidia-persistenced", True),
        ("usr/bin/nvidia-cuda-mps-control", True),
        ("usr/bin/nvidia-bug-report.sh", False),
        (f"usr/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin", True),
        ("usr/lib/firmware/nvidia/575.57.08/gsp_tu10x.bin", False),
        ("usr/share/nvidia/nvoptix.bin", True),
        ("etc/OpenCL/vendors/nvidia.icd", True),
    ],
)
def test_what_belongs_to_the_driver_is_mounted(tmp_path: Path, name: str, taken: bool) -> None:
    made = mounts(spec(driver(tmp_path, {**UBUNTU, name: ""})))
    assert (
        any(real.startswith(f"/run/nvidia/driver/{name.removesuffix('/x')}") for real in made.values())
        is taken
    )


def test_the_modules_of_the_x_server_are_mounted_by_their_plain_name_too(tmp_path: Path) -> None:
    server = f"{LIBRARIES}/nvidia/xorg/libglxserver_nvidia.so"
    made = mounts(spec(driver(tmp_path, {**UBUNTU, f"{server}.{VERSION}": ""})))
    assert made[f"/{server}"] == made[f"/{server}.{VERSION}"] == f"/run/nvidia/driver/{server}.{VERSION}"


@pytest.mark.parametrize(
    ("place", "container"),
    [
        ("etc/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        ("usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "/etc/vulkan/icd.d/nvidia_icd.x86_64.json"),
        ("usr/local/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
    ],
)
def test_configs_are_mounted_where_loaders_look(tmp_path: Path, place: str, container: str) -> None:
    made = mounts(spec(driver(tmp_path, {**UBUNTU, place: ""})))
    assert made[container] == f"/run/nvidia/driver/{place}"


def test_a_program_that_cannot_be_executed_is_not_mounted(tmp_path: Path) -> None:
    settings = driver(tmp_path)
    (tmp_path / "usr/bin/nvidia-smi").chmod(0o644)
    assert "/usr/bin/nvidia-smi" not in mounts(spec(settings))


def test_sockets_of_the_drivers_daemons_are_mounted_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = driver(tmp_path, {**UBUNTU, "run/nvidia-persistenced/pid": "", "var/run": "/run"})
    monkeypatch.chdir(tmp_path / "run/nvidia-persistenced")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        made = spec(settings)
        left_out = spec({**settings, "cdiFeatureFlags": ["disable-ipc-discoverer"]})
    (mount,) = (each for each in made["containerEdits"]["mounts"] if each["options"] != READ_ONLY)
    path = "/run/nvidia-persistenced/socket"
    assert (mount["containerPath"], mount["hostPath"]) == (path, f"/run/nvidia/driver{path}")
    assert mount["options"] == ["nosuid", "nodev", "rbind", "rprivate", "noexec"]
    assert path not in mounts(left_out)


def test_a_file_in_place_of_a_socket_is_not_mounted(tmp_path: Path) -> None:
    path = "run/nvidia-persistenced/socket"
    assert f"/{path}" not in mounts(spec(driver(tmp_path, {**UBUNTU, path: ""})))


def test_explicit_libraries_are_mounted_with_the_feature_flag_only(tmp_path: Path) -> None:
    gl = {f"{LIBRARIES}/libEGL.so.1.1.0": "", f"{LIBRARIES}/libEGL.so.1": "libEGL.so.1.1.0"}
    settings = driver(tmp_path, {**UBUNTU, **gl})
    flagged = {**settings, "cdiFeatureFlags": ["enable-explicit-driver-libraries", "no-such-flag"]}
    more = set(mounts(spec(flagged))) - set(mounts(spec(settings)))
    assert more == {f"/{LIBRARIES}/libEGL.so.1.1.0", f"/{LIBRARIES}/libEGL.so.1"}


@pytest.mark.parametrize(
    "links",
    [
        {f"libevil.so.{VERSION}": "/etc/shadow"},
        {f"libevil.so.{VERSION}": "../../../../../../etc/shadow"},
        {f"libevil.so.{VERSION}": "/proc/self/root/etc/shadow"},
        {f"libevil.so.{VERSION}": f"libevil.so.{VERSION}"},
        {f"libevil.so.{VERSION}": f"libworse.so.{VERSION}", f"libworse.so.{VERSION}": "gone"},
        {"libcuda.so.2": "/etc/shadow"},
    ],
)
@pytest.mark.parametrize("has_shadow", [False, True])
def test_a_link_to_what_is_no_file_of_the_driver_is_not_mounted(
    tmp_path: Path, links: dict[str, str], has_shadow: bool
) -> None:
    plain, odd = tmp_path / "plain", tmp_path / "odd"
    evil = {f"{LIBRARIES}/{name}": target for name, target in links.items()}
    shadow = {"etc/shadow": ""} if has_shadow else {}
    expected = mounts(spec(driver(plain)))
    assert mounts(spec(driver(odd, {**UBUNTU, **evil, **shadow}))) == expected


def test_a_soname_that_leads_elsewhere_is_mounted_from_the_driver(tmp_path: Path) -> None:
    tree = {**UBUNTU, f"{LIBRARIES}/libcuda.so.1": "/etc/shadow", "etc/shadow": ""}
    made = mounts(spec(driver(tmp_path, tree)))
    assert made[f"/{LIBRARIES}/libcuda.so.1"] == f"/run/nvidia/driver/{LIBRARIES}/{CUDA}"


def test_a_folder_that_is_a_link_is_followed_inside_of_the_root(tmp_path: Path) -> None:
    outside = lay(tmp_path / "outside", {CUDA: ""})
    tree = {"usr/lib64": str(outside), f"{LIBRARIES}/{CUDA}": ""}
    assert set(mounts(spec(driver(tmp_path / "root", tree))).values()) == {
        f"/run/nvidia/driver/{LIBRARIES}/{CUDA}"
    }


@pytest.mark.parametrize("version", ["", "580", "*.*", "../580.65.06", "580.65.06/..", "580.65.07"])
def test_without_the_drivers_version_nothing_of_it_is_mounted(tmp_path: Path, version: str) -> None:
    odd = {f"{LIBRARIES}/{name}": "" for name in ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-odd.so.")}
    settings = driver(tmp_path, {**UBUNTU, **odd})
    made = spec(settings, [replace(CARDS[0], attributes={"driver-version": version})])
    assert made["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}


@pytest.mark.parametrize("root", ["", "empty", "gone", "file"])
def test_a_driver_root_without_a_driver_gives_a_spec_without_mounts(tmp_path: Path, root: str) -> None:
    lay(tmp_path, {"empty/x": "", "file": ""})
    settings = {"driverRoot": str(tmp_path / root), "containerDriverRoot": str(tmp_path / root)}
    made = spec({**settings, "nvidiaCDIHookPath": HOOK})
    assert nodes(made, "GPU-a") == ["/dev/nvidia0"]
    assert set(made["containerEdits"]) == {"env", "deviceNodes"}


def test_a_driver_that_is_not_mounted_for_us_is_looked_for_at_the_hosts_path(tmp_path: Path) -> None:
    lay(tmp_path / "host", UBUNTU)
    lay(tmp_path / "ours", {"usr/bin/nvidia-smi": ""})
    made = spec({"driverRoot": str(tmp_path / "host"), "containerDriverRoot": str(tmp_path / "ours")})
    assert mounts(made)[f"/{LIBRARIES}/libcuda.so.1"] == f"{tmp_path}/host/{LIBRARIES}/{CUDA}"


def test_more_libraries_than_any_driver_has_are_not_mounted(tmp_path: Path) -> None:
    settings = driver(tmp_path, {f"usr/lib64/lib{number}.so.{VERSION}": "" for number in range(2000)})
    assert len(mounts(spec(settings))) == 512


def test_hooks_make_the_links_and_the_cache_of_libraries(tmp_path: Path) -> None:
    made = spec({**driver(tmp_path), "nvidiaCDIHookPath": HOOK})
    folder = f"/{LIBRARIES}"
    links = [
        f"{CUDA}::{folder}/libcuda.so",
        f"{CUDA}::{folder}/libcuda.so.1",
        f"libnvidia-ml.so.{VERSION}::{folder}/libnvidia-ml.so.1",
    ]
    assert hooks(made) == {
        "create-symlinks": [text for link in links for text in ("--link", link)],
        "enable-cuda-compat": [f"--host-driver-version={VERSION}"],
        "update-ldcache": ["--folder", folder],
        "disable-device-node-modification": [],
        "update-application-profile": [],
    }
    first = made["containerEdits"]["hooks"][0]
    assert (first["hookName"], first["path"], first["args"][0]) == (
        "createContainer",
        HOOK,
        "nvidia-cdi-hook",
    )
    assert not {f"{folder}/libcuda.so.1", f"{folder}/libcuda.so"} & set(mounts(made))
    assert f"{folder}/{CUDA}" in mounts(made)


def test_a_link_in_another_folder_names_its_end_from_there(tmp_path: Path) -> None:
    tree = {
        f"{LIBRARIES}/nvidia/current/{CUDA}": "",
        f"{LIBRARIES}/libcuda.so.1": f"nvidia/current/{CUDA}",
    }
    made = spec({**driver(tmp_path, tree), "nvidiaCDIHookPath": HOOK})
    assert f"nvidia/current/{CUDA}::/{LIBRARIES}/libcuda.so.1" in hooks(made)["create-symlinks"]


def test_nvidia_ctk_has_hooks_below_a_command_of_its_own(tmp_path: Path) -> None:
    made = spec({**driver(tmp_path), "nvidiaCDIHookPath": "/usr/bin/nvidia-ctk"})
    starts = [hook["args"][:3] for hook in made["containerEdits"]["hooks"]]
    assert starts[0] == ["nvidia-ctk", "hook", "create-symlinks"]
    assert {tuple(start[:2]) for start in starts} == {("nvidia-ctk", "hook")}


@pytest.mark.parametrize(
    ("disabled", "left"),
    [
        ([], 5),
        (["enable-cuda-compat"], 4),
        (["create-symlinks", "update-ldcache"], 3),
        (["no-such-hook"], 5),
        (["all"], 0),
        ("all", 0),
    ],
)
def test_disabled_hooks_are_left_out_and_links_are_mounted_instead(
    tmp_path: Path, disabled: list[str] | str, left: int
) -> None:
    made = spec({**driver(tmp_path), "nvidiaCDIHookPath": HOOK, "cdiDisableHooks": disabled})
    assert len(hooks(made)) == left
    assert not set(hooks(made)) & set(disabled)
    assert ("create-symlinks" in hooks(made)) is not (f"/{LIBRARIES}/libcuda.so.1" in mounts(made))


def test_imex_channels_are_devices_of_their_own() -> None:
    there = [replace(CARDS[0], attributes={"imex-channels": "0,12"})]
    made = spec({"driverRoot": "/run/nvidia/driver"}, there, "imex-channel")
    folder = "/dev/nvidia-caps-imex-channels"
    assert made["kind"] == "k8s.device-plugin.nvidia.com/imex-channel"
    assert {device["name"]: device["containerEdits"]["deviceNodes"] for device in made["devices"][:2]} == {
        name: [{"path": f"{folder}/channel{name}", "hostPath": f"/run/nvidia/driver{folder}/channel{name}"}]
        for name in ("0", "12")
    }
    assert nodes(made, "all") == [f"{folder}/channel0", f"{folder}/channel12"]


EXTRAS = {
    "gdrcopy": ["/dev/gdrdrv"],
    "gds": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"],
    "mofed": ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"],
}


@pytest.mark.parametrize("kind", EXTRAS)
def test_extra_nodes_are_one_device_where_they_are_enabled_and_exist(tmp_path: Path, kind: str) -> None:
    lay_nodes(tmp_path, *EXTRAS[kind])
    settings: dict[str, Any] = {"driverRoot": "/run/nvidia/driver", "containerDriverRoot": str(tmp_path)}
    assert set(cdi_spec.specs({**ASKED, **settings}, [])) == set()
    settings |= {f"{each}Enabled": True for each in EXTRAS}
    assert cdi_spec.attributes({**ASKED, **settings}) == {"cdi-extras": kind}
    made = spec(settings, [], kind)
    assert made["kind"] == f"k8s.device-plugin.nvidia.com/{kind}"
    assert [device["name"] for device in made["devices"]] == ["all"]
    assert nodes(made, "all") == EXTRAS[kind]
    assert made["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"].startswith(
        "/run/nvidia/driver/"
    )


def test_what_is_no_device_node_is_not_given_as_one(tmp_path: Path) -> None:
    lay(tmp_path, {"dev/gdrdrv": "", "dev/nvidia-fs0/x": "", "dev/infiniband/uverbs0": "/dev/null"})
    lay_nodes(tmp_path, "/dev/nvidia-fs\udcff", "/dev/nvidia-fs\n")
    enabled = {f"{kind}Enabled": True for kind in EXTRAS}
    assert cdi_spec.attributes({**ASKED, **enabled, "containerDriverRoot": str(tmp_path)}) == {
        "cdi-extras": ""
    }


@pytest.mark.parametrize("settings", [ASKED, {"gdrcopyEnabled": True}])
def test_nothing_is_told_of_extra_nodes_that_are_not_enabled_or_have_no_spec(
    tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    lay_nodes(tmp_path, *EXTRAS["gdrcopy"])
    assert cdi_spec.attributes({**settings, "containerDriverRoot": str(tmp_path)}) == {}


def test_a_file_in_place_of_udevs_folder_is_not_mounted(tmp_path: Path) -> None:
    lay_nodes(lay(tmp_path, {"run/udev": ""}), "/dev/nvidia-fs0")
    assert mounts(spec({"containerDriverRoot": str(tmp_path), "gdsEnabled": True}, [], "gds")) == {}


def test_direct_storage_finds_its_disks(tmp_path: Path) -> None:
    lay_nodes(tmp_path, "/dev/nvidia-fs0")
    lay(tmp_path, {"etc/cufile.json": "", "run/udev/data": ""})
    settings = {"driverRoot": "/run/nvidia/driver", "containerDriverRoot": str(tmp_path), "gdsEnabled": True}
    assert mounts(spec(settings, [], "gds")) == {
        path: f"/run/nvidia/driver{path}" for path in ("/etc/cufile.json", "/run/udev")
    }
