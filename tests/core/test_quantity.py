"""Counts as Kubernetes writes them."""

from __future__ import annotations

import pytest

from agent.core.quantity import whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("8", 8), ("2k", 2000), ("16k", 16000), ("3M", 3_000_000), ("1e3", 1000), (3, 3)),
        *(("1Ki", 1024), ("2Ki", 2048), ("16Gi", 16 << 30), ("2.0", 2)),
        *(("", None), ("-1", None), ("1.5", None), ("500m", None), ("k", None), ("x", None), (" 1", None)),
        *(("1" * 19, None), (None, None), ([], None), (True, None)),
    ],
)
def test_a_whole_quantity_is_read_as_kubernetes_writes_it(text: object, number: int | None) -> None:
    assert whole(text) == number
