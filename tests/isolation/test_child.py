"""The loop in the vendor's process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from agent.isolation import child
from agent.vendor_api.agent import HealthEvent, Proof


def test_an_event_source_that_fails_for_good_is_asked_ever_more_rarely() -> None:
    def broken(timeout: float) -> Sequence[HealthEvent]:
        raise OSError("gone")

    sent: list[bytes] = []
    watch = child.EventWatch(broken, sent.append, 5.0)

    pauses = [watch.once() for _ in range(12)]

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    assert len(sent) == 12


def test_an_event_source_that_never_waits_is_slowed_down() -> None:
    watch = child.EventWatch(lambda timeout: (), lambda message: None, 5.0)

    pauses = [watch.once() for _ in range(child.FREE_QUICK_WAITS + 2)]

    assert pauses[0] == 0.0
    assert pauses[-1] == child.QUICK_PAUSE


def test_an_event_source_that_floods_is_asked_as_much_later_as_it_said_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    flood = [HealthEvent("a", None)] * 1024
    sent: list[bytes] = []
    watch = child.EventWatch(lambda timeout: flood, sent.append, 5.0)

    pauses = [watch.once() for _ in range(6)]

    assert pauses == [0.0, 0.0, 0.0, 0.0, 1.024, 2.048]
    assert len(sent) == 6


def test_an_event_of_all_devices_counts_once_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    flood = [HealthEvent(None, None), HealthEvent("a", None, Proof.RESET), HealthEvent("a", None)]
    watch = child.EventWatch(lambda timeout: flood, lambda message: None, 5.0, lambda: 2048)

    assert [watch.once() for _ in range(2)] == [0.001, 4.098]


def test_the_process_imports_nothing_but_the_contract() -> None:
    code = (
        "import sys; before = set(sys.modules); import agent.isolation.child; "
        "print(*sorted(m for m in set(sys.modules) - before "
        "if m.partition('.')[0] not in sys.stdlib_module_names))"
    )

    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.split() == [
        "agent",
        "agent.isolation",
        "agent.isolation.child",
        "agent.vendor_api",
        "agent.vendor_api.backend",
    ]
