"""The kubelet's checkpoint is read again where the file may have changed, and never believed when broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host import files
from agent.kubelet import checkpoint_reader
from agent.kubelet.checkpoint_reader import SECOND_NS, YOUNG_NS, CheckpointReader
from agent.kubelet.kubelet_checkpoint import KubeletCheckpoint, parse
from agent.kubelet.kubelet_directory import FileIdentity
from agent.kubelet.kubelet_errors import KubeletError

from .test_kubelet_checkpoint import RECORDED_1_32, RECORDED_1_36, entry, written


def read(path: Path, *, prove: bool = True) -> KubeletCheckpoint | None:
    return CheckpointReader(path).read(prove=prove)


def test_no_file_says_nothing(tmp_path: Path) -> None:
    """It is no word that nothing was given out: somebody removed it, or it was never written."""
    assert read(tmp_path / "kubelet_internal_checkpoint") is None


@pytest.mark.parametrize("key", ["PodUID", "ContainerName", "ResourceName"])
def test_half_a_character_is_refused_for_it_could_be_written_down_nowhere(key: str, tmp_path: Path) -> None:
    content = json.loads(RECORDED_1_36)
    content["Data"]["PodDeviceEntries"][0][key] = "\ud800"
    (tmp_path / "file").write_text(json.dumps(content))

    with pytest.raises(KubeletError, match="corrupt"):
        read(tmp_path / "file", prove=False)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (RECORDED_1_36.replace(b"1772914107", b"1"), "its checksum is 1, its content makes 1772914107"),
        (RECORDED_1_36.replace(b'"a::2"]', b'"a::1"]'), "checksum"),
        (RECORDED_1_36[:-40], ""),
        (b"", ""),
        (b"\xff\xfe", ""),
        (b"[]", "no object"),
        (b'{"Data":null}', "no object"),
        (b'{"Data":{"PodDeviceEntries":[3]}}', "no object"),
        (b'{"Data":{"PodDeviceEntries":4}}', ""),
        (b'{"Data":{"RegisteredDevices":[1]}}', ""),
        (b"[" * 100_000, ""),
        (written({"PodDeviceEntries": [entry({"0": [1]})]}).replace(b"[1]", b"[2]"), "IDs"),
        (b'{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}', "PodUID"),
        (b'{"Data":{"PodDeviceEntries":[{"AllocResp":"%"}]}}', "base64"),
        (b'{"Data":{"PodDeviceEntries":[{"AllocResp":7}]}}', "base64"),
        (b'{"Data":{"PodDeviceEntries":[{"AllocResp":"Cg=="}]}}', "AllocResp"),
        (b'{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"x":[]}}]}}', ""),
        (b'{"Data":{"PodDeviceEntries":[{"PodUID":"\\ud800"}]}}', ""),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(raw)

    with pytest.raises(KubeletError, match="kubelet_internal_checkpoint is corrupt") as refusal:
        read(path)

    assert why in str(refusal.value)


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    for cut in range(len(RECORDED_1_36)):
        path.write_bytes(RECORDED_1_36[:cut])
        with pytest.raises(KubeletError):
            read(path)


def test_a_directory_or_a_pipe_in_its_place_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path, kind in ((tmp_path, "directory"), (tmp_path / "pipe", "pipe"), (Path("/dev/zero"), "device")):
        with pytest.raises(KubeletError, match=f"cannot be read: is not a file but a {kind}"):
            read(path)


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.kubelet.checkpoint_reader.MAX_SIZE", 100)
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(RECORDED_1_36)

    with pytest.raises(KubeletError, match="more than 100 bytes"):
        read(path)


def test_the_checksum_is_proven_unless_it_is_told_not_to(tmp_path: Path) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    file.write_bytes(RECORDED_1_36.replace(b"1772914107", b"1"))

    assert read(file, prove=False) == parse(RECORDED_1_36)
    with pytest.raises(KubeletError, match="checksum"):
        read(file)


class Disk:
    """One file that is written in place, on a file system whose times are those of the last tick."""

    def __init__(self, tick: int) -> None:
        self.now = 1_700_000_000 * SECOND_NS
        self.tick = tick
        self.content: bytes | None = None
        self.changed = 0
        self.reads = 0
        #: Writes that come while a reader is between its looks at the file.
        self.meanwhile: list[bytes | None] = []

    def write(self, content: bytes | None) -> None:
        self.content, self.changed = content, self.now // self.tick * self.tick

    def identify(self, path: Path) -> FileIdentity | None:
        found = None if self.content is None else FileIdentity(1, 2, self.changed)
        self._go_on()
        return found

    def read(self, path: Path, limit: int) -> bytes:
        self.reads += 1
        if self.content is None:
            raise FileNotFoundError(2, "No such file", str(path))
        return self.content

    def clock(self) -> int:
        now = self.now
        self._go_on()
        return now

    def _go_on(self) -> None:
        if self.meanwhile:
            self.write(self.meanwhile.pop())

    def reader(self, monkeypatch: pytest.MonkeyPatch) -> CheckpointReader:
        monkeypatch.setattr(checkpoint_reader, "identify", self.identify)
        monkeypatch.setattr(files, "read", self.read)
        return CheckpointReader(Path("/kubelet_internal_checkpoint"), self.clock)


FILES = [RECORDED_1_32, RECORDED_1_36, RECORDED_1_36.replace(b"uid-1", b"uid-3"), RECORDED_1_36[:-40], None]
CONTENTS = st.sampled_from(FILES)
STEPS = st.one_of(
    st.tuples(st.just("write"), CONTENTS),
    st.tuples(st.just("write while it is read"), CONTENTS),
    st.tuples(st.just("read"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000_000, YOUNG_NS, 3 * SECOND_NS])),
)


@given(st.lists(STEPS, max_size=30), st.sampled_from([1, 4_000_000, 10_000_000, SECOND_NS]))
def test_what_is_read_is_what_the_file_has_now(steps: list[tuple[str, Any]], tick: int) -> None:
    """On any file system, for any history of the file, with changes while the file is read."""
    disk = Disk(tick)
    with pytest.MonkeyPatch.context() as patch:
        reader = disk.reader(patch)
        for step, value in [*steps, ("read", False), ("read", True)]:
            if step == "wait":
                disk.now += value
            elif step == "write":
                disk.write(value)
            elif step == "write while it is read":
                disk.meanwhile.append(value)
            else:
                found = outcome(lambda: reader.read(prove=value))  # noqa: B023
                fresh = CheckpointReader(Path("/kubelet_internal_checkpoint"), disk.clock)
                disk.meanwhile.clear()
                assert found == outcome(lambda: fresh.read(prove=value))  # noqa: B023


def outcome(read: Callable[[], KubeletCheckpoint | None]) -> KubeletCheckpoint | str | None:
    try:
        return read()
    except KubeletError as exc:
        return str(exc)


def test_a_file_that_has_not_changed_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tick=1)
    reader = disk.reader(monkeypatch)
    disk.now += 1
    disk.write(RECORDED_1_36)
    disk.now += YOUNG_NS

    first = reader.read()

    assert reader.read() is first
    assert disk.reads == 1


@pytest.mark.parametrize(("tick", "age"), [(1, YOUNG_NS - 1), (SECOND_NS, 10 * SECOND_NS)])
def test_a_file_that_may_change_unseen_is_read_again_and_not_decoded(
    monkeypatch: pytest.MonkeyPatch, tick: int, age: int
) -> None:
    disk = Disk(tick)
    reader = disk.reader(monkeypatch)
    disk.now += 1
    disk.write(RECORDED_1_36)
    disk.now += age

    first = reader.read()

    assert reader.read() is first
    assert disk.reads == 2


def test_a_file_that_replaces_another_is_read(tmp_path: Path) -> None:
    reader = CheckpointReader(tmp_path / "file", now=lambda: 2**62)
    for raw in (RECORDED_1_32, RECORDED_1_36, RECORDED_1_32):
        (tmp_path / "new").write_bytes(raw)
        (tmp_path / "new").rename(tmp_path / "file")
        assert reader.read() == parse(raw)


def test_a_file_that_is_gone_and_back_is_read(tmp_path: Path) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    reader = CheckpointReader(file)
    file.write_bytes(RECORDED_1_36)
    assert reader.read() == parse(RECORDED_1_36)

    file.unlink()
    assert reader.read() is None

    file.write_bytes(RECORDED_1_32)
    assert reader.read() == parse(RECORDED_1_32)


def test_a_broken_file_does_not_hide_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "kubelet_internal_checkpoint"
    reader = CheckpointReader(file)
    file.write_bytes(RECORDED_1_36)
    assert reader.read() == parse(RECORDED_1_36)

    file.write_bytes(RECORDED_1_36[:-40])
    with pytest.raises(KubeletError, match="corrupt"):
        reader.read()

    file.write_bytes(RECORDED_1_36)
    assert reader.read() == parse(RECORDED_1_36)
