"""The checkpoint on disk: round trips, what cannot be used, who may read it, and disks that fail."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from support import strategies

from agent.core.errors import StateError
from agent.core.model import Allocation, AllocationSource, AllocationState, Cordon
from agent.state.checkpoint import MAX_BYTES, CheckpointFile, Encoder, SavedState, boot_id, restored
from agent.state.damaged_files import MAX_KEPT_FILES, SetAside
from agent.state.file_envelope import sealed

DATA = Path(__file__).parent / "data"
LATER = SavedState(boot_id="later")


def asides(file: CheckpointFile) -> list[Path]:
    return sorted(file.path.parent.glob("checkpoint.json.corrupt-*"))


def refuses(file: CheckpointFile) -> SetAside:
    """Load; the file was not taken."""
    state, said = file.load()
    assert state == SavedState()
    assert said is not None
    assert said.path == file.path
    assert said.message.startswith(f"{file.path}: ")
    assert said.message.endswith(
        "starting without it: owners are read from the kubelet again, faults and cordons are lost"
    )
    return said


def spoilt(file: CheckpointFile, content: bytes = b"garbage") -> None:
    file.path.parent.mkdir(exist_ok=True)
    file.path.write_bytes(content)


@dataclass(frozen=True)
class Clock:
    """Stands in one year."""

    year: int

    def now(self, _: tzinfo) -> datetime:
        return datetime(self.year, 1, 1, tzinfo=UTC)


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


# What is saved is loaded


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_saved_is_loaded(file: CheckpointFile, state: SavedState, durable: bool) -> None:
    file.save(state, durable=durable)

    assert file.load() == (state, None)


@given(
    st.builds(
        SavedState,
        boot_id=strategies.texts,
        allocations=st.lists(strategies.allocations, max_size=4).map(tuple),
        health=st.dictionaries(strategies.texts, strategies.records, max_size=4),
        cordons=st.dictionaries(
            strategies.texts, st.builds(Cordon, strategies.texts, strategies.texts, strategies.times)
        ),
        labels=st.dictionaries(strategies.texts, st.none() | strategies.texts, max_size=4),
        config=strategies.texts,
    )
)
def test_any_state_round_trips(state: SavedState) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = CheckpointFile(Path(directory) / "checkpoint.json")

        file.save(state, durable=False)

        assert file.load() == (state, None)


@pytest.mark.parametrize(
    ("source", "loaded"),
    [
        (AllocationSource.ALLOCATE, AllocationSource.CHECKPOINT),
        (AllocationSource.CHECKPOINT, AllocationSource.CHECKPOINT),
        (AllocationSource.KUBELET, AllocationSource.KUBELET),
    ],
)
def test_an_allocation_says_that_the_checkpoint_had_it(
    file: CheckpointFile, state: SavedState, source: AllocationSource, loaded: AllocationSource
) -> None:
    file.save(
        structs.replace(state, allocations=(replace(state.allocations[0], source=source),)), durable=False
    )

    assert [it.source for it in restored(file.load()[0]).allocations] == [loaded]


@pytest.mark.parametrize(
    ("source", "over", "reason"),
    [
        (AllocationSource.ANNOTATION, False, ""),
        (AllocationSource.ANNOTATION, True, "its pod is gone"),
        (AllocationSource.KUBELET, False, "its pod is gone"),
    ],
    ids=["by a scheduler's word", "over", "another"],
)
def test_whom_a_scheduler_gave_anothers_card_is_found_anew_in_each_life(
    file: CheckpointFile, state: SavedState, source: AllocationSource, over: bool, reason: str
) -> None:
    states = AllocationState.RELEASED if over else AllocationState.DONE
    it = replace(state.allocations[0], source=source, state=states, reason="its pod is gone")
    file.save(structs.replace(state, allocations=(it,)), durable=False)

    assert restored(file.load()[0]).allocations == (replace(it, reason=reason),)


def test_no_file_and_no_directory_is_a_first_start(file: CheckpointFile) -> None:
    assert file.load() == (SavedState(), None)


def test_a_later_save_replaces_an_earlier_one(file: CheckpointFile, state: SavedState) -> None:
    file.save(state, durable=False)

    file.save(LATER, durable=True)

    assert file.load() == (LATER, None)
    assert [path.name for path in file.path.parent.iterdir()] == ["checkpoint.json"]


def test_a_file_of_an_older_agent_is_taken_over(file: CheckpointFile) -> None:
    spoilt(file, (DATA / "format-1.json").read_bytes())

    state, said = file.load()

    assert said is None
    assert {it.id: it.owner.pod for it in state.allocations if it.owner} == {
        "0f3a9c1d77e2b845": "llm-train-0",
        "5b1c2d3e4f506172": "notebook-1",
        "77aa00bb11cc22dd": "",
        "kubelet-93c1a2b4d5e6f708": "старый-под",
        "1234567890abcdef": "done-0",
    }
    assert {it.unit for it in state.allocations} == {""}
    file.save(state, durable=False)
    assert file.load() == (state, None)


# Who may read and write it


def test_only_root_reads_it_whatever_the_umask(file: CheckpointFile, state: SavedState) -> None:
    before = os.umask(0)
    try:
        file.save(state, durable=True)
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_a_left_over_temporary_file_lends_no_wider_mode(file: CheckpointFile, state: SavedState) -> None:
    file.path.parent.mkdir()
    fresh = file.path.with_suffix(".new")
    fresh.write_text("half of")
    fresh.chmod(0o666)

    file.save(state, durable=False)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.load() == (state, None)


def test_a_symlink_in_place_of_the_temporary_file_is_not_followed(
    file: CheckpointFile, state: SavedState, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file.path.parent.mkdir()
    file.path.with_suffix(".new").symlink_to(victim)

    file.save(state, durable=True)

    assert victim.read_text() == "precious"
    assert file.load() == (state, None)


# What cannot be used is set aside


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"garbage", "foreign"),
        (b'{"version":2,"checksum":"sha256:0","data":{}}', "corrupt"),
        (b'{"version":3,"checksum":"sha256:0","data":{}}', "newer"),
    ],
)
def test_what_can_not_be_used_is_kept_under_another_name(
    file: CheckpointFile, content: bytes, why: str
) -> None:
    spoilt(file, content)

    said = refuses(file)

    assert said.why == why
    assert [(it.name, it.read_bytes()) for it in asides(file)] == [(said.aside, content)]
    assert not file.path.exists()


def test_after_setting_aside_the_agent_saves_again(file: CheckpointFile, state: SavedState) -> None:
    spoilt(file)
    refuses(file)

    file.save(state, durable=True)

    assert file.load() == (state, None)


def test_a_file_torn_at_any_byte_is_not_loaded(file: CheckpointFile, state: SavedState) -> None:
    file.save(state, durable=True)
    whole = file.path.read_bytes()

    for length in range(len(whole)):
        spoilt(file, whole[:length])
        refuses(file)
    spoilt(file, whole)
    assert file.load() == (state, None)


def test_a_file_without_end_is_not_read_to_the_end(file: CheckpointFile) -> None:
    file.path.parent.mkdir()
    with file.path.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)

    said = refuses(file)

    assert f"larger than {MAX_BYTES} bytes" in said.message


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Path.mkdir, "a directory"),
        (os.mkfifo, "a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
        (lambda path: path.symlink_to(DATA / "format-1.json"), "a symbolic link"),
        (lambda path: path.symlink_to(path), "a symbolic link"),
    ],
    ids=["directory", "pipe", "device", "elsewhere", "loop"],
)
def test_what_is_no_file_is_set_aside_and_not_followed(
    file: CheckpointFile, state: SavedState, make: Callable[[Path], None], found: str
) -> None:
    file.path.parent.mkdir(parents=True)
    make(file.path)

    said = refuses(file)

    assert (said.why, f"is not a file but {found}" in said.message) == ("foreign", True), said
    assert [it.name for it in asides(file)] == [said.aside]
    file.save(state, durable=False)
    assert file.load() == (state, None)


def test_a_file_that_the_disk_can_not_read_is_set_aside(
    file: CheckpointFile, state: SavedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken sector does not mend while an agent waits for it."""
    file.save(state, durable=False)
    monkeypatch.setattr("agent.host.files.read", failing(errno.EIO))

    said = refuses(file)

    assert said.why == "unreadable"
    assert len(asides(file)) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EMFILE])
def test_a_file_that_may_not_be_read_stops_the_start(
    file: CheckpointFile, state: SavedState, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Starting empty would call faulty cards healthy, and the file is as good as it was."""
    file.save(state, durable=False)
    with monkeypatch.context() as patch:
        patch.setattr("agent.host.files.read", failing(number))

        with pytest.raises(
            StateError, match=r"checkpoint\.json: cannot be read: .*; mend it, or move it"
        ) as refusal:
            file.load()

    assert os.strerror(number) in str(refusal.value)
    assert file.load() == (state, None)


def test_the_newest_files_set_aside_are_kept(file: CheckpointFile) -> None:
    for n in range(MAX_KEPT_FILES + 3):
        spoilt(file, b"garbage %d" % n)
        refuses(file)

    assert [it.read_bytes() for it in asides(file)] == [
        b"garbage %d" % n for n in range(3, MAX_KEPT_FILES + 3)
    ]


def test_the_file_set_aside_is_kept_though_the_clock_went_back(file: CheckpointFile) -> None:
    spoilt(file)
    for n in range(MAX_KEPT_FILES):
        file.path.with_name(f"checkpoint.json.corrupt-2999010{n}T000000-1").touch()

    said = refuses(file)

    assert said.aside in {it.name for it in asides(file)}
    assert len(asides(file)) == MAX_KEPT_FILES


@pytest.mark.parametrize("years", [range(1970, 1978), range(2038, 2030, -1)], ids=["forth", "back"])
def test_of_the_files_set_aside_the_last_ones_are_kept_whatever_the_clock_said(
    file: CheckpointFile, monkeypatch: pytest.MonkeyPatch, years: range
) -> None:
    for year in years:
        monkeypatch.setattr("agent.state.damaged_files.datetime", Clock(year))
        spoilt(file, str(year).encode())
        refuses(file)

    assert [int(it.read_bytes()) for it in asides(file)] == list(years)[-MAX_KEPT_FILES:]


def test_files_set_aside_by_an_older_agent_go_first(file: CheckpointFile) -> None:
    spoilt(file)
    for n in range(MAX_KEPT_FILES):
        file.path.with_name(f"checkpoint.json.corrupt-2999010{n}T000000.000000Z").touch()

    for _ in range(MAX_KEPT_FILES):
        spoilt(file)
        refuses(file)

    assert [it.name.split("-")[1] for it in asides(file)] == ["1", "2", "3", "4", "5"]


def test_a_directory_set_aside_is_not_emptied_and_stops_nothing(file: CheckpointFile) -> None:
    spoilt(file)
    precious = file.path.with_name("checkpoint.json.corrupt-20200101T000000-1") / "precious"
    precious.parent.mkdir()
    precious.touch()
    for n in range(MAX_KEPT_FILES):
        file.path.with_name(f"checkpoint.json.corrupt-2020010{n + 2}T000000-1").touch()

    said = refuses(file)

    assert said.aside
    assert precious.exists()


def test_what_can_not_be_set_aside_is_said_and_not_overwritten_before_it_can(
    file: CheckpointFile, state: SavedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(errno.EROFS))
        said = refuses(file)
        with pytest.raises(OSError, match="Read-only"):
            file.save(state, durable=False)

    assert (said.why, said.aside) == ("foreign", "")
    assert "it cannot be set aside (Read-only file system) and is not overwritten before it is" in (
        said.message
    )
    assert file.path.read_bytes() == b"garbage"
    file.save(state, durable=False)
    assert [it.read_bytes() for it in asides(file)] == [b"garbage"]
    file.save(LATER, durable=False)
    assert file.load() == (LATER, None)
    assert len(asides(file)) == 1


def test_what_a_person_took_away_needs_not_be_set_aside(
    file: CheckpointFile, state: SavedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(errno.EROFS))
        refuses(file)
    file.path.unlink()

    file.save(state, durable=False)

    assert file.load() == (state, None)


# Disks that fail


FULL = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]
#: Step of writing to which state is in the file after it failed.
STEPS: Mapping[str, str] = {
    "open": "old",
    "write": "old",
    "write half": "old",
    "fsync": "old",
    "close": "old",
    "replace": "old",
    "sync directory": "new",
}


def fail_at(step: str, number: int, patch: pytest.MonkeyPatch) -> None:
    """Let one step of writing fail, and all others do what they do."""
    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "close", "replace")}
    fail = failing(number)
    written: list[int] = []

    def opens(path: Any, flags: int, *more: Any) -> Any:
        return fail() if flags & os.O_CREAT else real["open"](path, flags, *more)

    def writes_half(descriptor: int, text: Any) -> Any:
        if written:
            return fail()
        written.append(real["write"](descriptor, text[: len(text) // 2]))
        return written[0]

    def syncs(descriptor: int) -> Any:
        directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        return fail() if directory == (step == "sync directory") else real["fsync"](descriptor)

    def closes(descriptor: int) -> Any:
        real["close"](descriptor)
        return fail()

    match step:
        case "open":
            patch.setattr(os, "open", opens)
        case "write half":
            patch.setattr(os, "write", writes_half)
        case "fsync" | "sync directory":
            patch.setattr(os, "fsync", syncs)
        case "close":
            patch.setattr(os, "close", closes)
        case _:
            patch.setattr(os, step, fail)


@pytest.mark.parametrize("number", FULL, ids=[errno.errorcode[it] for it in FULL])
@pytest.mark.parametrize("step", STEPS)
def test_a_write_that_fails_at_any_step_leaves_a_whole_file(
    file: CheckpointFile, state: SavedState, step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(state, durable=True)
    with monkeypatch.context() as patch:
        fail_at(step, number, patch)

        with pytest.raises(OSError, match=os.strerror(number)) as refusal:
            file.save(LATER, durable=True)

    assert refusal.value.errno == number
    assert [path.name for path in file.path.parent.iterdir()] == ["checkpoint.json"]
    assert file.load() == (state if STEPS[step] == "old" else LATER, None)
    file.save(LATER, durable=True)
    assert file.load() == (LATER, None)


def test_a_disk_that_takes_a_few_bytes_at_a_time_gets_them_all(
    file: CheckpointFile, state: SavedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, text[:7]))

    file.save(state, durable=False)

    assert file.load() == (state, None)


@pytest.mark.parametrize(("durable", "synced"), [(False, []), (True, ["checkpoint.new", "state"])])
def test_only_a_durable_save_waits_for_the_disk(
    file: CheckpointFile, state: SavedState, durable: bool, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file before it has its name, the directory after."""
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda it: seen.append(Path(os.readlink(f"/proc/self/fd/{it}")).name))

    file.save(state, durable=durable)

    assert seen == synced


def test_a_directory_that_is_a_file_fails_the_save_and_touches_nothing(
    tmp_path: Path, state: SavedState
) -> None:
    (tmp_path / "state").write_text("a file")

    with pytest.raises(OSError, match="exists"):
        CheckpointFile(tmp_path / "state" / "checkpoint.json").save(state, durable=True)

    assert (tmp_path / "state").read_text() == "a file"


def test_the_boot_id_is_the_kernels_or_empty(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("3f0c\n")

    assert boot_id(tmp_path / "boot_id") == "3f0c"
    assert boot_id(tmp_path / "none") == ""


# A look by who may not hold the lock


def test_a_look_sees_what_was_saved(file: CheckpointFile, state: SavedState) -> None:
    file.save(state, durable=False)

    assert (file.peek().labels, file.peek().config) == (state.labels, state.config)


@pytest.mark.parametrize("content", [None, b"", b"half", b"[]"])
def test_a_look_at_what_is_no_checkpoint_sees_nothing_and_moves_nothing(
    file: CheckpointFile, content: bytes | None
) -> None:
    file.path.parent.mkdir()
    if content is not None:
        file.path.write_bytes(content)

    assert file.peek() == SavedState()
    assert [it.name for it in file.path.parent.iterdir()] == ([file.path.name] if content is not None else [])


def test_a_look_that_is_forbidden_sees_nothing(file: CheckpointFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("agent.host.files.read", refused)

    assert file.peek() == SavedState()


def with_ids(state: SavedState, *ids: str) -> SavedState:
    return structs.replace(state, allocations=tuple(replace(state.allocations[0], id=it) for it in ids))


def test_the_file_is_the_same_as_of_a_state_that_is_encoded_at_once(state: SavedState) -> None:
    encoder = Encoder()

    for each in (
        state,
        with_ids(state, "a", "b"),
        with_ids(state, "b"),
        with_ids(state, "b", "b"),
        SavedState(),
    ):
        assert sealed(encoder.content(each)) == sealed(each)


def test_an_allocation_is_encoded_anew_when_it_has_changed_and_not_otherwise(
    state: SavedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    encode = msgspec.json.encode

    def noted(it: Allocation) -> bytes:
        made.append(it.id)
        return encode(it)

    monkeypatch.setattr(msgspec.json, "encode", noted)
    encoder, both = Encoder(), with_ids(state, "a", "b")
    encoder.content(both)
    encoder.content(both)
    assert made == ["a", "b"]

    encoder.content(
        structs.replace(both, allocations=(both.allocations[0], replace(both.allocations[1], since=1)))
    )

    assert made == ["a", "b", "b"]


def test_what_is_no_longer_in_the_state_is_forgotten(state: SavedState) -> None:
    encoder = Encoder()
    encoder.content(with_ids(state, *map(str, range(100))))

    encoder.content(with_ids(state, "1"))

    assert len(encoder._known) == 1
