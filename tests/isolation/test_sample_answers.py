"""What a sample of use may say: what cannot be true is left out in words, and costs nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.usage.usage_report import VendorSample
from agent.isolation import sample_answers, vendor_answers
from agent.vendor_api.agent import ProcessUsage, Usage

from .strategies import sample_bytes

GOOD_PROCESS = {"uuid": "b", "pid": 2, "memory": 5, "utilization": 1.0}
GOOD_USAGE = {"uuid": "b", "memory_used": 5}


def sampled(usage: Any = None, processes: Any = None) -> VendorSample:
    answers = {"usage": usage, "processes": processes}
    raw = {method: {"answer": answer} for method, answer in answers.items() if answer is not None}
    return read(json.dumps(raw).encode())


def read(raw: bytes) -> VendorSample:
    """Decode the sample; what the quick way makes of the bytes is nothing or the same."""
    found = sample_answers.sample(raw)
    assert sample_answers.quick_sample(raw) in (None, found)
    return found


def test_figures_at_their_bounds_are_taken() -> None:
    process = {"uuid": "a", "pid": 1 << 22, "memory": (1 << 63) - 1, "utilization": 0}
    usage = {
        "uuid": "a",
        "memory_used": 0,
        "utilization": 1,
        "temperature": -40.0,
        "ecc_errors": {"corrected": 0},
    }

    assert sampled([usage], [process]) == VendorSample(
        (Usage("a", 0, utilization=1.0, temperature=-40.0, ecc_errors={"corrected": 0}),),
        (ProcessUsage("a", 1 << 22, (1 << 63) - 1, 0.0),),
    )


def test_more_memory_in_use_than_a_card_has_is_left_out() -> None:
    full, above = ({"uuid": it, "memory_used": used, "memory_total": 7} for it, used in (("a", 7), ("b", 8)))

    sample = sampled([full, above])

    assert sample.usages == (Usage("a", 7, 7), Usage("b", None, 7))
    assert sample.complaints == {
        "usage": "1 figure or entry cannot be used, the first: usage 1: memory_used: "
        "8 is more than memory_total, 7"
    }


def test_a_total_that_cannot_be_true_makes_no_memory_in_use_wrong() -> None:
    sample = sampled([{"uuid": "a", "memory_used": 5, "memory_total": -1}])
    assert sample.usages == (Usage("a", 5),)
    assert "memory_total: -1 is not between" in sample.complaints["usage"]


def test_a_slice_names_its_card_and_a_name_that_no_card_has_costs_only_itself() -> None:
    good, bad = {**GOOD_USAGE, "parent": "card"}, {**GOOD_USAGE, "uuid": "c", "parent": "a b"}

    found = sampled([good, bad])

    assert found.usages == (Usage("b", 5, parent="card"), Usage("c", 5))
    assert "parent: contains ' '" in found.complaints["usage"]


def test_no_process_is_no_complaint() -> None:
    assert sampled([], []) == VendorSample((), ())


@pytest.mark.parametrize(
    ("figure", "why"),
    [
        ({"memory": -1}, "-1 is not between 0 and 2^63"),
        ({"memory": 1 << 63}, "9223372036854775808 is not between 0 and 2^63"),
        ({"memory": 10**400}, "1000000"),
        ({"memory": "5"}, "Expected `int | null`, got `str`"),
        ({"memory": True}, "Expected `int | null`, got `bool`"),
        ({"utilization": -0.1}, "-0.1 is not between 0 and 1"),
        ({"utilization": 1.5}, "1.5 is not between 0 and 1"),
        ({"utilization": "nan"}, "Expected `float | null`, got `str`"),
        ({"utilization": []}, "Expected `float | null`, got `array`"),
    ],
)
def test_a_figure_that_cannot_be_true_costs_the_figure(figure: dict[str, Any], why: str) -> None:
    (name,) = figure
    other: dict[str, Any] = {"memory": 7, "utilization": 0.5}
    entry = {"uuid": "a", "pid": 1, **other, **figure}

    sample = sampled(processes=[GOOD_PROCESS, entry])

    assert sample.processes == (
        ProcessUsage("b", 2, 5, 1.0),
        ProcessUsage("a", 1, **{it: other[it] for it in other if it != name}),
    )
    said = "1 figure or entry cannot be used, the first: process 1: "
    assert sample.complaints["processes"].startswith(f"{said}{name}: {why}")


@pytest.mark.parametrize(
    "entry",
    [
        {"uuid": "a", "pid": 0},
        {"uuid": "a", "pid": -1},
        {"uuid": "a", "pid": (1 << 22) + 1},
        {"uuid": "a", "pid": None},
        {"uuid": "a", "pid": 1.5},
        {"uuid": "a"},
        {"uuid": "", "pid": 1},
        {"uuid": "a b", "pid": 1},
        {"uuid": "x" * 129, "pid": 1},
        {"uuid": 5, "pid": 1},
        {"pid": 1},
    ],
)
def test_a_process_without_a_pid_or_a_device_costs_the_entry(entry: dict[str, Any]) -> None:
    sample = sampled(processes=[entry, GOOD_PROCESS])

    assert sample.processes == (ProcessUsage("b", 2, 5, 1.0),)
    assert sample.complaints["processes"].startswith(
        "1 figure or entry cannot be used, the first: process 0: "
    )


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b'{"uuid":5,"uuid":"a","pid":1}', "Expected `str`, got `int` - at `$.uuid`"),
        (b'{"uuid":"a","pid":1,"memory":"5","memory":5}', "Expected `int | null`, got `str` - at `$.memory`"),
    ],
)
def test_an_entry_whose_fields_are_right_alone_and_wrong_together_costs_the_entry(
    entry: bytes, why: str
) -> None:
    good = json.dumps(GOOD_PROCESS).encode()

    sample = sample_answers.sample(b'{"processes":{"answer":[%b,%b]}}' % (entry, good))

    assert sample.processes == (ProcessUsage("b", 2, 5, 1.0),)
    assert sample.complaints == {
        "processes": f"1 figure or entry cannot be used, the first: process 0: as a whole: {why}"
    }


@pytest.mark.parametrize(
    "figure",
    [
        {"power": -1},
        {"temperature": -300},
        {"clock": 1e30},
        {"ecc_errors": {"corrected": -1}},
        {"ecc_errors": {"c" * 65: 1}},
        {"ecc_errors": {"a\nb": 1}},
        {"driver_errors": {str(it): 1 for it in range(65)}},
        {"driver_errors": 5},
        {"last_driver_error": -1},
    ],
)
def test_every_figure_of_a_card_is_looked_at(figure: dict[str, Any]) -> None:
    sample = sampled(usage=[{"uuid": "a", "memory_total": 9, **figure}, GOOD_USAGE])

    assert sample.usages == (Usage("a", memory_total=9), Usage("b", 5))
    assert f"usage 0: {next(iter(figure))}: " in sample.complaints["usage"]


@pytest.mark.parametrize(("method", "limit"), [("usage", 1024), ("processes", 8192)])
def test_of_a_list_without_measure_the_beginning_is_kept(method: str, limit: int) -> None:
    entries = [{**GOOD_PROCESS, "pid": it + 1} for it in range(limit + 5)]
    sample = sampled(**{method: entries})

    kept = sample.usages if method == "usage" else sample.processes
    assert len(kept or ()) == limit
    assert sample.complaints[method].startswith("5 ")
    assert sample.complaints[method].endswith(f" beyond the first {limit} are left out")


def test_a_short_answer_without_fault_is_read_the_quick_way_and_no_other() -> None:
    good = {"usage": {"answer": [GOOD_USAGE]}, "processes": {"answer": [GOOD_PROCESS]}}
    wrong = {"processes": {"answer": [{**GOOD_PROCESS, "memory": -1}]}}
    long = {"processes": {"answer": [GOOD_PROCESS] * 2000}}
    quick = sample_answers.quick_sample
    assert quick(json.dumps(good).encode()) == VendorSample((Usage("b", 5),), (ProcessUsage("b", 2, 5, 1.0),))
    assert [quick(json.dumps(it).encode()) for it in (wrong, long)] == [None, None]
    assert [quick(it) for it in (b"", b'{"usage":{"error":"on fire"}}', b'{"usage":{}}')] == [None] * 3


def test_a_wrong_figure_far_behind_is_told_by_its_number() -> None:
    entries = [{**GOOD_PROCESS, "pid": it + 1, "memory": -1 if it == 700 else it} for it in range(1000)]

    sample = sampled(processes=entries)

    assert [it.pid for it in sample.processes or ()] == [*range(1, 1001)]
    assert [it.memory for it in sample.processes or ()] == [*range(700), None, *range(701, 1000)]
    assert sample.complaints["processes"].endswith(
        "the first: process 700: memory: -1 is not between 0 and 2^63"
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"[%b1]" % (b"1," * 2_000_000), "Expected `object`, got `int` - at `$[0]`"),
        (b"[%b{}]" % (b"{}," * 32_768), "there are more than 32768 objects"),
    ],
)
def test_a_list_far_too_long_costs_the_method_before_it_is_taken_apart(
    answer: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_apart = []
    decoded = vendor_answers.decoded

    def recording(raw: bytes, wanted: Any) -> Any:
        taken_apart.append(wanted)
        return decoded(raw, wanted)

    monkeypatch.setattr(sample_answers, "decoded", recording)
    sample = sample_answers.sample(b'{"processes":{"answer":%b}}' % answer)

    assert sample.complaints == {"processes": f"answered wrongly: {why}"}
    assert list[msgspec.Raw] not in taken_apart


def test_ten_thousand_wrong_entries_are_counted_in_one_sentence() -> None:
    sample = sampled(processes=[{"uuid": "a", "pid": -1}] * 10_000 + [GOOD_PROCESS])

    assert sample.processes == ()
    assert sample.complaints == {
        "processes": "1809 processes beyond the first 8192 are left out; 8192 figures or entries cannot be "
        "used, the first: process 0: pid: -1 is not between 1 and 4194304"
    }


@pytest.mark.parametrize("answer", [5, "x", {}, [5], [GOOD_PROCESS, "x"], [[GOOD_PROCESS]]])
def test_what_is_no_list_of_objects_costs_the_method(answer: Any) -> None:
    sample = sampled([GOOD_USAGE], answer)

    assert sample.usages == (Usage("b", 5),)
    assert sample.processes is None
    assert sample.complaints["processes"].startswith("answered wrongly: ")


def test_a_failed_method_is_told_in_a_bounded_text() -> None:
    raw = json.dumps({"usage": {"error": "x\n" * 5000}, "processes": {"answer": []}}).encode()

    sample = sample_answers.sample(raw)

    assert (sample.usages, sample.processes) == (None, ())
    assert len(sample.complaints["usage"]) <= vendor_answers.MESSAGE_LIMIT
    assert sample.complaints["usage"].isprintable()


@pytest.mark.parametrize("raw", [b"", b"[]", b"5", b'{"usage": []}', b'{"sample": {}}', b"[" * 100_000])
def test_what_is_no_sample_is_a_wrong_answer(raw: bytes) -> None:
    with pytest.raises(vendor_answers.WrongAnswer):
        sample_answers.sample(raw)


@given(raw=sample_bytes())
def test_whatever_a_sample_says_its_figures_can_be_true(raw: bytes) -> None:
    sample = VendorSample()
    with suppress(vendor_answers.WrongAnswer):
        sample = read(raw)
    assert all(len(it) <= 1000 and it.isprintable() for it in sample.complaints.values())
    assert all(_is_part(it.utilization) and _is_amount(it.memory_used) for it in sample.usages or ())
    for process in sample.processes or ():
        assert not vendor_answers.uuid_trouble(process.uuid)
        assert 0 < process.pid <= sample_answers.LAST_PID
        assert _is_part(process.utilization)
        assert _is_amount(process.memory)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"uuid": st.sampled_from(["a", "b"]), "pid": st.integers(1, 9)},
            optional={"memory": st.integers(-1, 3), "utilization": st.sampled_from([0.0, 0.5, 1.0, 1.5])},
        )
    )
)
def test_right_figures_are_kept_whatever_is_wrong_beside_them(entries: list[dict[str, Any]]) -> None:
    sample = sampled(processes=entries)

    assert sample.processes == tuple(
        ProcessUsage(
            it["uuid"],
            it["pid"],
            it.get("memory") if it.get("memory") != -1 else None,
            it.get("utilization") if it.get("utilization") != 1.5 else None,
        )
        for it in entries
    )


def _is_part(value: float | None) -> bool:
    return value is None or 0 <= value <= 1


def _is_amount(value: int | None) -> bool:
    return value is None or 0 <= value < 1 << 63
