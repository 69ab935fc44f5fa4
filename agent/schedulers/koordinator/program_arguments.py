"""Reads the arguments of Koordinator's programs in a container: Go's flags, and feature gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import text

_GATES = "feature-gates"
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
MAX_ARGUMENTS = 1000


def arguments(container: Mapping[str, Any], program: str) -> Sequence[str]:
    """Command and arguments of the program; empty for a container of another program."""
    lists = [part for key in ("command", "args") if isinstance(part := container.get(key), list)]
    words = [word for part in lists for word in part if isinstance(word, str)][:MAX_ARGUMENTS]
    is_named = text(container, "name") == program
    return words if is_named or any(it.rpartition("/")[2] == program for it in words) else ()


def flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each flag: `-flag=value`, or the value as the next word."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if word.startswith("-"):
            yield flag.lstrip("-"), value if equals else following


def gates(words: Sequence[str]) -> Mapping[str, bool]:
    """The feature gates that the flags set. Of a gate that is set twice the last value counts."""
    values = (value for flag, value in flags(words) if flag == _GATES)
    pairs = (pair.partition("=") for value in values for pair in value.split(","))
    return {gate.strip(): on.strip() in _TRUE for gate, equals, on in pairs if equals}
