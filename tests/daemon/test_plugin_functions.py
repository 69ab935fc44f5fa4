"""However a plugin's function fails, the agent has an error that it can word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agent.core.errors import VendorError
from agent.daemon.plugin_functions import LONGEST, PluginFailed, contained
from agent.kubelet.rpc import LONGEST_MESSAGE, as_status
from agent.scheduler_api import Dialect, Scheduler
from agent.vendor_api.agent import NodeFacts, NoRoom, RequestRefused, SettingsError, Vendor


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class OfItsOwn(BaseException):
    pass


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: object) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unspeakable(), "Unspeakable"),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit: "),
        (OfItsOwn("x"), "OfItsOwn: x"),
        (Exception("\udc80\x1b[31m"), "Exception: \\udc80\\x1b[31m"),
        (Exception("x" * 1_000_000), f"Exception: {'x' * (LONGEST - 11)}… (1000011 characters)"),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, BaseException) else "",
)
def test_an_error_that_no_handler_can_take_becomes_one_with_a_short_plain_text(
    error: BaseException, text: str
) -> None:
    vendor = Vendor("acme", "a:B", "acme.com/x", raising(error), publishes=NodeFacts(labels=raising(error)))
    scheduler = Scheduler("acme", dialects=(Dialect("acme", raising(error)),))
    offered, registered = contained(vendor), contained(scheduler)
    assert offered.publishes.labels is not None

    for function in (offered.container_edits, offered.publishes.labels, registered.dialects[0].claims):
        with pytest.raises(PluginFailed) as caught:
            function((), (), ())  # type: ignore[call-arg, arg-type, unused-ignore]
        assert str(caught.value) == text


@pytest.mark.parametrize("error", [RequestRefused("no"), ValueError("wrong"), KeyError("spec")])
def test_an_error_with_a_fit_text_passes_as_it_is(error: Exception) -> None:
    vendor = contained(Vendor("acme", "a:B", "acme.com/x", raising(error)))

    with pytest.raises(type(error)) as caught:
        vendor.container_edits((), ())  # type: ignore[arg-type]

    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RequestRefused("no\nroom"), "no\\nroom"),
        (NoRoom("x" * 1_000_000), "x" * (LONGEST - 1) + "…"),
        (ValueError("\udc80"), "\\udc80"),
        (SettingsError("a\x1b[31m", ("key",)), "a\\x1b[31m"),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Exception) else "",
)
def test_an_error_with_a_meaning_keeps_its_type_and_gets_a_fit_text(error: Exception, text: str) -> None:
    vendor = contained(Vendor("acme", "a:B", "acme.com/x", raising(error)))

    with pytest.raises(type(error)) as caught:
        vendor.container_edits((), ())  # type: ignore[arg-type]

    assert caught.value is error
    assert str(caught.value) == text


@pytest.mark.parametrize("end", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_ends_the_agent_on_purpose_ends_it(end: BaseException) -> None:
    vendor = contained(Vendor("acme", "a:B", "acme.com/x", raising(end)))

    with pytest.raises(type(end)):
        vendor.container_edits((), ())  # type: ignore[arg-type]


def test_a_value_without_functions_stays_the_same() -> None:
    scheduler = Scheduler("acme", reads=("acme.com/",))

    assert contained(scheduler) is scheduler
    assert contained(replace(scheduler, after=("b",))).after == ("b",)


def test_the_kubelet_is_sent_a_bounded_text_that_can_be_encoded() -> None:
    status = as_status(VendorError("\udc80" + "x" * 1_000_000))

    assert status.message is not None
    assert status.message.startswith("\\udc80xxx")
    assert len(status.message) < LONGEST_MESSAGE + 10
