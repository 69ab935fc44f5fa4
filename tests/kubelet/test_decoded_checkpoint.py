"""A checkpoint that is decoded after others is decoded as if it were the first, whatever the others were."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet import decoded_checkpoint
from agent.kubelet.container_edit_messages import response
from agent.kubelet.decoded_checkpoint import DecodedCheckpoint
from agent.kubelet.kubelet_checkpoint import WRONG, CheckpointEntry, KubeletCheckpoint, parse, parse_entry
from agent.vendor_api.agent import ContainerEdits

from .test_kubelet_checkpoint import RECORDED_1_32, RECORDED_1_36

ANSWER = base64.b64encode(response(ContainerEdits(annotations={"xpu-agent.io/allocation": "abc"}))).decode()
#: Names with the separators of the file in them, which have backslashes there.
NAMES = st.sampled_from(
    ["u", "v", "", "\u00fc\U0001f600", '"},{"PodUID":"', '"}],"RegisteredDevices":{', "\\", "]"]
)
IDS = st.lists(st.sampled_from(["a", "b::1", "},{"]), max_size=2)
ENTRIES = st.fixed_dictionaries(
    {
        "PodUID": NAMES,
        "ContainerName": NAMES,
        "ResourceName": NAMES,
        "DeviceIDs": st.none() | IDS | st.dictionaries(st.sampled_from(["-1", "0"]), IDS, max_size=2),
        "AllocResp": st.none() | st.sampled_from(["", ANSWER]),
    }
)
LISTS = st.none() | st.dictionaries(NAMES, st.none() | IDS, max_size=2)


@st.composite
def written_files(draw: st.DrawFn) -> bytes:
    """Files of kubelets, and the same content in other forms of JSON."""
    content = {
        "PodDeviceEntries": draw(st.none() | st.lists(ENTRIES, max_size=4)),
        "RegisteredDevices": draw(LISTS),
    }
    if draw(st.integers(0, 9)) == 0:
        content = dict(reversed(content.items()))
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (",", ":"), (", ", ": ")]))
    document = {"Data": content, "Checksum": draw(st.integers(0, 2**32 - 1))}
    text = json.dumps(document, ensure_ascii=draw(st.booleans()), separators=separators)
    return text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"])))


#: What turns a file into a torn, foreign or hostile one.
FRAGMENTS = st.sampled_from(
    [
        b"",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b" ",
        b"NaN",
        b'{"PodUID":"',
        b'},{"PodUID":"',
        b'}],"RegisteredDevices":',
        b'}],"RegisteredDevices":{}},"Checksum":1}',
        b'},"Checksum":01}',
        b'"},{"More":"',
        b'","More":[{"x":"',
        b'"}],"More":"',
        b'","PodUID":"twice',
    ]
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    raw = draw(written_files())
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        start = draw(st.integers(0, len(raw)))
        end = draw(st.just(start) | st.integers(start, min(len(raw), start + 40)))
        raw = raw[:start] + draw(FRAGMENTS) + raw[end:]
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


def outcome(raw: bytes, before: DecodedCheckpoint | None = None) -> KubeletCheckpoint | str:
    """The content, or the error that a reader words."""
    try:
        return parse(raw) if before is None else before.next(raw).content
    except WRONG as exc:
        return str(exc)


@given(st.lists(files(), min_size=1, max_size=5))
def test_a_file_after_any_others_is_decoded_as_the_first(history: list[bytes]) -> None:
    decoded = DecodedCheckpoint()
    for raw in history:
        assert outcome(raw, decoded) == outcome(raw)
        if not isinstance(outcome(raw), str):
            decoded = decoded.next(raw)


@given(st.lists(written_files(), min_size=1, max_size=5))
def test_nothing_is_kept_of_the_files_before(history: list[bytes]) -> None:
    decoded = DecodedCheckpoint()
    for raw in history:
        decoded = decoded.next(raw)

    assert set(map(id, decoded.parts.entries.values())) <= set(map(id, decoded.content.entries))
    assert all(piece in history[-1] for piece in decoded.parts.entries)
    assert decoded.parts.lists == b"{}" or decoded.parts.lists in history[-1]


def document(*entries: str, lists: str = "{}", more: str = "") -> bytes:
    data = f'{{"PodDeviceEntries":[{",".join(entries)}],"RegisteredDevices":{lists}}}'
    return f'{{"Data":{data},"Checksum":1{more}}}'.encode()


A, B = '{"PodUID":"a"}', '{"PodUID":"b","ContainerName":"c"}'


@pytest.mark.parametrize(
    "raw",
    [
        # Cuts between entries that are no cuts between values of the list.
        document('{"PodUID":"x","y":[{"z":1},{"PodUID":"b"}]}', '{"PodUID":"c"},{"z":1}'),
        document('{"PodUID":"x","y":[{"PodUID":"y"},{"PodUID":"z"}]}', A),
        document(A, '{"z":1}', B),
        document(A, "3"),
        # A key twice: the last one counts.
        document(A, lists='{},"PodDeviceEntries":[]'),
        document(A, lists='{},"RegisteredDevices":{"r":["a"]}'),
        document(A, more=',"Data":{}'),
        document(A, more=',"Checksum":2'),
        document('{"PodUID":"a","PodUID":"b"}'),
        # Parts that would be JSON alone, and are none within the file.
        document(A, lists="\ufeff{}"),
        document(A, lists=" {} "),
        document(A, lists="NaN"),
        document(A, lists="null"),
        document(A, lists="[]"),
        document(A, lists=""),
        document(A).replace(b":1}", b":01}"),
        document(A).replace(b":1}", b":-1}"),
        document(A).replace(b":1}", b":1.0}"),
        document(A) + b"\n",
        document(A) + b"}",
        b"\xef\xbb\xbf" + document(A),
        document(A).decode().encode("utf-16"),
        document('{"PodUID":"\\ud83d\\ude00"}'),
        document('{"PodUID":"\\ud83d"}'),
        document(A).replace(b"a", b"\xed\xa0\xbd"),
        document(A).replace(b"a", b"\xff"),
        document('{"PodUID":"\\"},{\\"PodUID\\":\\""}'),
        document(A, A, B, A),
        document(),
        b"",
        b"{}",
    ],
)
@pytest.mark.parametrize("before", [document(), document(A, B), document(A, '{"PodUID":"c"}')])
def test_a_file_of_another_form_is_decoded_whole(raw: bytes, before: bytes) -> None:
    assert outcome(raw, DecodedCheckpoint().next(before)) == outcome(raw)


@pytest.mark.parametrize("raw", [RECORDED_1_32, RECORDED_1_36], ids=["1.32", "1.36"])
def test_of_a_real_kubelets_file_only_new_entries_are_decoded(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded_now: list[str] = []

    def counting(value: Any) -> CheckpointEntry:
        decoded_now.append(value["PodUID"])
        return parse_entry(value)

    monkeypatch.setattr(decoded_checkpoint, "parse_entry", counting)
    content = json.loads(raw)
    first = DecodedCheckpoint().next(raw)
    assert len(decoded_now) == 3
    decoded_now.clear()
    kept = content["Data"]["PodDeviceEntries"]
    content["Data"]["PodDeviceEntries"] = [kept[2], {**kept[1], "PodUID": "uid-3"}, kept[0]]

    changed = json.dumps(content, separators=(",", ":")).encode()
    second = first.next(changed)

    assert decoded_now == ["uid-3"]
    assert second.content == parse(changed)
    assert second.content.registered is first.content.registered


def test_the_same_bytes_are_not_decoded_again() -> None:
    first = DecodedCheckpoint().next(RECORDED_1_36)

    assert first.next(bytes(bytearray(RECORDED_1_36))) is first


def test_the_checksum_is_verified_once_for_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    proven = DecodedCheckpoint().next(RECORDED_1_36).proven()
    monkeypatch.setattr(decoded_checkpoint, "prove", pytest.fail)

    assert proven.next(RECORDED_1_36).proven() is proven


def test_other_bytes_are_not_proven_by_the_bytes_before() -> None:
    proven = DecodedCheckpoint().next(RECORDED_1_36).proven()
    changed = proven.next(RECORDED_1_36.replace(b"1772914107", b"1772914108"))

    with pytest.raises(ValueError, match="its checksum is 1772914108"):
        changed.proven()
