"""Where the loader finds a bare name: whatever it finds, we say that it may."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.isolation import library_loader

NAME = "libxpu-test.so.1"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def test_a_name_that_is_nowhere_is_not_found() -> None:
    assert not library_loader.may_find([NAME])


def test_one_of_several_names_is_enough_and_without_a_name_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    assert library_loader.may_find(["libxpu-nowhere.so", NAME])
    assert not library_loader.may_find([])


def test_many_names_cost_one_look_at_each_folder_and_one_reading_of_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []

    def counted(look: Callable[..., Any]) -> Callable[..., Any]:
        def listed(path: object, *more: object) -> Any:
            looks.append(str(path))
            return look(path, *more)

        return listed

    monkeypatch.setattr(Path, "read_bytes", counted(Path.read_bytes))
    for module, name in ((os, "listdir"), (os.path, "isdir")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))

    assert not library_loader.may_find([NAME])
    of_one, looks[:] = [*looks], []
    assert not library_loader.may_find([NAME, "libxpu-nowhere.so", "libxpu-nowhere.so.1"])

    assert str(library_loader.CACHE) in of_one
    assert looks == of_one


#: Prints each mapped library that the loader finds by its bare name alone.
FOUND = """
import ctypes, os, re
for name in set(re.findall(r"/([^/\\n]+\\.so[.0-9]*)$", open("/proc/self/maps").read(), re.MULTILINE)):
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        continue
    print(name)
"""


def test_every_library_that_a_process_has_by_its_bare_name_is_one_that_may_be_found() -> None:
    """In a process of its own: this one may have loaded a vendor's stub, whose name the loader then knows."""
    told = subprocess.run([sys.executable, "-c", FOUND], capture_output=True, text=True, check=True)
    found = told.stdout.split()

    assert "libc.so.6" in found
    assert [name for name in found if not library_loader.may_find([name])] == []


@pytest.mark.parametrize("below", [".", "glibc-hwcaps/x86-64-v3", "tls", "haswell/x86_64"])
@pytest.mark.parametrize("path", ["{}", "/nonexistent:{}", "/nonexistent;{}", "$ORIGIN/lib"])
def test_a_folder_of_the_loader_s_path_is_looked_through(
    path: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    (tmp_path / below / NAME).symlink_to("nowhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", path.format(tmp_path))

    assert library_loader.may_find([NAME])


def test_an_empty_folder_of_the_path_is_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent:")

    assert library_loader.may_find([NAME])


def test_the_cache_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0\1\2" + NAME.encode() + b".2\0")
    monkeypatch.setattr(library_loader, "CACHE", cache)
    before = library_loader.may_find([NAME])
    cache.write_bytes(cache.read_bytes() + NAME.encode() + b"\0/opt/lib/" + NAME.encode() + b"\0")

    assert (before, library_loader.may_find([NAME])) == (False, True)


def test_a_folder_of_the_interpreter_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / NAME).touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))

    assert library_loader.may_find([NAME])


def test_what_can_not_be_told_from_files_may_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as unreadable:
        unreadable.setattr(library_loader, "CACHE", tmp_path)
        assert library_loader.may_find([NAME])
    with monkeypatch.context() as another_libc:
        another_libc.setattr(os, "confstr", lambda name: None)
        assert library_loader.may_find([NAME])
    with monkeypatch.context() as preloads:
        preloads.setattr(library_loader, "PRELOAD", tmp_path)
        assert library_loader.may_find([NAME])
