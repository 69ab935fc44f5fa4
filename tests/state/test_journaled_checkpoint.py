"""The checkpoint and its journal: what is appended, what is read back, and whatever files and disks do."""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec import structs

from agent.core.allocation.ledger import Ledger
from agent.core.allocation.ledger_change import LedgerChange
from agent.core.errors import StateError
from agent.core.model import Allocation, AllocationSource, AllocationState, Cordon, Owner
from agent.host import files as host_files
from agent.state import journal as journal_module
from agent.state import journaled_checkpoint
from agent.state.checkpoint import CheckpointFile, SavedState
from agent.state.damaged_files import SetAside
from agent.state.file_envelope import sealed
from agent.state.journaled_checkpoint import JournaledCheckpoint

OWNER = Owner("uid-1", "main", "default", "web-0")
READ_AGAIN = "what changed since the checkpoint is read from the kubelet again"
CORDONED = {"a": Cordon("ops", "smells", 9.0)}


def allocation(name: str) -> Allocation:
    return Allocation(name, "example.com/x", "acme", (name,), (name,), AllocationState.DONE, 1.0)


def read_back(*allocations: Allocation) -> tuple[Allocation, ...]:
    """What another process knows of the allocations."""
    return tuple(replace(it, source=AllocationSource.CHECKPOINT) for it in allocations)


class Agent:
    """One process with its ledger, that saves after each change."""

    def __init__(self, directory: Path) -> None:
        self.files = JournaledCheckpoint(directory)
        state, self.aside = self.files.load()
        self.ledger, self.rest = Ledger(state.allocations), structs.replace(state, allocations=())

    def save(self, *, durable: bool = False, whole: bool = False) -> None:
        changes = self.ledger.take_changes()
        state = structs.replace(self.rest, allocations=self.ledger.all())
        self.files.save(state, changes, durable=durable, whole=whole)

    def allocate(self, name: str) -> None:
        self.ledger.record(allocation(name))
        self.save()

    @property
    def names(self) -> list[str]:
        return [it.id for it in self.ledger.all()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def journal(directory: Path) -> Path:
    return directory / "checkpoint.journal"


@pytest.fixture
def agent(directory: Path) -> Agent:
    """An agent with allocation "a" in its checkpoint, and "b" and "c" in its journal."""
    agent = Agent(directory)
    agent.allocate("a")
    agent.allocate("b")
    agent.allocate("c")
    return agent


def files(directory: Path) -> set[str]:
    return {it.name for it in directory.iterdir()}


def asides(journal: Path) -> list[Path]:
    return sorted(journal.parent.glob("checkpoint.journal.corrupt-*"))


def set_aside(directory: Path, *names: str) -> SetAside:
    """Start another process, which has these allocations and sets the journal aside."""
    later = Agent(directory)
    (aside,) = later.aside
    assert later.names == [*names]
    assert aside.path == directory / "checkpoint.journal"
    assert [it.name for it in asides(aside.path)] == [aside.aside]
    assert aside.message.startswith(f"{aside.path}: ")
    assert (
        aside.message.endswith(f"; set aside as {aside.aside}, {READ_AGAIN}") or READ_AGAIN in aside.message
    )
    later.allocate("later")
    assert Agent(directory).names == [*names, "later"]
    return aside


# What is written where


def test_the_first_save_of_a_process_is_a_checkpoint(agent: Agent, directory: Path, journal: Path) -> None:
    later = Agent(directory)
    assert journal.exists()

    later.allocate("d")

    assert files(directory) == {"checkpoint.json"}
    assert Agent(directory).names == ["a", "b", "c", "d"]


def test_allocates_confirmations_and_releases_leave_the_checkpoint_as_it_is(
    agent: Agent, directory: Path
) -> None:
    before = (directory / "checkpoint.json").read_bytes()

    agent.ledger.confirm("b", OWNER, "1-2")
    agent.save()
    agent.ledger.release("a", "over", 2.0)
    agent.save()

    assert (directory / "checkpoint.json").read_bytes() == before
    assert Agent(directory).ledger.all() == read_back(*agent.ledger.all())


@pytest.mark.parametrize("what", ["health", "devices", "cordons", "labels", "config", "first", "boot_id"])
def test_any_other_part_of_the_state_is_written_at_once_and_whole(
    agent: Agent, directory: Path, state: SavedState, what: str
) -> None:
    agent.rest = structs.replace(agent.rest, **{what: getattr(state, what)})

    agent.save()

    assert files(directory) == {"checkpoint.json"}
    assert CheckpointFile(directory / "checkpoint.json").load()[0] == structs.replace(
        agent.rest, allocations=agent.ledger.all()
    )


def test_steps_of_made_hardware_are_written_whole(agent: Agent, directory: Path) -> None:
    agent.ledger.record(replace(allocation("made"), state=AllocationState.INTENT))

    agent.save()

    assert files(directory) == {"checkpoint.json"}


@pytest.mark.parametrize("how", ["durable", "whole"])
def test_a_durable_save_and_the_last_one_leave_no_journal(agent: Agent, directory: Path, how: str) -> None:
    agent.save(durable=how == "durable", whole=how == "whole")

    assert files(directory) == {"checkpoint.json"}


def test_a_save_without_a_change_writes_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", failing(errno.EIO))

    agent.save()


def test_the_checkpoint_beside_a_journal_is_in_the_format_that_agents_without_journals_read(
    agent: Agent, directory: Path
) -> None:
    """Such an agent lacks what was appended, and nothing else."""
    content = (directory / "checkpoint.json").read_bytes()

    assert content == sealed(structs.replace(agent.rest, allocations=(allocation("a"),)))
    assert json.loads(content).keys() == {"version", "checksum", "data"}


def test_only_the_user_of_the_agent_can_read_the_journal(agent: Agent, journal: Path) -> None:
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600


def test_a_change_is_one_write_and_is_not_synced(
    agent: Agent, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write = os.write

    def noted(descriptor: int, text: bytes) -> int:
        written.append(bytes(text))
        return write(descriptor, text)

    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    monkeypatch.setattr(os, "write", noted)

    agent.allocate("d")

    assert journal.read_bytes().endswith(b"\n" + written[0])
    assert len(written) == 1


def test_a_journal_is_long_from_some_size_on_or_by_the_size_of_the_checkpoint(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaled_checkpoint, "SHORT_JOURNAL", 0)
    found: list[bool] = []
    while not agent.files.is_long:
        agent.allocate(str(len(found)))
        found.append(agent.files.is_worth_folding)

    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)
    monkeypatch.setattr(journaled_checkpoint, "SHORT_JOURNAL", 1 << 20)
    assert not agent.files.is_long


# Up, down and up again


def test_up_and_down_and_up_again_without_an_end_in_order(directory: Path) -> None:
    names: list[str] = []
    for n in range(20):
        agent = Agent(directory)
        assert (agent.names, agent.aside) == (names, ())
        for m in range(n % 4):
            agent.allocate(f"{n}-{m}")
        names = agent.names


class Killed(BaseException):
    """The process ends here."""


CALLS = ("open", "write", "close", "replace", "unlink", "rename")


def kill_at(count: int, patch: pytest.MonkeyPatch, directory: Path) -> list[str]:
    """End at the so manieth call on the files, in the middle of a write; returns the calls."""
    calls: list[str] = []

    def wrap(name: str) -> Any:
        real = getattr(os, name)

        def call(what: Any, *more: Any, **named: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
            if not path.startswith(str(directory)):
                return real(what, *more, **named)
            calls.append(name)
            if len(calls) - 1 == count:
                if name == "write":
                    real(what, more[0][: len(more[0]) // 2])
                if name == "close":
                    real(what)
                raise Killed
            return real(what, *more, **named)

        return call

    for name in CALLS:
        patch.setattr(os, name, wrap(name))
    return calls


CHANGES: Mapping[str, Callable[[Agent], None]] = {
    "allocate": lambda agent: agent.allocate("d"),
    "whole": lambda agent: agent.save(whole=True),
    "durable": lambda agent: agent.save(durable=True),
    "first of a process": lambda agent: Agent(agent.files.path.parent).allocate("d"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_kill_at_any_call_loses_nothing_that_was_saved_and_sets_nothing_aside(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, is_over = 0, False
    after = ["a", "b", "c", "d"] if change in ("allocate", "first of a process") else ["a", "b", "c"]
    while not is_over:
        directory = tmp_path / str(count)
        agent = Agent(directory)
        for name in "abc":
            agent.allocate(name)
        with monkeypatch.context() as patch:
            kill_at(count, patch, directory)
            try:
                CHANGES[change](agent)
                is_over = True
            except Killed:
                pass
        for _ in range(2):
            later = Agent(directory)
            assert later.aside == ()
            assert later.names in ([after] if is_over else [["a", "b", "c"], after])
            if is_over:
                assert later.names == (
                    ["a", "b", "c"] if "d" not in agent.names + later.names else later.names
                )
        later.allocate("e")
        assert Agent(directory).names == later.names
        count += 1
    assert count > 3


# What cannot be used is set aside


def test_an_incomplete_last_line_is_left_out(agent: Agent, directory: Path, journal: Path) -> None:
    whole = journal.read_bytes()
    for length in range(len(whole)):
        journal.write_bytes(whole[:length])
        later = Agent(directory)
        count = whole[:length].count(b"\n")
        assert (later.names, later.aside) == (["a", "b", "c"][: max(count, 1)], ())


def test_after_an_incomplete_last_line_the_agent_saves_again(
    agent: Agent, directory: Path, journal: Path
) -> None:
    journal.write_bytes(journal.read_bytes()[:-5])

    Agent(directory).allocate("d")

    assert Agent(directory).names == ["a", "b", "d"]
    assert files(directory) == {"checkpoint.json"}


@pytest.mark.parametrize(
    ("line", "names"), [(1, ["a"]), (2, ["a", "b"])], ids=["in the middle", "at the end"]
)
def test_a_damaged_line_is_named_and_what_stands_before_it_is_used(
    agent: Agent, directory: Path, journal: Path, line: int, names: list[str]
) -> None:
    content = journal.read_bytes().splitlines(True)
    content[line] = content[line].replace(b"example.com", b"example.org")
    journal.write_bytes(b"".join(content))

    aside = set_aside(directory, *names)

    assert aside.why == "corrupt"
    assert f"line {line + 1} was torn or edited (its checksum does not match); set aside as " in aside.message
    assert f"{line - 1} changes before that line are used" in aside.message
    assert asides(journal)[0].read_bytes() == b"".join(content)


def test_what_stands_before_a_damaged_line_outlasts_a_kill_before_the_first_save(
    agent: Agent, directory: Path, journal: Path
) -> None:
    journal.write_bytes(journal.read_bytes()[:-5] + b"12345\n")
    Agent(directory)

    later = Agent(directory)

    assert (later.names, later.aside) == (["a", "b"], ())


def test_what_stands_before_a_damaged_line_stays_where_the_disk_is_full(
    agent: Agent, directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.write_bytes(journal.read_bytes()[:-5] + b"12345\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        for _ in range(2):
            later = Agent(directory)
            (aside,) = later.aside
            assert (later.names, aside.aside) == (["a", "b"], "")
            assert "it is set aside once the checkpoint can be written" in aside.message
            with pytest.raises(OSError, match="No space left"):
                later.save()

    later.save()

    assert files(directory) == {"checkpoint.json", asides(journal)[0].name}
    later.allocate("d")
    assert journal.exists()
    assert Agent(directory).names == ["a", "b", "d"]


def test_a_journal_beside_another_checkpoint_is_not_replayed(
    agent: Agent, directory: Path, journal: Path
) -> None:
    """An agent without journals has written the checkpoint, or a person has put back an older one."""
    older = CheckpointFile(directory / "checkpoint.json")
    saved, _ = older.load()
    older.save(structs.replace(saved, cordons=CORDONED), durable=False)
    content = journal.read_bytes()

    aside = set_aside(directory, "a")

    assert (aside.why, "it continues another checkpoint" in aside.message) == ("foreign", True)
    assert asides(journal)[0].read_bytes() == content


def test_a_journal_without_its_checkpoint_is_not_replayed(agent: Agent, directory: Path) -> None:
    (directory / "checkpoint.json").unlink()

    assert set_aside(directory).why == "foreign"


def test_a_journal_beside_a_damaged_checkpoint_is_set_aside_too(
    agent: Agent, directory: Path, journal: Path
) -> None:
    (directory / "checkpoint.json").write_bytes(b"garbage")

    later = Agent(directory)

    assert [(it.path.name, it.why) for it in later.aside] == [
        ("checkpoint.json", "foreign"),
        ("checkpoint.journal", "foreign"),
    ]
    assert later.names == []


def test_a_journal_of_a_later_release_is_set_aside(agent: Agent, directory: Path, journal: Path) -> None:
    payload = journal.read_bytes().splitlines()[0][9:].replace(b'"version":1', b'"version":2')
    journal.write_bytes(b"%08x %s\nchanges to come\n" % (zlib.crc32(payload), payload))

    aside = set_aside(directory, "a")

    assert (aside.why, "format 2, this agent reads up to 1" in aside.message) == ("newer", True)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Path.mkdir, "a directory"),
        (os.mkfifo, "a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
        (lambda path: path.symlink_to(path), "a symbolic link"),
    ],
    ids=["directory", "pipe", "device", "loop"],
)
def test_what_is_no_file_is_set_aside_and_not_followed(
    agent: Agent, directory: Path, journal: Path, make: Callable[[Path], None], found: str
) -> None:
    journal.unlink()
    make(journal)

    aside = set_aside(directory, "a")

    assert (aside.why, f"is not a file but {found}" in aside.message) == ("foreign", True)


def test_a_journal_without_end_is_not_read_to_the_end(agent: Agent, directory: Path, journal: Path) -> None:
    with journal.open("r+b") as sparse:
        sparse.truncate((64 << 20) + 1)

    assert "larger than" in set_aside(directory, "a").message


def test_a_journal_that_the_disk_can_not_read_is_set_aside(
    agent: Agent, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("agent.host.files.read", refusing(errno.EIO))
        later = Agent(directory)

    (aside,) = later.aside
    assert (later.names, aside.why) == (["a"], "unreadable")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EMFILE])
def test_a_journal_that_may_not_be_read_stops_the_start(
    agent: Agent, directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("agent.host.files.read", refusing(number))
        with pytest.raises(StateError, match=r"checkpoint\.journal: cannot be read: .*; mend it, or move it"):
            Agent(directory)

    assert Agent(directory).names == ["a", "b", "c"]


def test_a_journal_that_can_not_be_moved_is_not_overwritten_and_each_change_is_a_checkpoint(
    agent: Agent, directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.write_bytes(b"garbage\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(errno.EPERM))
        later = Agent(directory)
        later.allocate("d")
        later.allocate("e")
        assert "it cannot be set aside (Operation not permitted)" in later.aside[0].message
        assert journal.read_bytes() == b"garbage\n"
        assert CheckpointFile(later.files.path).load()[0].allocations[1:] == (
            allocation("d"),
            allocation("e"),
        )

    later.allocate("f")
    later.allocate("g")

    assert asides(journal)[0].read_bytes() == b"garbage\n"
    assert b'"g"' in journal.read_bytes()
    assert Agent(directory).names == ["a", "d", "e", "f", "g"]


# Files that go away under the agent


@pytest.mark.parametrize("name", ["checkpoint.json", "checkpoint.journal"])
def test_a_file_that_is_removed_under_the_agent_is_made_up_for_with_the_next_save(
    agent: Agent, directory: Path, name: str
) -> None:
    (directory / name).unlink()

    agent.save()

    assert files(directory) == {"checkpoint.json"}
    assert Agent(directory).names == ["a", "b", "c"]


def test_a_directory_that_is_removed_under_the_agent_is_made_again(agent: Agent, directory: Path) -> None:
    directory.rename(directory.with_name("away"))

    agent.allocate("d")

    assert Agent(directory).names == ["a", "b", "c", "d"]


@pytest.mark.parametrize("what", ["shorter", "directory", "pipe", "link"])
def test_nothing_is_appended_to_what_is_not_as_it_was_left(
    agent: Agent, directory: Path, journal: Path, what: str
) -> None:
    away = journal.with_name("away")
    journal.rename(away)
    match what:
        case "shorter":
            journal.write_bytes(away.read_bytes()[:-1])
        case "directory":
            journal.mkdir()
        case "pipe":
            os.mkfifo(journal)
        case "link":
            journal.symlink_to(away)
    before = away.read_bytes()

    agent.allocate("d")
    agent.allocate("e")

    assert Agent(directory).names == ["a", "b", "c", "d", "e"]
    assert away.read_bytes() == before


def test_another_checkpoint_under_the_agent_is_replaced(agent: Agent, directory: Path) -> None:
    CheckpointFile(directory / "checkpoint.json").save(SavedState("another"), durable=False)

    agent.allocate("d")

    assert Agent(directory).names == ["a", "b", "c", "d"]


# Disks that fail


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def refusing(number: int) -> Callable[..., bytes]:
    """Refuses to read the journal."""
    read = host_files.read

    def refuse(path: Path, *rest: Any, **more: Any) -> bytes:
        return failing(number)() if path.name == "checkpoint.journal" else read(path, *rest, **more)

    return refuse


def fail_at(step: str, number: int, patch: pytest.MonkeyPatch) -> None:
    """Let a step of an append fail, and all others do what they do."""
    write, close, fail = os.write, os.close, failing(number)
    written: list[int] = []

    def writes_half(descriptor: int, text: Any) -> Any:
        if written:
            return fail()
        written.append(write(descriptor, text[: len(text) // 2]))
        return written[0]

    def closes(descriptor: int) -> Any:
        close(descriptor)
        return fail()

    match step:
        case "open" | "write":
            patch.setattr(os, step, fail)
        case "write half" | "write half, and what was written stays":
            patch.setattr(os, "write", writes_half)
            if step != "write half":
                patch.setattr(os, "ftruncate", fail)
                patch.setattr(os, "unlink", fail)
        case "close":
            patch.setattr(os, "close", closes)


@pytest.fixture(params=["first", "later"])
def place(request: pytest.FixtureRequest, agent: Agent, directory: Path) -> list[str]:
    """Before the first line of a journal, and after others; the allocations that were saved."""
    if request.param == "first":
        agent.save(whole=True)
    return ["a", "b", "c"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize(
    "step", ["open", "write", "write half", "write half, and what was written stays", "close"]
)
def test_an_append_that_fails_at_any_step_loses_nothing_and_is_made_up_for(
    agent: Agent,
    directory: Path,
    place: list[str],
    step: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent.ledger.record(allocation("d"))
    changes = agent.ledger.take_changes()
    state = structs.replace(agent.rest, allocations=agent.ledger.all())
    for _ in range(2):
        with monkeypatch.context() as patch:
            fail_at(step, number, patch)
            with pytest.raises(OSError, match=os.strerror(number)) as refusal:
                agent.files.save(state, changes, durable=False)
        assert refusal.value.errno == number
        killed = Agent(directory)
        assert killed.names in ([*place, "d"] if step == "close" else place, place)
        assert killed.aside == ()

    agent.files.save(state, changes, durable=False)

    assert Agent(directory).names == [*place, "d"]
    agent.allocate("e")
    assert Agent(directory).names == [*place, "d", "e"]


@pytest.mark.parametrize("step", ["write", "write half"])
def test_a_disk_with_room_for_a_change_and_none_for_a_checkpoint_takes_the_change(
    agent: Agent, directory: Path, place: list[str], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.ledger.record(allocation("d"))
    changes = agent.ledger.take_changes()
    state = structs.replace(agent.rest, allocations=agent.ledger.all())
    with monkeypatch.context() as patch:
        fail_at(step, errno.ENOSPC, patch)
        with pytest.raises(OSError, match="No space left"):
            agent.files.save(state, changes, durable=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(errno.ENOSPC))
        agent.files.save(state, changes, durable=False)

    assert Agent(directory).names == [*place, "d"]


@pytest.mark.parametrize("error", [errno.EIO, errno.EPERM, errno.EACCES])
def test_a_journal_that_can_not_be_written_costs_a_checkpoint_and_no_change(
    agent: Agent, directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    really = os.open

    def refused(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if Path(path) == journal and flags & os.O_WRONLY:
            raise OSError(error, os.strerror(error))
        return really(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refused)

    agent.allocate("d")

    assert not journal.exists()
    assert Agent(directory).names == ["a", "b", "c", "d"]


def test_a_full_journal_is_followed_by_a_checkpoint(
    agent: Agent, directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer journal would not be read at the next start."""
    monkeypatch.setattr(journal_module, "MAX_BYTES", journal.stat().st_size + 1)

    agent.allocate("d")

    assert not journal.exists()
    assert Agent(directory).names == ["a", "b", "c", "d"]


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(
    agent: Agent, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:7]))

    agent.allocate("d")

    assert Agent(directory).names == ["a", "b", "c", "d"]


def test_a_checkpoint_that_fails_again_and_again_makes_the_journal_no_longer(
    agent: Agent, directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(errno.EROFS))
        for _ in range(5):
            with pytest.raises(OSError, match="Read-only"):
                agent.save(whole=True)
            sizes.append(journal.stat().st_size)

    assert len({*sizes}) == 1
    agent.allocate("d")
    assert Agent(directory).names == ["a", "b", "c", "d"]


def test_a_text_that_can_not_be_written_fails_the_save_and_leaves_the_journal(
    agent: Agent, directory: Path, journal: Path
) -> None:
    before = journal.read_bytes()
    with pytest.raises(ValueError, match="surrogates not allowed"):
        agent.files.save(
            structs.replace(agent.rest, allocations=(allocation("\udc80"),)),
            [LedgerChange("\udc80", None, allocation("\udc80"))],
            durable=False,
        )

    assert journal.read_bytes() == before
