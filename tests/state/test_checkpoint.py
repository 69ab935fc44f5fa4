"""The checkpoint on disk: round trips, damage of every kind, and who may read it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from agent.core.errors import StateError
from agent.core.health import Record
from agent.core.model import Allocation, AllocationState, Owner
from agent.core.vendor import Fault, Proof
from agent.state.checkpoint import FORMAT, KEPT_CORRUPT, MAX_BYTES, CheckpointFile, Saved, boot_id

STATE = Saved(
    boot_id="3f0c",
    allocations=(
        Allocation(
            "one",
            "acme.com/gpu",
            "acme",
            ("a::0",),
            ("a",),
            AllocationState.DONE,
            12.5,
            owner=Owner("uid-1", "main", "default", "web-0"),
            partitions=("slice-1",),
            seen_alive=True,
        ),
    ),
    health={
        "a": Record(Fault("xid-79", "fell off the bus", cleared_by=(Proof.REBOOT,)), 3.0, told_healthy=False)
    },
)


@pytest.fixture
def file(tmp_path: Path) -> CheckpointFile:
    return CheckpointFile(tmp_path / "state" / "checkpoint.json")


def saved(file: CheckpointFile, state: Saved = STATE) -> bytes:
    file.save(state, durable=True)
    return file.path.read_bytes()


def aside(file: CheckpointFile) -> list[Path]:
    return sorted(file.path.parent.glob("checkpoint.json.corrupt-*"))


def refuses(file: CheckpointFile, content: bytes) -> str:
    """Put the content in place; say how the file was turned down, and check that it was."""
    file.path.parent.mkdir(exist_ok=True)
    file.path.write_bytes(content)
    state, complaint = file.load()
    assert state == Saved()
    assert str(file.path) in complaint
    assert not file.path.exists()
    assert aside(file)[-1].read_bytes() == content
    return complaint


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_saved_is_loaded(file: CheckpointFile, durable: bool) -> None:
    file.save(STATE, durable=durable)

    assert file.load() == (STATE, "")


@given(
    st.builds(
        Saved,
        boot_id=strategies.texts,
        allocations=st.lists(strategies.allocations, max_size=4).map(tuple),
        health=st.dictionaries(strategies.texts, strategies.records, max_size=4),
    )
)
def test_any_state_round_trips(state: Saved) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = CheckpointFile(Path(directory) / "checkpoint.json")

        file.save(state, durable=False)

        assert file.load() == (state, "")


def test_no_file_and_no_directory_is_a_first_start(file: CheckpointFile) -> None:
    assert file.load() == (Saved(), "")


def test_a_later_save_replaces_an_earlier_one(file: CheckpointFile) -> None:
    file.save(STATE, durable=False)

    file.save(Saved(boot_id="later"), durable=True)

    assert file.load() == (Saved(boot_id="later"), "")
    assert [path.name for path in file.path.parent.iterdir()] == ["checkpoint.json"]


def test_only_root_reads_it_whatever_the_umask(file: CheckpointFile) -> None:
    before = os.umask(0)
    try:
        file.save(STATE, durable=True)
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_a_left_over_temporary_file_lends_no_wider_mode(file: CheckpointFile) -> None:
    file.path.parent.mkdir()
    fresh = file.path.with_suffix(".new")
    fresh.touch()
    fresh.chmod(0o666)

    file.save(STATE, durable=False)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_symlink_in_place_of_the_temporary_file_is_refused(file: CheckpointFile, tmp_path: Path) -> None:
    saved(file)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file.path.with_suffix(".new").symlink_to(victim)

    with pytest.raises(OSError, match="symbolic links"):
        file.save(Saved(), durable=True)

    assert victim.read_text() == "precious"
    assert file.load() == (STATE, "")


def test_a_file_cut_off_anywhere_is_set_aside(file: CheckpointFile) -> None:
    whole = saved(file)

    for length in range(len(whole)):
        refuses(file, whole[:length])


def test_a_flipped_bit_is_noticed_anywhere(file: CheckpointFile) -> None:
    whole = saved(file)

    for place in range(len(whole)):
        for bit in (0x01, 0x20, 0x80):
            damaged = bytearray(whole)
            damaged[place] ^= bit
            file.path.write_bytes(damaged)

            state, complaint = file.load()

            assert (state, bool(complaint)) == (Saved(), True)


@given(st.binary(max_size=200))
def test_foreign_bytes_never_raise(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = CheckpointFile(Path(directory) / "checkpoint.json")

        refuses(file, content)


FOREIGN: Mapping[str, bytes] = {
    "empty": b"",
    "zeros": bytes(4096),
    "array": b"[]",
    "null": b"null",
    "another agent's": b'{"Data":{"PodDeviceEntries":null},"Checksum":1}',
    "nested without end": b'{"version":1,"checksum":"","data":' + b"[" * 200_000,
    "not UTF-8": b'{"version":1,"checksum":"\xff","data":{}}',
    "a number too large": b'{"version":1e999,"checksum":"","data":{}}',
    "an unknown field": b'{"version":1,"checksum":"","data":{},"more":1}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_content_is_set_aside_and_said(file: CheckpointFile, content: bytes) -> None:
    complaint = refuses(file, content)

    assert "not a checkpoint of ours" in complaint
    assert "starting without it; owners are read from the kubelet again" in complaint


def test_a_newer_format_is_set_aside_and_named(file: CheckpointFile) -> None:
    newer = json.loads(saved(file)) | {"version": FORMAT + 1}

    complaint = refuses(file, json.dumps(newer).encode())

    assert f"format {FORMAT + 1}, this agent reads {FORMAT}" in complaint


def test_an_edited_file_is_named_as_such(file: CheckpointFile) -> None:
    complaint = refuses(file, saved(file).replace(b"web-0", b"web-1"))

    assert "its checksum does not match" in complaint


@pytest.mark.parametrize(
    "data",
    [b'{"allocations":1}', b'{"allocations":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"boot_id":"\xff"}'],
)
def test_content_that_is_whole_and_wrong_is_set_aside(file: CheckpointFile, data: bytes) -> None:
    checksum = f"sha256:{hashlib.sha256(data).hexdigest()}".encode()

    refuses(file, b'{"version":1,"checksum":"' + checksum + b'","data":' + data + b"}")


def test_a_file_without_end_is_not_read_to_the_end(file: CheckpointFile) -> None:
    file.path.parent.mkdir()
    with file.path.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)

    _, complaint = file.load()

    assert f"larger than {MAX_BYTES} bytes" in complaint


def test_the_newest_files_set_aside_are_kept(file: CheckpointFile) -> None:
    file.path.parent.mkdir()
    for n in range(KEPT_CORRUPT + 3):
        file.path.with_name(f"checkpoint.json.corrupt-2020010{n}T000000-1").touch()

    refuses(file, b"garbage")

    kept = aside(file)
    assert len(kept) == KEPT_CORRUPT
    assert kept[0].name == "checkpoint.json.corrupt-20200104T000000-1"


def test_after_setting_aside_the_agent_saves_again(file: CheckpointFile) -> None:
    refuses(file, b"garbage")

    file.save(STATE, durable=True)

    assert file.load() == (STATE, "")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, "is not a file but a directory"),
        (os.mkfifo, "is not a file but a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a file but a device"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
    ids=["directory", "pipe", "device", "loop"],
)
def test_a_file_that_can_not_be_read_stops_the_start(
    file: CheckpointFile, make: Callable[[Path], None], why: str
) -> None:
    """Starting empty would call faulty cards healthy and overwrite what a person could still mend."""
    file.path.parent.mkdir(parents=True)
    make(file.path)

    with pytest.raises(
        StateError, match=r"checkpoint\.json: can not be read: .*; mend it, or move it"
    ) as refusal:
        file.load()

    assert why in str(refusal.value)
    assert aside(file) == []


def test_a_directory_that_is_a_file_fails_the_save_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")

    with pytest.raises(OSError, match="exists"):
        CheckpointFile(tmp_path / "state" / "checkpoint.json").save(STATE, durable=True)

    assert (tmp_path / "state").read_text() == "a file"


def test_the_boot_id_is_the_kernels_or_empty(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("3f0c\n")

    assert boot_id(tmp_path / "boot_id") == "3f0c"
    assert boot_id(tmp_path / "none") == ""
