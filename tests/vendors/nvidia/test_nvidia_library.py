"""Rules of finding and starting NVML; each in a process of its own, because pynvml never lets go of it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import NvmlStub
from support.library_signs import library_signs

from agent.vendor_api.agent import BackendUnavailable
from agent.vendors.nvidia.child import library
from agent.vendors.nvidia.child.backend import NvmlBackend
from agent.vendors.nvidia.plugin import register_backend
from agent.vendors.nvidia.shared import library_places

pytest_plugins = ["nvml_fixtures"]

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys
from agent.vendor_api.agent import BackendUnavailable
from agent.vendors.nvidia.child import backend
from agent.vendors.nvidia.shared import library_places

library_places.SONAME = sys.argv[2]
library_places.ROOTS = (sys.argv[3],)
assert "pynvml" not in sys.modules
backend = backend.NvmlBackend({"library": sys.argv[1], **json.loads(sys.argv[4])})
try:
    backend.open()
    print(json.dumps({"cards": len(backend.discover())}))
except BackendUnavailable as error:
    print(json.dumps({"reason": error.reason, "message": error.message}))
"""


def start(
    stub: NvmlStub,
    setting: str | Path,
    *,
    soname: str = library_places.SONAME,
    root: str = "/",
    **settings: str,
) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(setting), soname, root, json.dumps(settings)],
        cwd=ROOT,
        env={**os.environ, **stub.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_file_is_loaded(stub: NvmlStub) -> None:
    assert start(stub, stub.library) == {"cards": 8}


@pytest.mark.parametrize("folder", library_places.FOLDERS)
def test_a_driver_root_is_searched_and_links_are_followed(
    stub: NvmlStub, tmp_path: Path, folder: str
) -> None:
    place = tmp_path / "root" / folder
    place.mkdir(parents=True)
    shutil.copy(stub.library, place / "libnvidia-ml.so.580.65.06")
    (place / library_places.SONAME).symlink_to("libnvidia-ml.so.580.65.06")

    assert start(stub, tmp_path / "root") == {"cards": 8}


def test_an_absolute_link_in_a_root_leads_to_another_directory_of_that_root(
    stub: NvmlStub, tmp_path: Path
) -> None:
    """As Debian's alternatives have it: the host's /usr/lib, seen below /driver-root."""
    real = tmp_path / "usr/local/nvidia/lib"
    real.mkdir(parents=True)
    shutil.copy(stub.library, real / "libnvidia-ml.so.570.1")
    link = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/local/nvidia/lib/libnvidia-ml.so.570.1")

    assert start(stub, tmp_path) == {"cards": 8}


def test_an_empty_setting_searches_the_known_roots_after_the_loader(stub: NvmlStub, tmp_path: Path) -> None:
    (tmp_path / "root/lib64").mkdir(parents=True)
    shutil.copy(stub.library, tmp_path / "root/lib64/libnowhere.so.1")

    found = start(stub, "", soname="libnowhere.so.1", root=str(tmp_path / "root"))

    assert found == {"cards": 8}


def put(stub: NvmlStub, root: Path, soname: str = "libnowhere.so.1") -> str:
    """Put the stub into a driver root."""
    (root / "usr/lib64").mkdir(parents=True)
    shutil.copy(stub.library, root / "usr/lib64" / soname)
    return str(root)


def test_a_driver_root_is_searched_where_it_is_mounted_before_the_loader(
    stub: NvmlStub, tmp_path: Path
) -> None:
    known_to_the_loader = "libc.so.6"
    mounted = put(stub, tmp_path / "mounted", known_to_the_loader)
    settings = {"driverRoot": "/run/driver", "containerDriverRoot": mounted}

    assert start(stub, "", soname=known_to_the_loader, **settings) == {"cards": 8}


def test_a_driver_root_is_searched_itself_where_nothing_is_mounted(stub: NvmlStub, tmp_path: Path) -> None:
    root = put(stub, tmp_path / "host")

    assert start(stub, "", soname="libnowhere.so.1", driverRoot=root) == {"cards": 8}


def test_the_mounted_root_of_a_driver_in_the_hosts_root_comes_after_the_loader(
    stub: NvmlStub, tmp_path: Path
) -> None:
    mounted = put(stub, tmp_path / "mounted")

    assert start(stub, "", soname="libnowhere.so.1", containerDriverRoot=mounted) == {"cards": 8}


def test_every_place_without_the_library_is_named(stub: NvmlStub, tmp_path: Path) -> None:
    settings = {"driverRoot": "/run/driver", "containerDriverRoot": "/mounted"}

    said = start(stub, "", soname="libnowhere.so.1", root=str(tmp_path), **settings)

    assert said["reason"] == "library-not-found"
    assert "libnowhere.so.1: cannot open" in said["message"]
    assert f"no libnowhere.so.1 in /mounted or /run/driver or {tmp_path}, nor below it" in said["message"]


def test_a_missing_file_is_named_with_what_would_work(stub: NvmlStub, tmp_path: Path) -> None:
    said = start(stub, tmp_path / "nowhere.so")

    assert said["reason"] == "library-not-found"
    assert str(tmp_path / "nowhere.so") in said["message"]
    assert library.REMEDY in said["message"]


def test_a_file_that_is_there_and_no_library_is_told_from_none(stub: NvmlStub, tmp_path: Path) -> None:
    half = tmp_path / "lib64" / library_places.SONAME
    half.parent.mkdir()
    half.write_bytes(Path(stub.library).read_bytes()[:100])

    said = start(stub, tmp_path)

    assert said["reason"] == "library-unusable"
    assert f"{half}: cannot read file data" in said["message"]


def test_an_empty_root_is_named_with_where_was_looked(stub: NvmlStub, tmp_path: Path) -> None:
    said = start(stub, tmp_path)

    assert said["reason"] == "library-not-found"
    assert f"no libnvidia-ml.so.1 in {tmp_path}, nor below it in usr/lib64, " in said["message"]


def test_without_a_setting_the_loader_says_what_it_misses(stub: NvmlStub, tmp_path: Path) -> None:
    said = start(stub, "", soname="libnowhere.so.1", root=str(tmp_path))

    assert said["reason"] == "library-not-found"
    assert "libnowhere.so.1" in said["message"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(9, "driver-not-loaded"), (18, "driver-library-mismatch"), (4, "no-permission"), (999, "nvml-init")],
)
def test_a_refused_start_is_named_and_works_once_the_cause_is_gone(
    stub: NvmlStub, code: int, reason: str
) -> None:
    backend = NvmlBackend(stub.settings)
    stub.init_error(code)
    with pytest.raises(BackendUnavailable) as caught:
        backend.open()
    stub.clear()

    backend.open()

    assert caught.value.reason == reason
    assert len(backend.discover()) == 8
    backend.close()


@pytest.mark.parametrize("folder", library_places.FOLDERS)
def test_every_file_that_is_loaded_is_among_those_that_were_searched(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / library_places.SONAME).touch()

    searched = library_places.searched({"containerDriverRoot": str(tmp_path)})

    assert searched[0] == library_places.SONAME
    assert str(tmp_path / folder / library_places.SONAME) in searched
    assert set(library_places.candidates(str(tmp_path))) <= set(searched)


def test_a_library_that_the_config_names_is_searched_alone_also_where_it_is_a_link_to_nowhere(
    tmp_path: Path,
) -> None:
    (tmp_path / "lib.so").symlink_to("nowhere")

    assert library_places.searched({"library": f"{tmp_path}/lib.so"}) == [f"{tmp_path}/lib.so"]


# Signs: a process is started wherever it would load the library


@dataclass(frozen=True)
class Way:
    """How a process comes to the library; {} stands for a directory."""

    #: Where the library lies, below the directory.
    file: str
    settings: Mapping[str, str] = field(default_factory=dict)
    #: LD_LIBRARY_PATH.
    path: str = ""
    roots: tuple[str, ...] = ()
    #: A link beside it, and where that leads.
    link: tuple[str, str] = ("", "")


SO = library_places.SONAME
WAYS = {
    "a file": Way("libany.so", {"library": "{}/libany.so"}),
    **{
        f"a directory, {folder}": Way(f"{folder}/{SO}", {"library": "{}"})
        for folder in library_places.FOLDERS
    },
    "the mounted root": Way(f"usr/lib64/{SO}", {"containerDriverRoot": "{}"}),
    "a root of the host": Way(f"usr/lib64/{SO}", {"driverRoot": "{}"}),
    "a known root": Way(f"lib64/{SO}", roots=("{}",)),
    "a link of the root": Way("opt/lib.so.1", roots=("{}",), link=(f"lib64/{SO}", "/opt/lib.so.1")),
    "a folder that is a link of the root": Way(f"opt/nv/{SO}", roots=("{}",), link=("usr/lib64", "/opt/nv")),
    "the loader's path": Way(f"lib/{SO}", path="{}/lib"),
    "the second of the loader's path": Way(f"lib/{SO}", path="/nonexistent:{}/lib"),
    "the loader's path with semicolons": Way(f"lib/{SO}", path="/nonexistent;{}/lib"),
    "the current directory": Way(SO, path=":/nonexistent"),
    "a link in the loader's path": Way("opt/lib.so.1", path="{}", link=(SO, "opt/lib.so.1")),
}
if platform.machine() == "x86_64":
    WAYS["the loader's path, by processor"] = Way(f"lib/glibc-hwcaps/x86-64-v2/{SO}", path="{}/lib")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_library_is_a_sign_of_the_vendor_whichever_way_it_is_found(
    way: Way, stub: NvmlStub, tmp_path: Path
) -> None:
    def here(text: str) -> str:
        return text.replace("{}", str(tmp_path))

    (tmp_path / way.file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(stub.library, tmp_path / way.file)
    name, target = way.link
    if name:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(target)

    found = library_signs(
        "nvidia",
        {key: here(value) for key, value in way.settings.items()},
        {**stub.environment, **({"LD_LIBRARY_PATH": here(way.path)} if way.path else {})},
        cwd=tmp_path,
        ROOTS=[here(it) for it in way.roots],
    )

    assert found == (True, "")


def test_a_name_that_the_loader_knows_is_a_sign_of_the_vendor(stub: NvmlStub) -> None:
    assert library_signs("nvidia", {}, {}, SONAME="libc.so.6") == (True, "")


def test_without_a_library_nothing_is_started() -> None:
    found = library_signs("nvidia", {}, {}, SONAME="libnowhere.so.1", ROOTS=["/nonexistent"])

    assert not found.loaded
    assert "here is none of libnowhere.so.1, /driver-root" in found.absence


def test_the_driver_and_the_cards_are_signs_where_the_settings_say(tmp_path: Path) -> None:
    signs = register_backend({"sysfs": str(tmp_path)}).host.signs
    assert signs is not None

    assert (signs.driver[0], signs.sysfs, signs.pci) == (
        f"{tmp_path}/module/nvidia",
        str(tmp_path),
        ("0x10de",),
    )
    assert register_backend({}).host.signs == replace(
        signs, driver=("/sys/module/nvidia", *signs.driver[1:]), sysfs="/sys"
    )
