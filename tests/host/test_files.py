"""Files that others meddle with."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import files


@pytest.fixture
def silent() -> Iterator[Path]:
    """A device that has nothing to say yet, as /proc/kmsg, which calls itself a file."""
    controller, device = os.openpty()
    yield Path(os.ttyname(device))
    os.close(controller)
    os.close(device)


def test_what_has_nothing_to_read_yet_is_not_waited_for(silent: Path) -> None:
    with pytest.raises(OSError, match="has nothing to read by now") as raised:
        files.read(silent, 10, devices=True)

    assert raised.value.filename == str(silent)


def test_one_byte_more_than_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 20)

    assert files.read(tmp_path / "a", 10) == b"x" * 11


def test_a_small_file_is_read_into_little_memory_however_long_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)

    tracemalloc.start()
    try:
        files.read(tmp_path / "a", 64 << 20)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert most < 1 << 20


def test_a_file_that_can_not_be_put_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    with pytest.raises(IsADirectoryError):
        files.replace(tmp_path / "a", "text")

    assert [*tmp_path.iterdir()] == [tmp_path / "a"]
