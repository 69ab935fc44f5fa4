"""What a vendor's process may answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from agent.isolation import child, vendor_answers
from agent.vendor_api.agent import Proof

from .strategies import answer_bytes

LISTS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "discover": (vendor_answers.devices, 1024, {"uuid": "a", "index": 0}),
    "health_events": (vendor_answers.events, 1024, {"uuid": "a", "fault": None}),
    "links": (vendor_answers.links, 256, {"peer": "a"}),
    "partitions": (vendor_answers.partitions, 8192, {"id": "a", "uuid": "a"}),
}


@pytest.mark.parametrize("call", LISTS)
def test_a_list_without_measure_is_refused(call: str) -> None:
    decode, limit, entry = LISTS[call]
    entries = [{**entry, "uuid": f"dev-{n}"} if "uuid" in entry else entry for n in range(limit + 1)]

    assert len(decode(json.dumps(entries[:-1]).encode())) == limit
    with pytest.raises(vendor_answers.WrongAnswer, match=f"there are {limit + 1} .*, at most {limit} work"):
        decode(json.dumps(entries).encode())


def test_events_for_all_devices_are_few() -> None:
    one = {"uuid": None, "fault": None}

    assert len(vendor_answers.events(json.dumps([one] * 16).encode())) == 16
    with pytest.raises(vendor_answers.WrongAnswer, match="more than 16 events for all devices at once"):
        vendor_answers.events(json.dumps([one] * 17).encode())


def test_an_event_for_no_possible_device_is_refused() -> None:
    with pytest.raises(vendor_answers.WrongAnswer, match="event: uuid: has 16777216 characters"):
        vendor_answers.events(json.dumps([{"uuid": "x" * (16 << 20), "fault": None}]).encode())


@pytest.mark.parametrize("letter", ["x", "\n", "\u202e"])
def test_long_texts_of_a_library_are_cut_and_made_printable(letter: str) -> None:
    text = letter * (1 << 20)
    fault = {"reason": text, "message": text, "cleared_by": ["reset"] * 10_000}
    raw = [{"uuid": "a", "index": 0, "model": text, "fault": fault}]

    (device,) = vendor_answers.devices(json.dumps(raw).encode())
    (event,) = vendor_answers.events(json.dumps([{"uuid": "a", "fault": fault}]).encode())

    assert device.fault is not None
    assert device.fault == event.fault
    assert [len(it) for it in (device.fault.reason, device.fault.message, device.model)] == [64, 512, 128]
    assert device.fault.reason.isprintable()
    assert device.fault.reason.endswith("…")
    assert device.fault.cleared_by == (Proof.RESET,)


def test_cdi_specs_without_measure_are_refused() -> None:
    many = {f"v-{n}.json": "{}" for n in range(17)}
    long = {"v-x.json": '{"a": "' + "b" * (4 << 20) + '"}'}

    for specs in (many, long):
        with pytest.raises(vendor_answers.WrongAnswer):
            vendor_answers.cdi(json.dumps(specs).encode())


@pytest.mark.parametrize(
    ("counters", "told"),
    [
        ({f"c{n}": 0 for n in range(17)}, "counters: there are 17, at most 16 work"),
        ({"c" * 65: 0}, "has 65 characters, at most 64 work"),
        ({"energy": -1}, "counters: energy: -1 is not between"),
        ({"energy": 1 << 63}, "counters: energy: 9223372036854775808 is not between"),
        ({"energy": "5"}, "int"),
    ],
)
def test_counters_without_measure_are_refused(counters: dict[str, object], told: str) -> None:
    most = {"uuid": "a", "index": 0, "counters": {f"{n:064}": (1 << 63) - 1 for n in range(16)}}
    assert len(vendor_answers.devices(json.dumps([most]).encode())[0].counters) == 16

    with pytest.raises(vendor_answers.WrongAnswer, match=told):
        vendor_answers.devices(json.dumps([{**most, "counters": counters}]).encode())


@pytest.mark.parametrize("call", sorted(child.CALLS))
@given(raw=answer_bytes())
def test_any_bytes_are_an_answer_or_are_refused_in_words(call: str, raw: bytes) -> None:
    assert len(_refusal(call, raw)) <= 1000


def _refusal(call: str, raw: bytes) -> str:
    """What is said of an answer; empty where it is taken."""
    try:
        vendor_answers.decode(call, raw)
    except vendor_answers.WrongAnswer as exc:
        return str(exc)
    return ""


@pytest.mark.parametrize("call", sorted(child.CALLS - {"close", "release", "start_sampling", "sample"}))
def test_an_answer_that_nests_deeper_than_we_can_read_is_a_wrong_one(call: str) -> None:
    with pytest.raises(vendor_answers.WrongAnswer):
        vendor_answers.decode(call, b"[" * 100_000 + b"]" * 100_000)
