"""Bytes of every kind: what is whole is read, everything else is turned down with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.state.checkpoint import SavedState
from agent.state.file_envelope import Unusable, Why, opened, sealed
from agent.state.file_formats import FORMAT

OLD = (Path(__file__).parent / "data" / "format-1.json").read_bytes()
#: As realistic as the file of the older agent, in today's format.
WHOLE = sealed(opened(OLD, SavedState))


def refusal(text: bytes) -> Unusable:
    with pytest.raises(Unusable) as caught:
        opened(text, SavedState)
    return caught.value


def of_format(version: int, data: bytes) -> bytes:
    """A file whose checksum is right, whatever is in it."""
    format_ = b"" if version == 1 else b"%d " % version
    checksum = hashlib.sha256(format_ + data).hexdigest()
    return b'{"version":%d,"checksum":"sha256:%s","data":%s}' % (version, checksum.encode(), data)


@pytest.mark.parametrize("text", [WHOLE, OLD], ids=["today", "older"])
def test_a_file_torn_at_any_byte_is_turned_down(text: bytes) -> None:
    for length in range(len(text)):
        assert refusal(text[:length]).why == ("empty" if length == 0 else "corrupt"), length


@settings(max_examples=500)
@given(st.data(), st.sampled_from([WHOLE, OLD]))
def test_a_changed_byte_is_noticed_anywhere(data: st.DataObject, text: bytes) -> None:
    place = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda it: it != text[place]))

    refusal(text[:place] + bytes([byte]) + text[place + 1 :])


def test_a_changed_byte_is_noticed_at_each_place_of_the_envelope() -> None:
    for place in range(WHOLE.index(b'"data"')):
        for byte in range(256):
            if byte != WHOLE[place]:
                refusal(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])


@given(st.binary(max_size=200))
def test_strange_bytes_are_turned_down(text: bytes) -> None:
    refusal(text)


UNUSABLE: Mapping[str, tuple[bytes, Why, str]] = {
    "empty": (b"", "empty", "it is empty"),
    "zeros": (bytes(4096), "empty", "it is empty"),
    "array": (b"[]", "foreign", "not a checkpoint of this agent"),
    "null": (b"null", "foreign", "not a checkpoint of this agent"),
    "garbage": (b"\x00\xff garbage", "foreign", "not a checkpoint of this agent"),
    "another agent's": (
        b'{"Data":{"PodDeviceEntries":null},"Checksum":1}',
        "foreign",
        "not a checkpoint of this agent",
    ),
    "nested without end": (b'{"version":1,"checksum":"","data":' + b"[" * 200_000, "corrupt", "it is torn"),
    "not UTF-8": (b'{"version":1,"checksum":"\xff","data":{}}', "corrupt", "it is torn"),
    "a number too large": (b'{"version":1e999,"checksum":"","data":{}}', "corrupt", "it is torn"),
    "an unknown field": (b'{"version":2,"checksum":"","data":{},"more":1}', "corrupt", "it is torn"),
    "newer": (
        of_format(FORMAT + 1, b"{}"),
        "newer",
        f"format {FORMAT + 1}, this agent reads up to {FORMAT}",
    ),
    "newer in another envelope": (b'{"version":99,"seal":{}}', "newer", "format 99"),
    "older than the first": (of_format(0, b"{}"), "corrupt", "is not what format 0 says"),
    "edited": (WHOLE.replace(b"notebook-1", b"notebook-2"), "corrupt", "its checksum does not match"),
    "an older format by name alone": (
        WHOLE.replace(b'"version":2', b'"version":1'),
        "corrupt",
        "its checksum does not match",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_can_not_be_used_is_named(name: str) -> None:
    text, why, words = UNUSABLE[name]

    found = refusal(text)

    assert (found.why, words in str(found)) == (why, True), found


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
@pytest.mark.parametrize(
    "data",
    [
        b"5",
        b"null",
        b'{"allocations":1}',
        b'{"allocations":[1]}',
        b'{"allocations":[{}]}',
        b'{"allocations":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"boot_id":"\xff"}',
        b'{"health":{"a":{"since":"yesterday"}}}',
    ],
)
def test_content_that_is_whole_and_wrong_is_turned_down(version: int, data: bytes) -> None:
    assert opened(of_format(version, b"{}"), SavedState) == SavedState()

    assert refusal(of_format(version, data)).why == "corrupt"


def test_a_file_of_the_first_format_is_read_with_nothing_lost() -> None:
    """Written by an agent of that format, field by field what is in it."""
    old: Any = json.loads(OLD)["data"]
    for it in old["allocations"]:
        del it["seen_alive"], it["acks"]  # what nobody asks any more, and what nobody ever wrote

    new = msgspec.to_builtins(opened(OLD, SavedState))

    assert contains(new, old)
    assert [len(new[part]) for part in ("allocations", "health", "devices")] == [6, 2, 2]
    assert (new["cordons"], new["labels"], new["config"]) == ({}, {}, "")


def test_a_checkpoint_with_words_owed_to_schedulers_is_read_without_them(state: SavedState) -> None:
    """Of an agent that kept room for them; what pods are to say follows from the rest now."""
    old: Any = msgspec.to_builtins(state)
    old["allocations"][0]["acks"] = [{"dialect": "acme", "message": {"assigned": "true"}}]

    assert opened(sealed(old), SavedState) == state


def contains(new: Any, old: Any) -> bool:
    """Whether everything of the old document is in the new one, which may know more."""
    if isinstance(old, dict):
        return all(key in new and contains(new[key], it) for key, it in old.items())
    if isinstance(old, list):
        return len(new) == len(old) and all(map(contains, new, old))
    return bool(new == old)
