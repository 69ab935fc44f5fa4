"""Keeps answers for a second, so that many requests cost no more than one."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.http.answer import HttpAnswer

#: How long an answer is used again.
KEPT_SECONDS = 1.0
#: Answers that are kept. There are fewer paths, but some paths take any query.
MAX_ANSWERS = 16


class AnswerCache:
    """Makes the answer to each target at most once in KEPT_SECONDS."""

    def __init__(
        self, make: Callable[[str], HttpAnswer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._clock = clock
        self._answers: dict[str, HttpAnswer] = {}
        self._until = 0.0

    def has(self, target: str) -> bool:
        """Whether the answer to the target need not be made now."""
        return target in self._answers and self._clock() < self._until

    def __call__(self, target: str) -> HttpAnswer:
        now = self._clock()
        if now >= self._until:
            self._answers, self._until = {}, now + KEPT_SECONDS
        if target in self._answers:
            return self._answers[target]
        answer = self._make(target)
        if len(self._answers) < MAX_ANSWERS:
            self._answers[target] = answer
        return answer
