"""The list of what stays on the node: complete, without doubles, and no trouble to the agent."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.state import private_files
from agent.state.uninstall_record import MAX_BYTES, RecordedObject, UninstallRecord, is_out_of_sight

#: Full name of the kind that Koordinator reads cards from.
DEVICES = "devices.scheduling.koordinator.sh"
SPEC, LABELS = Path("/var/run/cdi/acme.com-card.json"), Path("/etc/features.d/xpu-agent")


def test_each_path_is_noted_once_over_all_lives_of_the_agent(tmp_path: Path) -> None:
    for _ in range(2):
        remains = UninstallRecord(tmp_path / "agent.remains")
        for it in (SPEC, LABELS, SPEC):
            remains.note(it)

    assert remains.all() == (SPEC, LABELS)
    assert (tmp_path / "agent.remains").read_text() == f"{SPEC}\n{LABELS}\n"


def test_the_list_is_for_its_owner_alone(tmp_path: Path) -> None:
    UninstallRecord(tmp_path / "agent.remains").note(SPEC)

    assert (tmp_path / "agent.remains").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_takes_nothing_is_tried_again(tmp_path: Path) -> None:
    remains = UninstallRecord(tmp_path / "later" / "agent.remains")
    (tmp_path / "later").touch()  # where its directory should be
    remains.note(SPEC)
    (tmp_path / "later").unlink()

    remains.note(SPEC)

    assert remains.all() == (SPEC,)


def test_a_disk_that_takes_a_part_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remains = UninstallRecord(tmp_path / "agent.remains")
    remains.note(LABELS)
    write = os.write

    def full(descriptor: int, text: bytes) -> int:
        if len(text) <= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, text[:10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        remains.note(SPEC)
    assert remains.all() == (LABELS,)

    remains.note(SPEC)

    assert remains.all() == (LABELS, SPEC)


def test_an_entry_and_what_is_struck_out_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durably: list[bool] = []
    replace = private_files.replace

    def replaced(path: Path, text: bytes, *, durable: bool) -> None:
        durably.append(durable)
        replace(path, text, durable=durable)

    monkeypatch.setattr(private_files, "replace", replaced)
    remains = UninstallRecord(tmp_path / "agent.remains")

    remains.note_features(LABELS)
    remains.forget_features(LABELS)

    assert durably == [True, True]


def test_threads_that_note_and_forget_at_once_lose_nothing(tmp_path: Path) -> None:
    remains = UninstallRecord(tmp_path / "agent.remains")
    names = [f"n{it}" for it in range(20)]
    for it in names:
        remains.note_features(LABELS / it)

    def forget() -> None:
        for it in names:
            remains.forget_features(LABELS / it)

    def note() -> None:
        for it in names:
            remains.note_namespace(it)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(forget), pool.submit(note)]:
            done.result()

    assert remains.namespaces() == tuple(names)
    assert remains.features() == ()


def test_a_list_too_long_to_be_read_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "agent.remains"
    path.write_text(f"{LABELS}\n" * (MAX_BYTES // len(str(LABELS))))
    before = path.read_bytes()
    remains = UninstallRecord(path)

    remains.note(SPEC)

    assert path.read_bytes() == before
    with pytest.raises(OSError, match="larger than"):
        remains.all()


def test_a_name_with_a_line_end_adds_no_second_path(tmp_path: Path) -> None:
    remains = UninstallRecord(tmp_path / "agent.remains")

    remains.note(Path("/tmp/a\n/etc/passwd"))

    assert remains.all() == ()


def test_a_line_that_is_no_absolute_path_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "agent.remains").write_text(f"../x\n\n{SPEC}\n")

    assert UninstallRecord(tmp_path / "agent.remains").all() == (SPEC,)


def test_namespaces_stand_beside_the_paths_and_are_none_of_them(tmp_path: Path) -> None:
    for _ in range(2):
        remains = UninstallRecord(tmp_path / "agent.remains")
        remains.note(SPEC)
        remains.note_namespace("gpu")

    assert remains.all() == (SPEC,)
    assert remains.namespaces() == ("gpu",)
    assert (tmp_path / "agent.remains").read_text() == f"{SPEC}\nnamespace:gpu\n"


def test_a_namespace_that_can_be_none_is_passed_over(tmp_path: Path) -> None:
    long = "a" * 64
    (tmp_path / "agent.remains").write_text(
        f"namespace:\nnamespace:..\nnamespace:a/b\nnamespace:{long}\nnamespace:ok\n"
    )

    assert UninstallRecord(tmp_path / "agent.remains").namespaces() == ("ok",)


def test_files_of_labels_are_told_apart_from_others_and_are_files_all_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        remains = UninstallRecord(tmp_path / "agent.remains")
        remains.note(SPEC)
        remains.note_features(LABELS)

    assert remains.all() == (SPEC, LABELS)
    assert remains.features() == (LABELS,)


def test_a_file_of_labels_that_is_removed_is_struck_out_and_may_come_again(tmp_path: Path) -> None:
    path = tmp_path / "agent.remains"
    remains = UninstallRecord(path)
    remains.note(SPEC)
    remains.note_namespace("gpu")
    remains.note_features(LABELS)

    remains.forget_features(LABELS)

    assert path.read_text() == f"{SPEC}\nnamespace:gpu\n"
    assert path.stat().st_mode & 0o777 == 0o600
    remains.note_features(LABELS)
    assert remains.features() == (LABELS,)


def test_a_namespace_without_our_object_is_struck_out(tmp_path: Path) -> None:
    remains = UninstallRecord(tmp_path / "agent.remains")
    for it in ("gpu", "other"):
        remains.note_namespace(it)

    remains.forget_namespace("gpu")

    assert remains.namespaces() == ("other",)


def test_what_was_never_written_down_is_forgotten_without_a_list(tmp_path: Path) -> None:
    UninstallRecord(tmp_path / "agent.remains").forget_features(LABELS)

    assert not (tmp_path / "agent.remains").exists()


@pytest.mark.parametrize(
    ("environ", "directory", "out_of_sight"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "none", True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".", False),
        ({}, "none", False),
    ],
)
def test_in_a_pod_what_lies_in_a_directory_that_is_not_mounted_is_out_of_sight(
    tmp_path: Path, environ: dict[str, str], directory: str, out_of_sight: bool
) -> None:
    assert is_out_of_sight(tmp_path / directory / "xpu-agent", environ) is out_of_sight


def test_a_device_with_our_cards_is_written_down_and_struck_out(tmp_path: Path) -> None:
    remains = UninstallRecord(tmp_path / "agent.remains")
    for it in ("node-1", "node-1.example.com"):
        remains.note_object(DEVICES, it)

    remains.forget_object(DEVICES, "node-1")

    assert remains.objects() == (RecordedObject("node-1.example.com", DEVICES),)
    assert remains.all() == ()


def test_a_device_that_can_be_no_node_s_is_passed_over(tmp_path: Path) -> None:
    wrong = ("", "..", "a/b", "A", "a" * 254)
    text = "".join(f"device:{it}\n" for it in (*wrong, "ok"))
    (tmp_path / "agent.remains").write_text(text)

    assert UninstallRecord(tmp_path / "agent.remains").objects() == (RecordedObject("ok"),)


def test_an_object_whose_kind_or_name_is_impossible_is_passed_over(tmp_path: Path) -> None:
    wrong = ("object:node", "object::node", f"object:{DEVICES}:", f"object:{DEVICES}:a/b", "object:A:node")
    text = "".join(f"{it}\n" for it in (*wrong, f"object:{DEVICES}:ok"))
    (tmp_path / "agent.remains").write_text(text)

    assert UninstallRecord(tmp_path / "agent.remains").objects() == (RecordedObject("ok", DEVICES),)


def test_an_entry_of_an_earlier_release_is_struck_out_with_the_object_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "agent.remains").write_text("device:node\ndevice:other\n")
    remains = UninstallRecord(tmp_path / "agent.remains")
    remains.note_object(DEVICES, "node")
    assert remains.objects() == (
        RecordedObject("node"),
        RecordedObject("other"),
        RecordedObject("node", DEVICES),
    )

    remains.forget_object(DEVICES, "node")

    assert remains.objects() == (RecordedObject("other"),)


def test_a_list_that_was_removed_with_its_directory_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "agent.remains"
    UninstallRecord(path).note(SPEC)
    remains = UninstallRecord(path)
    remains.note(LABELS)
    path.parent.rename(tmp_path / "old")

    remains.write_again()
    assert UninstallRecord(path).all() == (SPEC, LABELS)

    path.unlink()
    remains.note_namespace("kube-system")
    assert UninstallRecord(path).all() == (SPEC, LABELS)


def test_a_file_that_has_another_content_than_we_wrote_is_anothers(tmp_path: Path) -> None:
    remains, spec = UninstallRecord(tmp_path / "agent.remains"), tmp_path / "spec:1.json"
    for text in ("first", "second"):
        spec.write_text(text)
        remains.note(spec, text)
        assert not remains.is_anothers(spec)

    spec.write_text("first")
    assert remains.is_anothers(spec)
    assert UninstallRecord(tmp_path / "agent.remains").is_anothers(spec)


def test_what_we_write_again_after_another_content_is_ours_again(tmp_path: Path) -> None:
    remains, spec = UninstallRecord(tmp_path / "agent.remains"), tmp_path / "spec.json"
    for text in ("first", "second", "first"):
        spec.write_text(text)
        remains.note(spec, text)

    assert not UninstallRecord(tmp_path / "agent.remains").is_anothers(spec)


def test_a_file_that_is_gone_or_whose_content_was_never_written_down_is_nobody_elses(tmp_path: Path) -> None:
    remains, of_before = UninstallRecord(tmp_path / "agent.remains"), tmp_path / "of-before.json"
    of_before.write_text("whatever")
    remains.note(of_before)
    remains.note(tmp_path / "gone.json", "ours")

    assert not remains.is_anothers(of_before)
    assert not remains.is_anothers(tmp_path / "gone.json")


def test_what_was_written_into_a_file_is_no_file_and_no_object(tmp_path: Path) -> None:
    remains = UninstallRecord(tmp_path / "agent.remains")
    remains.note(SPEC, "ours")

    assert remains.all() == (SPEC,)
    assert (remains.features(), remains.namespaces(), remains.objects()) == ((), (), ())
