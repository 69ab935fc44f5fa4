"""The arguments of Koordinator's programs are read as the programs read them."""

from __future__ import annotations

from typing import Any

import pytest

from agent.schedulers.koordinator.program_arguments import MAX_ARGUMENTS, arguments, flags, gates


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-feature-gates=A=true,B=0"], {"A": True, "B": False}),
        (["--feature-gates", "A=True, B=t"], {"A": True, "B": True}),
        (["-feature-gates=A=true", "-feature-gates=A=false"], {"A": False}),
        (["-feature-gates=A", "-feature-gates="], {}),
        (["-feature-gates"], {}),
        (["feature-gates=A=true"], {}),
        ([], {}),
    ],
)
def test_of_gates_the_last_word_counts(words: list[str], said: dict[str, bool]) -> None:
    assert gates(words) == said


def test_a_flag_has_its_value_behind_it_or_in_the_next_word() -> None:
    assert dict(flags(["/koordlet", "-a=1", "--b", "2", "-c"])) == {"a": "1", "b": "2", "c": ""}


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"name": "koordlet", "args": ["-v=4"]}, ["-v=4"]),
        ({"name": "main", "command": ["/usr/bin/koordlet"], "args": ["-v=4"]}, ["/usr/bin/koordlet", "-v=4"]),
        ({"name": "main", "command": ["/koord-device-daemon"]}, []),
        ({"name": 1, "command": "koordlet", "args": [1, {}, None]}, []),
        ({}, []),
    ],
)
def test_only_the_program_s_own_words_are_taken(container: dict[str, Any], words: list[str]) -> None:
    assert list(arguments(container, "koordlet")) == words


def test_a_stranger_s_container_makes_nobody_read_for_ever() -> None:
    assert len(arguments({"name": "koordlet", "args": ["-a"] * 5000}, "koordlet")) == MAX_ARGUMENTS
