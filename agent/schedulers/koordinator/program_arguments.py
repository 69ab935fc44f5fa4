"""The arguments of one of Koordinator's programs in a container, read as Go reads flags and feature gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import text

_GATES = "feature-gates"
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
MAX_ARGUMENTS = 1000


def arguments(container: Mapping[str, Any], program: str) -> Sequence[str]:
    """The command and arguments of a container that runs the program; empty for another container."""
    lists = (container.get(key) for key in ("command", "args"))
    words = [word for words in lists if isinstance(words, list) for word in words if isinstance(word, str)]
    words = words[:MAX_ARGUMENTS]
    runs = text(container, "name") == program or any(it.rpartition("/")[2] == program for it in words)
    return words if runs else ()


def flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag's name and value: `-flag=value`, or the value as the next word."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            yield flag.lstrip("-"), value if equals else following


def gates(words: Sequence[str]) -> Mapping[str, bool]:
    """The feature gates that are set; the last value of a gate counts."""
    values = (value for flag, value in flags(words) if flag == _GATES)
    pairs = (pair.partition("=") for value in values for pair in value.split(","))
    return {gate.strip(): on.strip() in _TRUE for gate, equals, on in pairs if equals}
