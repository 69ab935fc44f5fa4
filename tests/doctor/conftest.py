"""One patient for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .patient import Patient, short_directory
from .patient import patient as admitted


@pytest_asyncio.fixture
async def patient(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Patient]:
    with short_directory() as root:
        async with admitted(root, monkeypatch) as it:
            yield it
