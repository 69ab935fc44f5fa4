"""The answers of the last second."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.http.answer import Answer

#: Seconds that an answer is good for.
GOOD_FOR = 1.0
#: Answers that are kept: there are fewer views, but some can be asked for with any text.
MOST = 16


class RecentAnswers:
    """Makes each answer once a second at most, however many ask for it."""

    def __init__(self, make: Callable[[str], Answer], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._answers: dict[str, Answer] = {}
        self._until = 0.0

    def __call__(self, target: str) -> Answer:
        now = self._clock()
        if now >= self._until:
            self._answers, self._until = {}, now + GOOD_FOR
        if target in self._answers:
            return self._answers[target]
        answer = self._make(target)
        if len(self._answers) < MOST:
            self._answers[target] = answer
        return answer
