"""A driver in folders of its own is found as the dynamic loader finds it: by the loader's cache."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.driver_tree import VERSION, lay
from test_nvidia_cdi import CUDA, HOOK, hooks, mounts, spec

from agent.vendors.nvidia.shared import ldcache, library_places
from agent.vendors.nvidia.shared.driver_root import Root

X86_64, AARCH64, X86 = 0x0303, 0x0A03, 0x0003
FOLDER = "usr/local/nvidia/lib64"
#: As an H200's driver 580.159.04 lay on a node: libraries and programs in folders of their own.
OWN = {
    f"{FOLDER}/{CUDA}": "",
    f"{FOLDER}/libcuda.so.1": CUDA,
    f"{FOLDER}/libcuda.so": "libcuda.so.1",
    f"{FOLDER}/libnvidia-ml.so.{VERSION}": "",
    f"{FOLDER}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
    "usr/local/nvidia/lib": "lib64",
    "usr/local/nvidia/bin/nvidia-smi": "",
    "usr/lib/libcuda.so.1": f"/{FOLDER}/libcuda.so.1",
    "usr/bin/nvidia-smi": "/usr/local/nvidia/bin/nvidia-smi",
}


def cache(entries: Iterable[tuple[int, str]], *, before: bytes = b"") -> bytes:
    """The cache's bytes: flags and path of each library, whose name is its file's."""
    listed = list(entries)
    at, texts, table = 48 + 24 * len(listed), b"", b""
    for flags, path in listed:
        name = path.rpartition("/")[2]
        where = at + len(texts)
        texts += f"{name}\0{path}\0".encode()
        table += struct.pack("<3I", flags, where, where + len(name) + 1) + bytes(12)
    head = b"glibc-ld.so.cache1.1" + struct.pack("<2I", len(listed), len(texts)) + bytes(20)
    return before + head + table + texts


def root(path: Path, *entries: tuple[int, str], tree: dict[str, str] = OWN) -> Root:
    lay(path, {**tree, "etc/ld.so.cache": ""})
    (path / "etc/ld.so.cache").write_bytes(cache(entries))
    return Root(str(path), "/")


def settings(path: Path) -> dict[str, str]:
    return {"containerDriverRoot": str(path)}


CACHED = ((X86_64, f"/{FOLDER}/libcuda.so.1"), (X86_64, f"/{FOLDER}/libnvidia-ml.so.1"))


def test_a_driver_in_folders_of_its_own_is_given_to_containers_as_one_in_the_usual_ones(
    tmp_path: Path,
) -> None:
    root(tmp_path, *CACHED)

    made = spec({**settings(tmp_path), "nvidiaCDIHookPath": HOOK})

    assert mounts(made) == {
        path: path for path in (f"/{FOLDER}/{CUDA}", f"/{FOLDER}/libnvidia-ml.so.{VERSION}")
    } | {"/usr/local/nvidia/bin/nvidia-smi": "/usr/local/nvidia/bin/nvidia-smi"}
    assert hooks(made)["update-ldcache"] == ["--folder", f"/{FOLDER}"]
    assert made["containerEdits"]["env"][1:] == [f"NVIDIA_CTK_LIBCUDA_DIR=/{FOLDER}"]


def test_programs_beside_the_libraries_are_found(tmp_path: Path) -> None:
    tree = {path: target for path, target in OWN.items() if not path.startswith("usr/bin")}
    root(tmp_path, *CACHED, tree=tree)

    made = mounts(spec(settings(tmp_path)))

    smi = "/usr/local/nvidia/bin/nvidia-smi"
    assert (made[smi], made["/usr/bin/nvidia-smi"]) == (smi, smi)
    assert "/usr/bin/nvidia-smi" not in mounts(spec({**settings(tmp_path), "nvidiaCDIHookPath": HOOK}))


def test_a_script_of_a_programs_name_is_not_taken_for_the_one_beside_the_libraries(tmp_path: Path) -> None:
    root(tmp_path, *CACHED, tree={**OWN, "usr/bin/nvidia-smi": ""})

    made = mounts(spec(settings(tmp_path)))

    assert "/usr/bin/nvidia-smi" not in made.values()
    assert made["/usr/bin/nvidia-smi"] == "/usr/local/nvidia/bin/nvidia-smi"


def test_the_usual_folders_go_before_the_cache(tmp_path: Path) -> None:
    root(tmp_path, *CACHED, tree={**OWN, f"usr/lib64/{CUDA}": ""})

    assert mounts(spec({**settings(tmp_path), "nvidiaCDIHookPath": HOOK})).keys() >= {f"/usr/lib64/{CUDA}"}
    assert f"/{FOLDER}/{CUDA}" not in mounts(spec(settings(tmp_path)))


def test_nvml_is_loaded_from_where_the_cache_of_a_mounted_root_has_it(tmp_path: Path) -> None:
    root(tmp_path, *CACHED)

    found = library_places.candidates(str(tmp_path))

    assert found == [str(tmp_path / FOLDER / f"libnvidia-ml.so.{VERSION}")]


@pytest.mark.parametrize("flags", [X86_64, AARCH64])
def test_links_in_the_cache_lead_to_the_folder_of_the_file(tmp_path: Path, flags: int) -> None:
    assert ldcache.folders(root(tmp_path, (flags, "/usr/lib/libcuda.so.1"))) == (f"/{FOLDER}",)


def test_libraries_for_32_bits_are_not_taken_for_the_drivers(tmp_path: Path) -> None:
    assert ldcache.folders(root(tmp_path, (X86, f"/{FOLDER}/libcuda.so.1"))) == ()


def test_the_older_format_may_stand_before_the_one_that_is_read(tmp_path: Path) -> None:
    view = root(tmp_path)
    (tmp_path / "etc/ld.so.cache").write_bytes(cache(CACHED, before=b"ld.so-1.7.0\0" + bytes(36)))

    assert ldcache.libraries(view, "libcuda.so.1") == [f"/{FOLDER}/libcuda.so.1"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"glibc-ld.so.cache1.1",
        b"glibc-ld.so.cache1.1" + b"\xff" * 28,
        b"glibc-ld.so.cache1.1" + b"\xff" * 400,
        cache(CACHED)[:60],
        cache([(X86_64, "relative/libcuda.so.1"), (X86_64, "/gone/libcuda.so.1")]),
    ],
)
def test_a_cache_that_is_broken_or_lies_finds_nothing(tmp_path: Path, content: bytes) -> None:
    view = root(tmp_path)
    (tmp_path / "etc/ld.so.cache").write_bytes(content)

    assert ldcache.folders(view) == ()


def test_a_root_without_a_cache_knows_nothing(tmp_path: Path) -> None:
    assert ldcache.libraries(Root(str(tmp_path), "/"), "libcuda.so.1") == []


def test_the_cache_leads_no_further_than_the_root(tmp_path: Path) -> None:
    outside = lay(tmp_path / "outside", {"libcuda.so.1": CUDA, CUDA: ""})
    tree = {"here/libcuda.so.1": f"{outside}/libcuda.so.1"}

    assert ldcache.folders(root(tmp_path / "root", (X86_64, "/here/libcuda.so.1"), tree=tree)) == ()
