"""What is refused by name: keys for a later release, and those that are said elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from agent.config import keys_of_newer_versions
from pages.keys import shapes
from pages.table import code, table


def unserved_table() -> Iterator[str]:
    """The keys, and the values of keys that are served otherwise."""
    paths = {shape: path for path, shape in shapes()}
    keys = keys_of_newer_versions.KEYS | keys_of_newer_versions.ELSEWHERE
    rows = [(f"{paths[shape]}.{key}", "", why) for (shape, key), why in keys.items()]
    rows += [
        (f"{paths[shape]}.{key}", ", ".join(map(code, it)), "")
        for (shape, key), it in keys_of_newer_versions.VALUES.items()
    ]
    yield from table(("key", "values", "instead"), ((code(path), it, why) for path, it, why in sorted(rows)))
