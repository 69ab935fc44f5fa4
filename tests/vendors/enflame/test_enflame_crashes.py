"""Whatever kills the process that makes or removes a slice: it is ours or not there, and never made twice."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from efml_stub import EfmlStub
from enflame_host import OTHER, OURS, Host, asked, in_a_process, marks, plain, uuid

from agent.vendors.common import own_files
from agent.vendors.enflame.child import slice_lock
from agent.vendors.enflame.child.backend import EnflameBackend
from agent.vendors.enflame.child.efsmi import EfsmiError
from agent.vendors.enflame.child.slice_journal import BegunSlice, DrsJournal, JournalPage

pytest_plugins = ["efml_fixtures", "enflame_fixtures"]

REQUEST = plain(asked(3))
#: Where the process dies while it makes a slice, how many slices lie there then, and whether DRS is on. The
#: tool goes on: "before" is before it took effect.
MAKING = {
    "before the card's slices are listed": ("list", "before", 0, False),
    "between journal and switching on": ("drs-on", "before", 0, True),
    "after switching on": ("drs-on", "after", 0, True),
    "before profiles are listed": ("list-profile", "before", 0, True),
    "between journal and create": ("create", "before", 1, True),
    "between create and journal": ("create", "after", 1, True),
}


@pytest.mark.parametrize(("command", "when", "there", "on"), MAKING.values(), ids=MAKING.keys())
def test_a_crash_while_a_slice_is_made_leaves_one_of_ours_or_none(
    host: Host, stub: EfmlStub, command: str, when: str, there: int, on: bool
) -> None:
    # Without a look before, which would list slices, too.
    settings = {"drs": False}
    stub.efsmi_kills(command, when, caller=True)

    assert in_a_process(host, "prepare", REQUEST, [uuid(2)], **settings) < 0
    _await_the_tool(host)
    assert (len(stub.instances()), bool(stub.drs())) == (there, on)
    backend = host.opened()

    assert marks(backend.partitions()) == [OURS] * there
    assert bool(stub.drs()) is bool(there)
    backend.prepare(asked(3), [uuid(2)])
    assert marks(backend.partitions()) == [OURS]
    backend.release(OURS)
    assert (stub.instances(), stub.drs(), host.journal) == ([], [], [])


def _await_the_tool(host: Host) -> None:
    """Wait until an efsmi that outlived its process is done."""
    with open(host.directory / slice_lock.FILE, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def _begun(host: Host, profile: str = "3g.20gb", boot: str | None = None) -> None:
    """What a process left that was killed together with its tool, before that took effect."""
    begun = BegunSlice(OURS, profile, (), own_files.boot_id() if boot is None else boot)
    DrsJournal(host.directory).write(JournalPage(uuid(2), begun=begun))


REMOVING = {
    "before the slice is removed": ("destroy", "before"),
    "between removing it and journal": ("destroy", "after"),
    "before switching off": ("drs-off", "before"),
    "between switching off and journal": ("drs-off", "after"),
}


@pytest.mark.parametrize(("command", "when"), REMOVING.values(), ids=REMOVING.keys())
def test_a_crash_while_a_slice_is_removed_leaves_nothing_once_it_is_released_again(
    host: Host, stub: EfmlStub, command: str, when: str
) -> None:
    assert in_a_process(host, "prepare", REQUEST, [uuid(2)]) == 0
    stub.efsmi_kills(command, when, caller=True)

    assert in_a_process(host, "release", OURS) < 0
    _await_the_tool(host)
    backend = host.opened()
    assert marks(backend.partitions()) == []

    backend.release(OURS)
    backend.discover()
    assert (stub.instances(), stub.drs(), host.journal) == ([], [], [])


def test_a_tool_that_is_killed_with_its_work_done_leaves_a_slice_that_is_found(
    host: Host, backend: EnflameBackend, stub: EfmlStub
) -> None:
    stub.efsmi_kills("create", "after")

    [made] = backend.prepare(asked(3), [uuid(2)])

    assert [f"{it.id}:{it.uuid}" for it in stub.instances()] == [made.id]


def test_a_tool_that_hangs_is_ended_and_what_it_began_is_nothing(
    host: Host, backend: EnflameBackend, stub: EfmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.vendors.enflame.child.backend.MAKING", 5.0)
    stub.efsmi_hangs("create")
    with pytest.raises(EfsmiError, match="does not end within"):
        backend.prepare(asked(3), [uuid(2)])
    stub.efsmi_works()

    again = host.opened()

    assert marks(again.partitions()) == []
    assert (stub.drs(), host.journal) == ([], [])


def test_whatever_is_asked_first_after_a_crash_finds_the_slice(host: Host, stub: EfmlStub) -> None:
    stub.efsmi_kills("create", "after", caller=True)
    in_a_process(host, "prepare", REQUEST, [uuid(2)])
    backend = host.backend(drs=False)
    backend.open()
    backend.discover()

    backend.prepare(asked(3, allocation=OTHER), [uuid(2)])

    assert marks(backend.partitions()) == [OURS, OTHER]


def test_a_release_is_the_first_that_is_asked_after_a_crash(host: Host, stub: EfmlStub) -> None:
    stub.efsmi_kills("create", "after", caller=True)
    in_a_process(host, "prepare", REQUEST, [uuid(2)])

    host.opened(drs=False).release(OURS)

    assert (stub.instances(), stub.drs(), host.journal) == ([], [], [])


def test_a_slice_that_was_there_before_the_crash_is_not_taken_for_ours(host: Host, stub: EfmlStub) -> None:
    theirs = stub.make_instance(2, "3g.20gb")
    stub.efsmi_kills("create", "after", caller=True)
    in_a_process(host, "prepare", REQUEST, [uuid(2)])

    found = {it.id: it.allocation for it in host.opened().partitions()}

    assert len(found) == 2
    assert found[f"{theirs.id}:{theirs.uuid}"] is None
    assert OURS in found.values()


def test_a_slice_of_another_profile_that_came_after_the_crash_is_not_taken_for_ours(
    host: Host, stub: EfmlStub
) -> None:
    _begun(host)
    stub.make_instance(2, "1g.6gb")

    assert marks(host.opened().partitions()) == [None]


def test_where_two_slices_may_be_ours_neither_is_touched_and_it_is_said(
    host: Host, stub: EfmlStub, capfd: pytest.CaptureFixture[str]
) -> None:
    stub.efsmi_kills("create", "after", caller=True)
    in_a_process(host, "prepare", REQUEST, [uuid(2)])
    stub.make_instance(2, "3g.20gb")

    backend = host.opened()

    assert marks(backend.partitions()) == [None, None]
    assert f"was made for {OURS}, and it is not known which" in capfd.readouterr().err


def test_what_was_begun_before_a_reboot_is_nothing(host: Host, stub: EfmlStub) -> None:
    _begun(host, boot="another")
    stub.make_instance(2, "3g.20gb")

    assert marks(host.opened().partitions()) == [None]


def test_a_tool_that_outlives_its_process_is_waited_for(host: Host, stub: EfmlStub) -> None:
    _begun(host)
    with slice_lock.taken(host.directory):
        backend = host.opened()
        assert backend.partitions() == []
        with pytest.raises(EfsmiError, match="has not ended yet"):
            backend.prepare(asked(3), [uuid(2)])
        with pytest.raises(EfsmiError, match="has not ended yet"):
            backend.prepare(asked(3, allocation=OTHER), [uuid(3)])
        stub.make_instance(2, "3g.20gb")

    assert marks(backend.partitions()) == [OURS]


def test_the_journal_is_the_owners_alone(host: Host, backend: EnflameBackend) -> None:
    backend.prepare(asked(), [uuid(2)])

    [name] = host.journal
    assert os.stat(host.directory / name).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[", "{}", '{"card": "x", "switched": 1, "begun": 7, "ours": []}'])
def test_a_journal_that_makes_no_sense_says_nothing_and_stays_to_be_seen(
    host: Host, stub: EfmlStub, text: str
) -> None:
    path = host.directory / "slices-x.json"
    path.write_text(text)
    stub.make_instance(2)

    assert marks(host.opened().partitions()) == [None]
    assert path.exists()


def test_a_journal_that_can_not_be_written_makes_nothing(
    host: Host, backend: EnflameBackend, stub: EfmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, said: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_files, "write", full)

    with pytest.raises(OSError, match="No space left"):
        backend.prepare(asked(), [uuid(2)])
    assert (stub.instances(), stub.drs()) == ([], [])


def test_without_a_directory_the_journal_is_the_processs(host: Host, stub: EfmlStub) -> None:
    backend = host.backend()
    backend.directory = None
    backend.open()
    backend.discover()
    backend.prepare(asked(), [uuid(2)])
    backend.close()
    backend.open()
    backend.discover()

    assert marks(backend.partitions()) == [OURS]
    assert marks(host.opened().partitions()) == [None]
