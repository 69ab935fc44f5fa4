"""What happens in the kubelet's directory is noticed, by inotify and without it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.waiting import eventually

from agent.kubelet.kubelet_directory import (
    FileIdentity,
    KubeletDirectory,
    OtherSocket,
    _file_of,
    identify_socket,
    other_sockets,
)
from agent.kubelet.plugin_sockets import socket_name

NEVER = 3600.0


def put_socket(path: Path) -> FileIdentity:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    identity = identify_socket(path)
    assert identity is not None
    return identity


@asynccontextmanager
async def watching(path: Path, **options: Any) -> AsyncIterator[KubeletDirectory]:
    directory = KubeletDirectory(
        path, **{"poll": NEVER, "inotify_after": 0.0, "poll_until_then": NEVER, "retry": 0.01, **options}
    )
    async with anyio.create_task_group() as group:
        group.start_soon(directory.run)
        with anyio.fail_after(30):
            await eventually(lambda: directory._looks.value >= 2)
            yield directory
        group.cancel_scope.cancel()


BY_INOTIFY = {"poll": NEVER}
BY_POLL = {"inotify_after": NEVER, "poll_until_then": 0.01}
BOTH_WAYS = pytest.mark.parametrize("options", [BY_INOTIFY, BY_POLL], ids=["inotify", "poll"])


@BOTH_WAYS
async def test_a_kubelet_that_comes_goes_and_is_replaced_is_noticed(
    plugins_dir: Path, options: dict[str, float]
) -> None:
    path = plugins_dir / "kubelet.sock"
    async with watching(plugins_dir, **options) as directory:
        first = put_socket(path)
        await eventually(lambda: directory.kubelet.value == first)
        path.unlink()
        await eventually(lambda: directory.kubelet.value is None)
        other = put_socket(plugins_dir / "new")
        (plugins_dir / "new").rename(path)

        await eventually(lambda: directory.kubelet.value not in (None, first))
        assert directory.kubelet.value is not None
        assert directory.kubelet.value.inode == other.inode


@BOTH_WAYS
async def test_a_change_of_the_checkpoint_is_noticed(plugins_dir: Path, options: dict[str, float]) -> None:
    async with watching(plugins_dir, **options) as directory:
        seen: set[FileIdentity] = set()
        for number in range(3):
            temporary = plugins_dir / f".{number}"
            temporary.write_text(str(number))
            temporary.rename(plugins_dir / "kubelet_internal_checkpoint")
            found = await eventually(lambda: directory.checkpoint.value not in {None, *seen} and directory)
            seen.add(found.checkpoint.value)

        assert len(seen) == 3


@BOTH_WAYS
async def test_the_loss_of_a_socket_of_ours_is_noticed(plugins_dir: Path, options: dict[str, float]) -> None:
    path = plugins_dir / "xpu-1.sock"
    put_socket(path)
    async with watching(plugins_dir, **options) as directory, anyio.create_task_group() as group:
        group.start_soon(directory.lost, path)
        await anyio.lowlevel.checkpoint()
        path.unlink()


async def test_a_socket_that_is_gone_already_is_lost_at_once(plugins_dir: Path) -> None:
    async with watching(plugins_dir) as directory:
        await directory.lost(plugins_dir / "xpu-1.sock")


@BOTH_WAYS
async def test_a_directory_that_is_removed_and_made_anew_is_followed(
    plugins_dir: Path, options: dict[str, float]
) -> None:
    path = plugins_dir / "d"
    path.mkdir()
    async with watching(path, **options) as directory:
        first = put_socket(path / "kubelet.sock")
        await eventually(lambda: directory.kubelet.value == first)
        path.rename(plugins_dir / "old")
        await eventually(lambda: directory.kubelet.value is None)
        path.mkdir()
        for _ in range(2):
            (path / "kubelet.sock").unlink(missing_ok=True)
            new = put_socket(path / "kubelet.sock")
            await eventually(lambda new=new: directory.kubelet.value == new)  # type: ignore[misc]


async def test_another_directory_at_the_same_path_is_seen_by_the_slow_poll(plugins_dir: Path) -> None:
    """As after a bind mount: inotify watches the old one and hears nothing."""
    old, new, path = plugins_dir / "old", plugins_dir / "new", plugins_dir / "d"
    old.mkdir()
    new.mkdir()
    path.symlink_to(old)
    async with watching(path, poll=0.05) as directory:
        put_socket(new / "kubelet.sock")
        (plugins_dir / "link").symlink_to(new)
        os.replace(plugins_dir / "link", path)
        await eventually(lambda: directory.kubelet.value is not None)
        await eventually(lambda: directory._watched == _file_of(path))  # and inotify follows
        (new / "kubelet.sock").unlink()

        await eventually(lambda: directory.kubelet.value is None)


async def test_temporary_files_of_the_checkpoint_are_no_news(plugins_dir: Path) -> None:
    async with watching(plugins_dir) as directory:
        before = directory._looks.value
        for number in range(50):
            (plugins_dir / f".{number}").write_text("")
        (plugins_dir / "loud").write_text("")
        await eventually(lambda: directory._looks.value > before)

        assert directory._looks.value == before + 1


async def test_the_same_kubelet_seen_again_is_no_news(plugins_dir: Path) -> None:
    # Bottlerocket #4250
    put_socket(plugins_dir / "kubelet.sock")
    async with watching(plugins_dir) as directory:
        news = asyncio.create_task(directory.kubelet.changed())
        await asyncio.sleep(0)  # it waits from now on
        for _ in range(5):
            directory.refresh()
            await asyncio.sleep(0)

        assert not news.done()
        news.cancel()


async def test_a_file_that_is_no_socket_is_no_kubelet(plugins_dir: Path) -> None:
    (plugins_dir / "kubelet.sock").write_text("")
    async with watching(plugins_dir) as directory:
        assert directory.kubelet.value is None


async def test_a_directory_that_does_not_exist_yet_is_waited_for(plugins_dir: Path) -> None:
    path = plugins_dir / "later"
    async with watching(path) as directory:
        assert directory.kubelet.value is None
        path.mkdir()
        put_socket(path / "kubelet.sock")

        await eventually(lambda: directory.kubelet.value is not None)


async def test_before_inotify_is_loaded_the_directory_is_polled(plugins_dir: Path) -> None:
    async with watching(plugins_dir, inotify_after=0.3, poll_until_then=0.01) as directory:
        first = put_socket(plugins_dir / "kubelet.sock")

        await eventually(lambda: directory.kubelet.value == first)


@BOTH_WAYS
async def test_other_plugins_that_come_go_and_come_anew_are_noticed(
    plugins_dir: Path, options: dict[str, float]
) -> None:
    path = plugins_dir / "bob.sock"
    async with watching(plugins_dir, **options) as directory:
        put_socket(plugins_dir / "kubelet.sock")
        (plugins_dir / "file").touch()
        first = put_socket(path)
        await eventually(lambda: directory.other_sockets.value == {OtherSocket("bob.sock", first)})
        path.unlink()
        await eventually(lambda: directory.other_sockets.value == frozenset())

        other = put_socket(path)

        await eventually(lambda: directory.other_sockets.value == {OtherSocket("bob.sock", other)})


def test_the_socket_of_an_agent_in_another_pod_is_a_neighbour_s_though_its_pid_is_ours(
    plugins_dir: Path,
) -> None:
    ours, theirs = (socket_name("example.com/xpu", number) for number in range(2))
    directory = KubeletDirectory(plugins_dir)
    for name in (ours, theirs, "kubelet.sock"):
        put_socket(plugins_dir / name)

    with directory.owning(plugins_dir / ours):
        directory.refresh()
        assert {it.name for it in directory.other_sockets.value} == {theirs}
    directory.refresh()
    assert {it.name for it in directory.other_sockets.value} == {ours, theirs}


def test_where_no_directory_is_there_are_no_neighbours(plugins_dir: Path) -> None:
    assert other_sockets(plugins_dir / "nowhere") == frozenset()


async def test_no_kubelet_is_seen_in_a_directory_that_another_agent_holds(plugins_dir: Path) -> None:
    kubelet = put_socket(plugins_dir / "kubelet.sock")
    holds = True
    async with watching(plugins_dir, holds_lock=lambda: holds) as directory:
        assert directory.kubelet.value == kubelet

        holds = False
        directory.refresh()
        assert directory.kubelet.value is None
        holds = True
        directory.refresh()
        assert directory.kubelet.value == kubelet
