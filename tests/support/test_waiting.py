"""A wait ends with the value of its condition, or names the condition."""

from __future__ import annotations

import anyio
import pytest

from .waiting import eventually


async def test_the_value_of_a_condition_that_comes_to_hold_is_returned() -> None:
    values = iter([0, "", "there"])

    assert await eventually(lambda: next(values)) == "there"


async def test_an_async_condition_is_awaited() -> None:
    values = iter([False, True])

    async def condition() -> bool:
        return next(values)

    assert await eventually(condition) is True


@pytest.mark.parametrize("seconds", [0, 0.02])
async def test_a_condition_that_does_not_hold_is_named(seconds: float) -> None:
    with pytest.raises(AssertionError, match=f"{seconds:g} s: .*lambda: seconds < 0"):
        await eventually(lambda: seconds < 0, seconds)
    with pytest.raises(AssertionError, match="bool"):
        await eventually(bool, seconds)


async def test_a_condition_that_hangs_is_cut_off() -> None:
    with pytest.raises(AssertionError, match="sleep_forever"):
        await eventually(anyio.sleep_forever, 0.01)
