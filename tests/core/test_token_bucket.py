"""A rate limit allows a burst, and no more than its rate after that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.core.token_bucket import TokenBucket


def test_a_burst_is_there_at_once_and_what_is_taken_beyond_it_is_owed() -> None:
    bucket = TokenBucket(rate=2.0, burst=10.0)

    assert bucket.take(10, now=5.0) == 0.0
    assert bucket.take(4, now=5.0) == -4.0
    assert bucket.left(now=7.0) == 0.0
    assert bucket.left(now=8.0) == 2.0


def test_a_rest_fills_the_bucket_and_never_more() -> None:
    bucket = TokenBucket(rate=2.0, burst=10.0)
    bucket.take(10, now=0.0)

    assert bucket.left(now=1e6) == 10.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 50)), max_size=40))
def test_no_span_of_time_sees_more_tokens_than_the_burst_and_the_rate(
    steps: list[tuple[float, float]],
) -> None:
    bucket, now, taken = TokenBucket(rate=3.0, burst=20.0), 0.0, 0.0
    for pause, count in steps:
        now += pause
        if bucket.left(now) >= count:
            bucket.take(count, now)
            taken += count

    assert taken <= 20.0 + 3.0 * now + 1e-6
