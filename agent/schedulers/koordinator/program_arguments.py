"""With which arguments a program of Koordinator's runs in a container, read as Go's flags and gates are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.scheduler_api.document_parts import text

_GATES = "feature-gates"
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
MAX_ARGUMENTS = 1000


def arguments(container: Mapping[str, Any], program: str) -> Sequence[str]:
    """Command and arguments, where that program runs; empty where another one does."""
    lists = (container.get(key) for key in ("command", "args"))
    words = [it for its in lists if isinstance(its, list) for it in its if isinstance(it, str)][
        :MAX_ARGUMENTS
    ]
    its = text(container, "name") == program or any(it.rpartition("/")[2] == program for it in words)
    return words if its else ()


def flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each: `-flag=value`, or the value in the next word."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        flag, said, value = word.partition("=")
        if word.startswith("-"):
            yield flag.lstrip("-"), value if said else following


def gates(words: Sequence[str]) -> Mapping[str, bool]:
    """What is said of feature gates; of what is said twice the last word counts."""
    values = (value for flag, value in flags(words) if flag == _GATES)
    pairs = (pair.partition("=") for value in values for pair in value.split(","))
    return {gate.strip(): on.strip() in _TRUE for gate, said, on in pairs if said}
