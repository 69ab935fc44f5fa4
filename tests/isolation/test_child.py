"""The loop in the vendor's process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from agent.core.vendor import HealthEvent
from agent.isolation import child


def test_an_event_source_that_fails_for_good_is_asked_ever_more_rarely() -> None:
    def broken(timeout: float) -> Sequence[HealthEvent]:
        raise OSError("gone")

    sent: list[bytes] = []
    watch = child.Watch(broken, sent.append, 5.0)

    pauses = [watch.once() for _ in range(12)]

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    assert len(sent) == 12


def test_an_event_source_that_never_waits_is_slowed_down() -> None:
    watch = child.Watch(lambda timeout: (), lambda message: None, 5.0)

    pauses = [watch.once() for _ in range(child.FREE_QUICK_WAITS + 2)]

    assert pauses[0] == 0.0
    assert pauses[-1] == child.QUICK_PAUSE


def test_the_process_imports_nothing_but_the_contract() -> None:
    code = (
        "import sys; before = set(sys.modules); import agent.isolation.child; "
        "print(*sorted(m for m in set(sys.modules) - before "
        "if m.partition('.')[0] not in sys.stdlib_module_names))"
    )

    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.split() == [
        "agent",
        "agent.core",
        "agent.core.backend",
        "agent.isolation",
        "agent.isolation.child",
    ]
