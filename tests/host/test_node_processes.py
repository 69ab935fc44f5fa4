"""Processes as /proc shows them, of this machine and of a directory that looks like it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.usage.cgroup_paths import UNKNOWN, CgroupOwner, Kind
from agent.host import node_processes
from agent.host.node_processes import MAX_CGROUP, ProcessReader, pod_log_directories, sees_node_pids

UID = "0f0e1d2c-3b4a-5968-7786-95a4b3c2d1e0"
ID = "ab" * 32
IN_POD = f"0::/kubepods/pod{UID}/{ID}\n"


class Proc:
    """A directory with processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader = ProcessReader(path)

    def has(self, pid: int, cgroup: str = IN_POD, name: str = "python3", started: int = 100) -> None:
        directory = self.path / str(pid)
        shutil.rmtree(directory, ignore_errors=True)  # another process has another directory
        directory.mkdir()
        (directory / "cgroup").write_text(cgroup)
        zeros = " ".join(["0"] * 18)
        (directory / "stat").write_text(f"{pid} ({name}) S {zeros} {started} 0 0 0\n")

    def ends(self, pid: int) -> None:
        shutil.rmtree(self.path / str(pid))

    def owners(self, *pids: int) -> dict[int, CgroupOwner]:
        return {pid: it.owner for pid, it in self.reader.read(pids).processes.items()}


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_process_has_its_container_and_its_name(proc: Proc) -> None:
    proc.has(7)
    found = proc.reader.read({7})
    assert found.processes[7].owner == CgroupOwner(Kind.POD, UID, ID)
    assert (found.processes[7].name, found.trouble) == ("python3", "")


@pytest.mark.parametrize("name", ["a b", "(sd-pam)", "a) S 1 (b", ")", "", "kworker/0:1-events"])
def test_a_name_with_any_character_hides_no_start_time(proc: Proc, name: str) -> None:
    proc.has(7, name=name)
    assert proc.reader.read({7}).processes[7].name == name


def test_a_known_process_is_not_read_again(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.has(7)
    proc.owners(7)
    opened: list[str] = []
    real = os.open

    def counted(path: str, *args: int) -> int:
        opened.append(path)
        return real(path, *args)

    monkeypatch.setattr(os, "open", counted)
    assert proc.owners(7) == {7: CgroupOwner(Kind.POD, UID, ID)}
    assert opened == []
    # The kernel forgot the directory's inode. The start time says that the process is the same one.
    (proc.path / "7" / "new").mkdir()
    assert proc.owners(7) == {7: CgroupOwner(Kind.POD, UID, ID)}
    assert opened == [str(proc.path / "7" / "stat")]


def test_a_pid_that_comes_again_is_another_process(proc: Proc) -> None:
    proc.has(7)
    proc.owners(7)
    proc.has(7, "0::/user.slice\n", "Xorg", started=200)
    found = proc.reader.read({7}).processes[7]
    assert (found.owner.kind, found.name) == (Kind.HOST, "Xorg")


def test_a_process_that_has_ended_is_left_out(proc: Proc) -> None:
    proc.has(7)
    proc.has(8)
    proc.ends(8)
    assert [*proc.owners(7, 8, 9)] == [7]
    assert proc.reader.read({8}).trouble == ""


def test_a_process_that_ends_between_the_reads_is_left_out(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.has(7)
    real = ProcessReader._new

    def new(reader: ProcessReader, pid: int, name: str) -> object:
        found = real(reader, pid, name)
        proc.has(pid, started=200)  # the pid belongs to another process now
        return found

    monkeypatch.setattr(ProcessReader, "_new", new)
    assert proc.owners(7) == {}


def test_a_huge_cgroup_file_is_said_to_be_unreadable_and_costs_no_other_process(proc: Proc) -> None:
    proc.has(7, IN_POD + "0::/x\n" * 200_000)
    proc.has(8)
    found = proc.reader.read([7, 8])
    assert found.processes[7].owner == UNKNOWN
    assert found.processes[8].owner.uid == UID
    assert found.trouble == "the cgroup of process 7 cannot be read: more than 64 KiB"
    proc.has(7, "x" * MAX_CGROUP)
    assert proc.reader.read({7}).trouble == ""


def test_what_could_not_be_seen_is_looked_at_again(proc: Proc) -> None:
    proc.has(7, "0::/\n")
    assert proc.owners(7) == {7: UNKNOWN}
    proc.has(7)
    assert proc.owners(7)[7].uid == UID


def test_a_process_that_is_asked_for_no_more_is_forgotten(proc: Proc) -> None:
    for pid in range(1, 200):
        proc.has(pid)
        proc.owners(pid)
    assert len(proc.reader._known) == 1


@given(st.binary(max_size=200))
def test_no_stat_file_raises_an_error(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.mktemp("proc")
    (path / "7").mkdir()
    (path / "7" / "stat").write_bytes(text)
    (path / "7" / "cgroup").write_text(IN_POD)
    assert len(ProcessReader(path).read({7}).processes) <= 1


def test_the_processes_of_this_machine_are_read() -> None:
    """The name is what the kernel has of the program, and the start time does not change."""
    reader = ProcessReader()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        pids = {os.getpid(), child.pid}
        found = reader.read(pids).processes
        assert found.keys() == pids
        assert found[os.getpid()].name == Path("/proc/self/comm").read_text().rstrip("\n")
        assert reader.read(pids).processes == found
    finally:
        child.communicate(b"\n")
    assert reader.read({child.pid}).processes == {}


def test_log_directories_are_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ns_a_uid-a", "ns_b_uid-b", "ns_c_uid-c"):
        (tmp_path / name).mkdir()
    assert {*pod_log_directories(tmp_path)} == {"ns_a_uid-a", "ns_b_uid-b", "ns_c_uid-c"}
    monkeypatch.setattr(node_processes, "MAX_LOGS", 2)
    assert len(pod_log_directories(tmp_path)) == 2
    assert pod_log_directories(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    ("link", "sees"), [("pid:[4026531836]", True), ("pid:[4026532290]", False), ("", False)]
)
def test_a_process_in_a_container_does_not_see_the_pids_of_the_machine(
    tmp_path: Path, link: str, sees: bool
) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    if link:
        (tmp_path / "self/ns/pid").symlink_to(link)

    assert sees_node_pids(tmp_path) is sees
