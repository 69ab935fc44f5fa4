"""What is read of the output of `nvidia-smi topo -m`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.vendor_api.agent import Distance
from agent.vendors.nvidia.agent.topology_matrix import MAX_CARDS, cards_of_matrix

CASES = json.loads((Path(__file__).parents[2] / "core/data/gpu-manager-placement.json").read_text())["cases"]
#: A node with seven P40, as a user of gpu-manager published the matrix in 2020.
SEVEN = (Path(__file__).parents[1] / "data/nvidia-topo-seven-p40.txt").read_text()
#: A newer driver's header: underlined, with names of three words behind the cards.
UNDERLINED = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\r\n"
    "GPU0\t X \tNV18\tSYS\tPXB\t0-31\t0\t\tN/A\r\n"
    "GPU1\tNV18\t X \tNODE\tPXB\t0-31\t0\t\tN/A\r\n"
    "GPU2\tSYS\tNODE\t X \tSYS\t32-63\t1\t\tN/A\r\n"
    "NIC0\tPXB\tPXB\tSYS\t X \r\n"
)


def rows(text: str) -> list[str]:
    """The distance from each card to each other one, and its lanes."""
    return [
        " ".join(f"{it.distance}{it.lanes or ''}" for it in device.links) for device in cards_of_matrix(text)
    ]


def test_the_published_matrix_of_seven_cards_is_read_without_network_cards_affinities_and_legend() -> None:
    cards = cards_of_matrix(SEVEN)

    assert [it.index for it in cards] == [it.minor for it in cards] == list(range(7))
    assert rows(SEVEN)[0] == "switch switch " + " ".join(["host-bridge"] * 4)
    assert rows(SEVEN)[6] == " ".join(["host-bridge"] * 3) + " switch switch switch"


def test_underlined_headers_nvlink_and_ends_of_lines_of_other_systems_are_read() -> None:
    assert rows(UNDERLINED) == ["board18 system", "board18 numa-node", "system numa-node"]


def test_a_word_of_old_drivers_is_the_path_between_sockets() -> None:
    [first, _] = cards_of_matrix("  GPU0 GPU1\nGPU0 x SOC\nGPU1 SOC x\n")

    assert [it.distance for it in first.links] == [Distance.SYSTEM]


def test_what_stands_behind_an_empty_line_is_not_read() -> None:
    assert len(cards_of_matrix("\n$ topo -m\n GPU0\nGPU0 X\n\nGPU0 of another command")) == 1


def test_one_card_has_no_links() -> None:
    assert [(it.index, it.links) for it in cards_of_matrix("GPU0\nGPU0 x")] == [(0, ())]


def test_the_matrices_of_all_recorded_placements_are_read() -> None:
    for case in CASES:
        cards = cards_of_matrix(case["txt"])
        assert all(len(it.links) == len(cards) - 1 for it in cards)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1, column 1: no line begins with GPU0"),
        ("GPU\nMIG", "line 1, column 1: no line begins with GPU0"),
        (" GPU0 GPU0\n", "line 1, column 7: 'GPU0' has a second column"),
        (" GPU0 GPU1\nGPU0 X PIX\n", "line 1, column 7: 'GPU1' has no row"),
        (" GPU0\nGPU0 X\nGPU0 X", "line 3, column 1: 'GPU0' has a second row"),
        (" GPU0\nGPU9 X", "line 2, column 1: 'GPU9' is no column of line 1"),
        (" GPU0 GPU1\nGPU0 X\n", "line 2, column 6: 'X' is the last word, and GPU1 needs a word"),
        (" GPU0 GPU1\nGPU0 X X\n", "line 2, column 8: 'X' stands for GPU0 and GPU1; X stands for"),
        (" GPU0\nGPU0 PIX\n", "line 2, column 6: 'PIX' stands for GPU0 and GPU0; X stands for"),
        (" GPU0 GPU1\nGPU0 X PIG\n", "line 2, column 8: 'PIG' is none of X, NV#, PIX"),
        (" GPU0 GPU1\nGPU0 X NV0\n", "line 2, column 8: 'NV0' is none of X, NV#, PIX"),
        (" GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X", "line 1, column 2: 'GPU0' and GPU1 have different words"),
        ("\x1b[4mGPU0\x1b[0m\nGPU0 " + "A" * 99, "line 2, column 6: 'AAAA"),
        (" ".join(f"GPU{it}" for it in range(MAX_CARDS + 1)), "is one card more than 128"),
    ],
)  # fmt: skip
def test_what_is_no_matrix_is_refused_with_line_and_column(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match="column") as refused:
        cards_of_matrix(text)

    assert expected in str(refused.value)
    assert len(str(refused.value)) < 200


words = st.sampled_from(
    ["GPU0", "GPU1", "X", "PIX", "NV4", "SYS", "CPU", "Legend:", "\n", "\t", "\x1b[4m", "\x00"]
)


@given(st.one_of(st.text(), st.lists(words).map(" ".join)))
def test_any_text_is_a_matrix_or_is_refused(text: str) -> None:
    try:
        cards, refusal = cards_of_matrix(text), ""
    except ValueError as error:
        cards, refusal = (), str(error)

    assert bool(cards) != refusal.startswith("line ")
    assert all(len(it.links) == len(cards) - 1 for it in cards)
