"""The library is called by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxsml_stub import MxsmlStub

from agent.vendors.metax.child.abi import Code
from agent.vendors.metax.child.backend import MetaxBackend

pytest_plugins = ["mxsml_fixtures", "metax_fixtures"]

WAIT = 0.05
TURNS = 400


def test_no_two_calls_of_the_library_are_made_at_once_but_for_the_waits(
    native: MetaxBackend, stub: MxsmlStub
) -> None:
    stub.trace()
    mxsml = native.session.mxsml  # type: ignore[union-attr]
    calls = native.calls
    alone: list[tuple[str, bool]] = []

    def seen(name: str) -> Callable[..., Any]:
        call = getattr(mxsml, name)

        def made(*arguments: Any) -> Any:
            alone.append((name, _held(calls)))
            return call(*arguments)

        return made

    for name in ("create_event_set", "register_events", "free_event_set", "wait_for_event"):
        setattr(mxsml, name, seen(name))
    stub.fail("EventSetWait", Code.FAILURE)
    for _ in range(TURNS):
        native.health_events(WAIT)
        if "free_event_set" in dict(alone):
            break

    assert {name for name, held in alone if held} == {"create_event_set", "register_events", "free_event_set"}
    assert {name for name, held in alone if not held} == {"wait_for_event"}


def _held(lock: Any) -> bool:
    """Whether the calling thread has it."""
    return bool(lock._is_owned())
