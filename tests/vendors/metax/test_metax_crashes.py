"""Whatever kills the process that makes or removes a slice: no slice stays unmarked, none is made twice."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from metax_host import CARD, OTHER, OURS, Host, asked, claim, in_a_process, marks
from mxsml_stub import MxsmlStub

from agent.vendor_api.agent import RequestRefused
from agent.vendors.common import own_files
from agent.vendors.metax.child.abi import Code
from agent.vendors.metax.child.backend import MetaxBackend
from agent.vendors.metax.child.library import UNSUPPORTED, MxsmlError

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

REQUEST = asdict(asked(claim()))
#: Where the process dies while it makes a slice, and what lies on the card then: slices, of them marked.
MAKING = {
    "before slices are switched on": ("before", "SetSgpuToggle", [], False),
    "after slices are switched on": ("after", "SetSgpuToggle", [], False),
    "before the policy is set": ("before", "SetDeviceSchedClass", [], False),
    "after the policy is set": ("after", "SetDeviceSchedClass", [], False),
    "between journal and create": ("before", "CreateSgpu", [], True),
    "between create and alias": ("after", "CreateSgpu", [""], True),
    "between alias and the journal's end": ("after", "SetSgpuAlias", [f"xpu-{OURS}"], True),
}


def _crashes(host: Host, when: str, symbol: str) -> None:
    if when == "before":
        host.stub.kill_before(symbol)
    else:
        host.stub.kill_after(symbol)


@pytest.mark.parametrize(("when", "symbol", "left", "begun"), MAKING.values(), ids=MAKING.keys())
def test_a_crash_while_a_slice_is_made_leaves_one_of_ours_or_none(
    host: Host, stub: MxsmlStub, when: str, symbol: str, left: list[str], begun: bool
) -> None:
    stub.sched_class(0, 1)
    _crashes(host, when, symbol)

    assert in_a_process(host, "prepare", REQUEST, [stub.uuid(0)]) < 0
    assert [it.alias for it in stub.slices()] == left
    assert bool(host.journal) is begun
    backend = _next(host)

    assert marks(backend.partitions()) == [OURS] * len(left)
    assert host.journal == []
    backend.prepare(asked(claim()), [stub.uuid(0)])
    assert marks(backend.partitions()) == [OURS]
    backend.release(OURS)
    assert stub.slices() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_a_slice_is_removed_leaves_it_or_not_and_release_ends_it(
    host: Host, stub: MxsmlStub, when: str
) -> None:
    assert in_a_process(host, "prepare", REQUEST, [stub.uuid(0)]) == 0
    _crashes(host, when, "RemoveSgpu")

    assert in_a_process(host, "release", OURS) < 0
    backend = _next(host)

    assert marks(backend.partitions()) == ([OURS] if when == "before" else [])
    backend.release(OURS)
    assert stub.slices() == []


@pytest.mark.parametrize("call", ["partitions", "prepare", "release"])
def test_whatever_is_asked_first_after_a_crash_finds_the_slice(
    host: Host, stub: MxsmlStub, call: str
) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    backend = _next(host)

    match call:
        case "partitions":
            assert marks(backend.partitions()) == [OURS]
        case "prepare":
            backend.prepare(asked(claim(), allocation=OTHER), [stub.uuid(1)])
        case _:
            backend.release(OURS)

    expected = {"partitions": [OURS], "prepare": [OURS, OTHER], "release": []}[call]
    assert marks(backend.partitions()) == expected


def test_of_the_slices_of_several_cards_a_crash_leaves_each_marked(host: Host, stub: MxsmlStub) -> None:
    uuids = [stub.uuid(slot) for slot in range(3)]
    request = asked(CARD, count=3)
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", asdict(request), uuids)
    stub.kill_after("SetSgpuAlias")
    in_a_process(host, "prepare", asdict(request), uuids)

    made = _next(host).prepare(request, uuids)

    assert [it.uuid for it in made] == uuids
    assert [it.alias for it in stub.slices()] == [f"xpu-{OURS}"] * 3


def test_a_slice_made_by_hand_after_the_crash_is_not_taken_for_ours(host: Host, stub: MxsmlStub) -> None:
    stub.kill_before("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    stub.make_slice(0, 2048, 10)
    stub.make_slice(0, 1024, 10, "by-hand")

    assert marks(_next(host).partitions()) == [None, None]


def test_a_slice_that_bears_somebodys_annotations_is_not_taken_for_ours(host: Host, stub: MxsmlStub) -> None:
    stub.kill_before("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    stub.make_slice(0, 1024, 10, annotations_id="GPU-31b30e43-12:2")

    assert marks(_next(host).partitions()) == [None]


@pytest.mark.parametrize("code", UNSUPPORTED)
def test_a_library_that_knows_no_annotations_leaves_a_slice_to_its_alias(
    host: Host, stub: MxsmlStub, code: int
) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    stub.clear()
    stub.fail("GetSgpuAnnotationsId", code)

    assert marks(host.reopened(host.backend(mode="sgpu")).partitions()) == [OURS]


def test_where_two_slices_may_be_ours_neither_is_touched_and_it_is_said(
    host: Host, stub: MxsmlStub, capfd: pytest.CaptureFixture[str]
) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    stub.make_slice(0, 1024, 10)

    backend = _next(host)

    assert marks(backend.partitions()) == [None, None]
    assert "it is not known which" in capfd.readouterr().err
    backend.release(OURS)
    assert len(stub.slices()) == 2


def test_a_slice_that_was_there_before_is_never_taken_for_the_new_one(host: Host, stub: MxsmlStub) -> None:
    stub.make_slice(0, 1024, 10)
    stub.kill_before("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])

    assert marks(_next(host).partitions()) == [None]


def test_what_was_begun_before_a_reboot_is_forgotten(
    host: Host, stub: MxsmlStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    (tmp_path / "boot").write_text("another-boot\n")
    monkeypatch.setattr(own_files, "BOOT_ID", tmp_path / "boot")

    assert marks(_next(host).partitions()) == [None]
    assert host.journal == []


def test_a_journal_that_makes_no_sense_is_thrown_away(host: Host, sgpu: MetaxBackend) -> None:
    for number, text in enumerate(["", "{", "[]", "7", '{"boot": null}', "[" * 2000]):
        (host.directory / f"create-{number}.json").write_text(text)

    assert sgpu.partitions() == []
    assert host.journal == []


def test_an_entry_under_the_name_of_another_card_is_thrown_away(host: Host, stub: MxsmlStub) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    [name] = host.journal
    (host.directory / name).rename(host.directory / "create-another.json")

    assert marks(_next(host).partitions()) == [None]
    assert host.journal == []


def test_an_entry_waits_for_its_card(host: Host, stub: MxsmlStub) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    backend = host.backend(mode="sgpu")
    stub.clear()
    stub.lose(0)
    backend.open()
    backend.discover()
    assert backend.partitions() == []
    assert len(host.journal) == 1

    stub.restore(0)
    backend.discover()

    assert marks(backend.partitions()) == [OURS]


def test_a_slice_that_can_not_be_marked_yet_is_marked_later(host: Host, stub: MxsmlStub) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    stub.clear()
    stub.fail("SetSgpuAlias", Code.SYSFS_ERROR)
    backend = host.reopened(host.backend(mode="sgpu"))
    with pytest.raises(MxsmlError):
        backend.partitions()
    assert len(host.journal) == 1

    stub.clear("SetSgpuAlias")

    assert marks(backend.partitions()) == [OURS]


def test_the_first_look_at_the_cards_ends_what_a_crash_left(host: Host, stub: MxsmlStub) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])

    _next(host)

    assert [it.alias for it in stub.slices()] == [f"xpu-{OURS}"]
    assert host.journal == []


@pytest.mark.parametrize("call", ["partitions", "prepare", "release", "cdi"])
def test_a_journal_that_can_not_be_crossed_out_stops_nothing(
    host: Host, stub: MxsmlStub, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    stub.kill_after("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])
    monkeypatch.setattr(own_files, "remove", _broken_disk)
    backend = _next(host)
    arguments = {"prepare": (asked(claim()), [stub.uuid(0)]), "release": (OURS,)}

    getattr(backend, call)(*arguments.get(call, ()))

    assert len(host.journal) == 1
    assert marks(backend.partitions()) == ([] if call == "release" else [OURS])


def _broken_disk(path: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_nothing_is_made_that_could_not_be_written_down(
    host: Host, sgpu: MetaxBackend, stub: MxsmlStub
) -> None:
    host.directory.rename(host.directory.with_name("away"))

    with pytest.raises(OSError, match="create-"):
        sgpu.prepare(asked(claim()), [stub.uuid(0)])

    assert stub.slices() == []


def test_without_a_directory_slices_are_made_all_the_same(host: Host, stub: MxsmlStub) -> None:
    backend = host.backend(mode="sgpu")
    backend.directory = None
    backend.open()
    backend.discover()

    backend.prepare(asked(claim()), [stub.uuid(0)])

    assert marks(backend.partitions()) == [OURS]


def test_files_of_the_backend_are_for_nobody_else(host: Host, stub: MxsmlStub) -> None:
    stub.kill_before("CreateSgpu")
    in_a_process(host, "prepare", REQUEST, [stub.uuid(0)])

    modes = {path.stat().st_mode & 0o777 for path in host.directory.iterdir()}

    assert modes == {0o600}


@pytest.mark.parametrize("allocation", ["x" * 28, "", "a b", "../up", "test"])
def test_an_allocation_that_can_not_be_a_mark_makes_no_slice(
    sgpu: MetaxBackend, stub: MxsmlStub, allocation: str
) -> None:
    with pytest.raises(ValueError, match="cannot be marked"):
        sgpu.prepare(asked(claim(), allocation=allocation), [stub.uuid(0)])

    assert stub.slices() == []


def test_a_card_that_is_not_here_is_refused(sgpu: MetaxBackend) -> None:
    with pytest.raises(RequestRefused, match="GPU-nowhere is not among the cards"):
        sgpu.prepare(asked(claim()), ["GPU-nowhere"])


def _next(host: Host) -> MetaxBackend:
    """The process after the one that crashed."""
    host.stub.clear()
    return host.reopened(host.backend(mode="sgpu"))
