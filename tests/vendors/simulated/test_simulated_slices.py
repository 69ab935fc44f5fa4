"""Slices of simulated hardware: made once, made anew where not as wanted, foreign ones left alone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.vendor_api.agent import Partition, Request
from agent.vendors.simulated.child.slices import SliceFile

BY_HAND = {"id": "by-hand", "uuid": "c0"}


@pytest.fixture
def slices(tmp_path: Path) -> SliceFile:
    return SliceFile(tmp_path / "slices.json")


def asked(allocation: str, **parameters: str) -> Request:
    return Request(allocation, "example.com/xpu", ("id",), parameters)


def made(slices: SliceFile) -> list[tuple[str, str, dict[str, str]]]:
    """Id, card and parameters of each slice."""
    return [(it["id"], it["uuid"], it.get("parameters", {})) for it in slices.read()]


def test_no_file_is_no_slice(slices: SliceFile) -> None:
    slices.remove("a1")

    assert slices.all() == ()


def test_a_request_gets_a_slice_of_each_of_its_devices_with_its_mark(slices: SliceFile) -> None:
    found = slices.make(asked("a1", memory="8"), ["c0", "c1"])

    assert found == slices.all() == (Partition("a1/0", "c0", "a1"), Partition("a1/1", "c1", "a1"))
    assert made(slices) == [("a1/0", "c0", {"memory": "8"}), ("a1/1", "c1", {"memory": "8"})]


def test_slices_that_are_as_wanted_are_not_written_again(slices: SliceFile, tmp_path: Path) -> None:
    slices.make(asked("a1", memory="8"), ["c0"])
    before = (tmp_path / "slices.json").stat().st_ino

    slices.make(asked("a1", memory="8"), ["c0"])
    slices.remove("another")

    assert (tmp_path / "slices.json").stat().st_ino == before


@pytest.mark.parametrize(
    ("memory", "cards", "expected"),
    [
        pytest.param("16", ["c0"], [("a1/0", "c0", {"memory": "16"})], id="made with other parameters"),
        pytest.param("8", ["c1"], [("a1/0", "c1", {"memory": "8"})], id="on another card"),
        pytest.param(
            "8",
            ["c0", "c1"],
            [("a1/0", "c0", {"memory": "8"}), ("a1/1", "c1", {"memory": "8"})],
            id="too few",
        ),
    ],
)
def test_slices_that_are_not_as_wanted_are_replaced_and_others_stay(
    slices: SliceFile, memory: str, cards: Sequence[str], expected: Sequence[object]
) -> None:
    slices.write([BY_HAND])
    slices.make(asked("a1", memory="8"), ["c0"])
    slices.make(asked("a2"), ["c0"])

    slices.make(asked("a1", memory=memory), cards)

    assert made(slices) == [("by-hand", "c0", {}), ("a2/0", "c0", {}), *expected]


def test_the_slices_of_one_mark_go_and_all_others_stay(slices: SliceFile) -> None:
    slices.write([BY_HAND, {**BY_HAND, "allocation": None}])
    slices.make(asked("a1"), ["c0", "c1"])
    slices.make(asked("a2"), ["c0"])

    for _ in range(2):
        slices.remove("a1")

    assert [(it.id, it.allocation) for it in slices.all()] == [
        ("by-hand", None),
        ("by-hand", None),
        ("a2/0", "a2"),
    ]


def test_slices_are_replaced_in_one_step_and_nothing_is_left_beside_them(
    slices: SliceFile, tmp_path: Path
) -> None:
    slices.make(asked("a1"), ["c0"])
    slices.make(asked("a2"), ["c0"])

    assert [it.name for it in tmp_path.iterdir()] == ["slices.json"]


def test_the_file_is_ours_alone_also_where_a_crash_left_half_of_one(
    slices: SliceFile, tmp_path: Path
) -> None:
    left = tmp_path / f"slices.json.{os.getpid()}"
    left.write_text("[")
    left.chmod(0o644)

    slices.make(asked("a1"), ["c0"])

    assert [(it.name, it.stat().st_mode & 0o777) for it in tmp_path.iterdir()] == [("slices.json", 0o600)]


@pytest.mark.parametrize("content", ["", "[]"])
def test_an_empty_file_is_no_slice(slices: SliceFile, tmp_path: Path, content: str) -> None:
    (tmp_path / "slices.json").write_text(content)

    assert slices.all() == ()


def test_a_file_that_is_no_list_of_slices_is_an_error_and_stays(slices: SliceFile, tmp_path: Path) -> None:
    """The hardware is not called empty because it cannot be read."""
    content: Any = '[{"id":'
    (tmp_path / "slices.json").write_text(content)

    with pytest.raises(json.JSONDecodeError):
        slices.make(asked("a1"), ["c0"])

    assert (tmp_path / "slices.json").read_text() == content
