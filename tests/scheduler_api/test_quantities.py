"""Counts as Kubernetes writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from agent.scheduler_api.quantities import exact, whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("8", 8), ("2k", 2000), ("16k", 16000), ("3M", 3_000_000), ("1e3", 1000), (3, 3)),
        *(("1Ki", 1024), ("2Ki", 2048), ("16Gi", 16 << 30), ("2.0", 2), ("1.5Gi", 3 << 29), ("2000m", 2)),
        *(("", None), ("-1", None), ("1.5", None), ("500m", None), ("k", None), ("x", None), (" 1", None)),
        *(("1" * 19, None), (None, None), ([], None), (True, None), (1.0, None)),
    ],
)
def test_a_whole_quantity_is_read_as_kubernetes_writes_it(text: object, number: int | None) -> None:
    assert whole(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("8", 8), (8, 8), ("+8", 8), ("2k", 2000), ("1Ki", 1024), ("41758208Ki", 41758208 << 10)),
        *(
            ("1.5Gi", 3 << 29),
            (".5", Fraction(1, 2)),
            ("2.", 2),
            ("500m", Fraction(1, 2)),
            ("1u", Fraction(1, 10**6)),
        ),
        *(
            ("3n", Fraction(3, 10**9)),
            ("1e3", 1000),
            ("1E-1", Fraction(1, 10)),
            ("1E", 10**18),
            ("1Ei", 1 << 60),
        ),
        *(
            (it, None)
            for it in ("", ".", "-1", "1GB", "1 Gi", "1e", "1e100", "k", "inf", "nan", "0x1", "1" * 19)
        ),
        *((None, None), ([], None), (True, None), (1.5, None), ("\u0663", None)),
    ],
)
def test_any_quantity_but_a_negative_one_is_read_exactly(text: object, number: Fraction | int | None) -> None:
    assert exact(text) == number
