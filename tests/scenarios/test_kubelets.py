"""Which kubelets a run of the scenarios takes, by what it is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from .kubelets import kinds, real_ones, simulated

SIMULATED, REAL = simulated(), real_ones()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], SIMULATED),
        (["--peers"], REAL),
        (["--require-peers"], REAL),
        (["--every-case"], SIMULATED),
        (["--require-peers", "--every-case"], SIMULATED + REAL),
    ],
)
def test_what_is_asked_for_is_taken_and_the_peers_come_instead_of_the_simulated(
    options: list[str], expected: list[Any]
) -> None:
    config: Any = SimpleNamespace(getoption=options.__contains__)

    assert kinds(config) == expected


def test_the_newest_of_the_real_ones_stands_for_all() -> None:
    assert REAL[0] == max(REAL, key=lambda it: [int(one) for one in it.release.split(".")])
