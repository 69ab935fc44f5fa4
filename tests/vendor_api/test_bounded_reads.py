"""What is read up to a bound takes the memory of what is there, and never goes beyond the bound."""

from __future__ import annotations

import pytest

from agent.vendor_api.bounded_reads import STEP, by_size


class Source:
    """A file of so many bytes, that gives at most `piece` of them at once; `grows` more come 20 times."""

    def __init__(self, size: int, piece: int = 1 << 30, grows: int = 0) -> None:
        self.left = size
        self.asked: list[int] = []
        self._piece = piece
        self._grows = grows

    def read(self, size: int) -> bytes:
        self.asked.append(size)
        more = self._grows if len(self.asked) <= 20 else 0
        given = min(size, self.left, self._piece)
        self.left += more - given
        return b"x" * given


@pytest.mark.parametrize("size", [0, 1, STEP, 10 * STEP])
@pytest.mark.parametrize("stated", [0, 4096, 10 * STEP], ids=["unstated", "a-page", "longer"])
@pytest.mark.parametrize("piece", [1 << 30, 4096])
def test_all_that_is_there_is_read_whatever_it_says_of_its_size(size: int, stated: int, piece: int) -> None:
    assert by_size(Source(size, piece).read, stated, 64 << 20) == b"x" * size


def test_no_more_is_asked_for_than_is_there_and_one_byte() -> None:
    source = Source(3 * STEP)

    by_size(source.read, 3 * STEP, 64 << 20)

    assert max(source.asked) == 3 * STEP + 1


@pytest.mark.parametrize("stated", [0, 10, 1 << 40], ids=["unstated", "small", "huge"])
def test_what_grows_while_it_is_read_is_read_up_to_the_bound(stated: int) -> None:
    source = Source(10, grows=STEP)

    assert by_size(source.read, stated, 5 * STEP + 1) == b"x" * (5 * STEP + 1)
    assert max(source.asked) <= 5 * STEP + 1


@pytest.mark.parametrize(("parts", "found"), [([None], None), ([b"a", None], b"a"), ([b""], b"")])
def test_what_has_nothing_to_say_yet_is_not_empty(parts: list[bytes | None], found: bytes | None) -> None:
    def read(size: int) -> bytes | None:
        return parts.pop(0)

    assert by_size(read, 0, 10) == found
