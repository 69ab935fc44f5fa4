"""One agent per node, whatever becomes of the state directory between two of them."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.state.state_directory_lock import LockLost, NoState, StateDirectoryLock

Break = Callable[[pytest.MonkeyPatch], None]
ME = f"pid {os.getpid()}"


def refuse_to_write(number: int) -> Break:
    """The directory as one that is read-only or full; root, too, is refused."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        real = os.open

        def opens(path: Any, flags: int, *more: Any, **named: Any) -> int:
            new = flags & os.O_CREAT and not os.path.lexists(path)
            if new or (number == errno.EROFS and flags & (os.O_RDWR | os.O_WRONLY)):
                raise OSError(number, os.strerror(number), path)
            return real(path, flags, *more, **named)

        patch.setattr(os, "open", opens)

    return broken


def refuse_to_fill(patch: pytest.MonkeyPatch) -> None:
    """The disk as one that makes files and has no block for what is in them."""

    def writes(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "write", writes)


BROKEN: dict[str, Break] = {
    "writable": lambda _: None,
    "read-only": refuse_to_write(errno.EROFS),
    "no inodes": refuse_to_write(errno.ENOSPC),
    "no blocks": refuse_to_fill,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "agent.lock"


@pytest.fixture
def agents() -> Iterator[ExitStack]:
    with ExitStack() as agents:
        yield agents


def begun(path: Path, agents: ExitStack, state: str = "writable") -> tuple[StateDirectoryLock, str]:
    """An agent that tries to serve, and what it was told."""
    lock = agents.enter_context(StateDirectoryLock(path))
    with pytest.MonkeyPatch.context() as patch:
        BROKEN[state](patch)
        return lock, lock.take()


@pytest.mark.parametrize("there", [True, False], ids=["lock file", "no lock file"])
@pytest.mark.parametrize("second", BROKEN)
@pytest.mark.parametrize("first", BROKEN)
def test_two_agents_never_serve_at_once(
    path: Path, agents: ExitStack, first: str, second: str, there: bool
) -> None:
    if there:
        path.write_text("pid 1\n")

    one, told = begun(path, agents, first)
    assert told == ""
    assert begun(path, agents, second)[1] != ""

    one.__exit__(None, None, None)
    assert begun(path, agents, second)[1] == ""


def test_the_second_agent_is_told_who_holds_it(path: Path, agents: ExitStack) -> None:
    begun(path, agents)

    assert begun(path, agents)[1] == ME


def test_where_nobody_could_sign_the_second_agent_is_told_that_there_is_one(
    path: Path, agents: ExitStack
) -> None:
    begun(path, agents, "read-only")

    assert begun(path, agents)[1] == "another process"


def test_a_lock_file_that_is_unlinked_lets_nobody_in(path: Path, agents: ExitStack) -> None:
    begun(path, agents)
    path.unlink()

    assert begun(path, agents)[1] != ""


def test_an_agent_that_was_refused_holds_nothing(path: Path, agents: ExitStack) -> None:
    """Else two that meet could keep each other from serving for ever."""
    first, _ = begun(path, agents)
    second, _ = begun(path, agents)
    first.__exit__(None, None, None)

    assert begun(path, agents)[1] == ""
    assert second.take() == ME


@pytest.mark.parametrize("state", BROKEN)
def test_an_agent_of_an_earlier_release_that_holds_the_file_alone_is_respected(
    path: Path, agents: ExitStack, state: str
) -> None:
    path.write_text("pid 7\n")
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        assert begun(path, agents, state)[1] == "pid 7"

    assert begun(path, agents, state)[1] == ""


def test_the_lock_is_for_its_owner_alone(path: Path, agents: ExitStack) -> None:
    begun(path, agents)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == f"{ME}\n"


def test_a_file_system_that_locks_no_directories_locks_the_file(
    path: Path, agents: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path.parent):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)

    assert begun(path, agents)[1] == ""
    assert begun(path, agents)[1] == ME


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_something_else_in_place_of_the_lock_file_does_not_matter(
    path: Path, agents: ExitStack, make: Callable[[Path], None]
) -> None:
    make(path)

    assert begun(path, agents)[1] == ""
    assert begun(path, agents)[1] != ""


@pytest.mark.parametrize("parts", [("file", "state"), ("file",)], ids=["below a file", "a file"])
def test_a_directory_that_is_not_there_and_can_not_be_made_is_refused(
    tmp_path: Path, agents: ExitStack, parts: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path.joinpath(*parts) / "agent.lock"

    with pytest.raises(NoState, match="name a directory of the agent's own with --state-dir"):
        begun(path, agents)


@pytest.mark.parametrize("deeper", ["", "deep/state"])
@pytest.mark.parametrize("link", [False, True])
def test_what_stands_in_the_directory_s_place_is_named(
    tmp_path: Path, agents: ExitStack, deeper: str, link: bool
) -> None:
    wrong = tmp_path / "state"
    wrong.symlink_to("/nowhere") if link else wrong.touch()

    with pytest.raises(NoState, match=f"^{wrong}: is no directory; move it away, or name a directory"):
        begun(wrong / deeper / "agent.lock", agents)


def test_a_directory_that_is_not_there_is_made(tmp_path: Path, agents: ExitStack) -> None:
    path = tmp_path / "deep" / "state" / "agent.lock"

    assert begun(path, agents)[1] == ""
    assert path.parent.stat().st_mode & 0o777 == 0o700


# What becomes of it while it is held


def remove(path: Path) -> None:
    """The directory is gone, and what takes its place is another one: the old inode is not used again."""
    path.parent.rename(path.parent.with_name(f"old-{path.parent.name}"))


def test_what_is_where_it_was_is_left_alone(path: Path, agents: ExitStack) -> None:
    lock, _ = begun(path, agents)
    before = path.stat()

    assert not lock.keep()
    assert path.stat() == before


def test_a_state_directory_that_was_removed_is_made_anew_and_locked(path: Path, agents: ExitStack) -> None:
    lock, _ = begun(path, agents)
    remove(path)

    assert lock.keep()

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert begun(path, agents)[1] == path.read_text().strip() == ME
    assert not lock.keep()
    lock.__exit__(None, None, None)
    assert begun(path, agents)[1] == ""


def test_a_lock_file_that_was_removed_is_made_anew_and_locked(path: Path, agents: ExitStack) -> None:
    """An agent of an earlier release knows the file alone."""
    lock, _ = begun(path, agents)
    path.unlink()

    assert lock.keep()

    with path.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_state_directory_that_another_agent_has_by_now_is_not_kept(path: Path, agents: ExitStack) -> None:
    lock, _ = begun(path, agents)
    remove(path)
    other, told = begun(path, agents)
    assert told == ""

    with pytest.raises(LockLost, match=f"another agent .{ME}. has locked what is there now"):
        lock.keep()
    other.__exit__(None, None, None)
    assert lock.keep()


def test_a_state_directory_that_can_not_be_made_anew_is_tried_again(path: Path, agents: ExitStack) -> None:
    lock, _ = begun(path, agents)
    remove(path)
    path.parent.write_text("a file is in the way")

    assert not lock.keep()
    path.parent.unlink()
    assert lock.keep()


def test_what_a_disk_that_hung_locks_when_the_agent_has_ended_is_let_go_of(
    path: Path, agents: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, _ = begun(path, agents)
    remove(path)
    real = fcntl.flock

    def hangs(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        lock.__exit__(None, None, None)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", hangs)
    lock.keep()

    assert begun(path, agents)[1] == ""


def test_to_ask_who_holds_it_takes_and_makes_nothing(path: Path, agents: ExitStack) -> None:
    asking = StateDirectoryLock(path)
    assert asking.holder() == ""
    assert list(path.parent.iterdir()) == []

    begun(path, agents)
    assert asking.holder() == ME
