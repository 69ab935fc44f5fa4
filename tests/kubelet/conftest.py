"""Short directories: a socket path has 107 bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.short_places import SHORT_PLACE


@pytest.fixture
def plugins_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="xpu-", dir=SHORT_PLACE))
    yield path
    shutil.rmtree(path, ignore_errors=True)
