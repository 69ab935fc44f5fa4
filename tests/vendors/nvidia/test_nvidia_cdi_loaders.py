"""Where no hook writes a loader's cache in the container, its loader still finds the driver's libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.driver_tree import LIBRARIES, UBUNTU, VERSION, lay
from test_nvidia_cdi import CUDA, HOOK, driver, mounts, spec

from agent.vendors.nvidia.child import cdi_spec

SEARCHED = cdi_spec.SEARCHED.get(os.uname().machine, ())
#: What a program that computes needs: it, and by which names it is looked for.
NAMES = {"libcuda.so": "libcuda", "libcuda.so.1": "libcuda", "libnvidia-ml.so.1": "libnvidia-ml"}


def folder(root: Path, name: str) -> Mapping[str, Any]:
    """Settings of a driver whose libraries lie in this folder of its root."""
    tree = {f"{name}/libcuda.so.{VERSION}": "", f"{name}/libnvidia-ml.so.{VERSION}": ""}
    return driver(root, tree)


@pytest.mark.parametrize("place", SEARCHED)
@pytest.mark.parametrize("name", ["usr/lib64", LIBRARIES, "lib64"], ids=["RPM", "Debian", "GKE"])
def test_a_container_of_any_distribution_finds_the_libraries_wherever_the_host_has_them(
    tmp_path: Path, name: str, place: str
) -> None:
    made = mounts(spec(folder(tmp_path, name)))

    for link, stem in NAMES.items():
        assert made[f"{place}/{link}"] == f"/run/nvidia/driver/{name}/{stem}.so.{VERSION}"
    assert made[f"{place}/{CUDA}"] == made[f"/{name}/{CUDA}"]


def test_with_a_hook_that_writes_the_cache_nothing_is_mounted_twice(tmp_path: Path) -> None:
    made = mounts(spec({**folder(tmp_path, "lib64"), "nvidiaCDIHookPath": HOOK}))

    assert {Path(path).parent for path in made} == {Path("/lib64")}


def test_without_the_hook_of_the_cache_alone_they_are_found_all_the_same(tmp_path: Path) -> None:
    settings = {**folder(tmp_path, "lib64"), "nvidiaCDIHookPath": HOOK, "cdiDisableHooks": ["update-ldcache"]}
    made = mounts(spec(settings))

    assert all(f"{place}/libcuda.so.1" in made for place in SEARCHED)
    assert "/lib64/libcuda.so.1" not in made


def test_what_programs_look_for_below_a_folder_stays_where_the_host_has_it(tmp_path: Path) -> None:
    below = {
        f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}": "",
        f"{LIBRARIES}/libnvidia-allocator.so.{VERSION}": "",
        f"{LIBRARIES}/nvidia/xorg/nvidia_drv.so": "",
    }
    made = mounts(spec(driver(tmp_path, {**UBUNTU, **below})))

    names = ("libvdpau_nvidia.so", "nvidia-drm_gbm.so", "nvidia_drv.so")
    assert {path for path in made if any(name in path for name in names)} == {
        f"/{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"/{LIBRARIES}/gbm/nvidia-drm_gbm.so",
        f"/{LIBRARIES}/nvidia/xorg/nvidia_drv.so",
    }


def test_a_processor_of_which_nothing_is_known_has_what_the_host_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_spec, "SEARCHED", {"another": ("/usr/lib64",)})

    assert {Path(path).parent for path in mounts(spec(folder(tmp_path, "lib64")))} == {Path("/lib64")}


def test_a_name_that_lies_there_on_the_host_leads_where_it_leads_there(tmp_path: Path) -> None:
    tree = {f"lib64/{CUDA}": "", "usr/lib64/libcuda.so.1": f"../../lib64/{CUDA}"}
    lay(tmp_path, tree)
    made = mounts(spec({"driverRoot": "/run/nvidia/driver", "containerDriverRoot": str(tmp_path)}))

    assert made["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver/lib64/{CUDA}"
