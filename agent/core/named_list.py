"""A list of names for people, which stays short however many names there are."""

from __future__ import annotations

from collections.abc import Sequence


def named_list(names: Sequence[str], most: int) -> str:
    """The first names, at most `most`, separated by commas, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
