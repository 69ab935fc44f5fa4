"""Verbs run within the tests' process, which goes on after them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Enable the garbage collector again: `run` disables it, and the agent enables it once it serves."""
    yield
    gc.enable()
