"""What is refused by name: keys for a later release, and those that are said elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from agent.config import refused_keys
from pages.keys import shapes
from pages.table import code, table


def unserved_table() -> Iterator[str]:
    """The keys, and the values of keys that are served otherwise."""
    paths = {shape: path for path, shape in shapes()}
    keys = refused_keys.KEYS | refused_keys.ELSEWHERE
    rows = [(f"{paths[shape]}.{key}", "", why) for (shape, key), why in keys.items()]
    rows += [
        (f"{paths[shape]}.{key}", ", ".join(map(code, it)), "")
        for (shape, key), it in refused_keys.VALUES.items()
    ]
    yield from table(("key", "values", "instead"), ((code(path), it, why) for path, it, why in sorted(rows)))
