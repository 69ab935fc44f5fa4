"""The functions that plugins register, kept from ending the agent by how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import lru_cache, wraps
from operator import is_not
from types import FunctionType
from typing import Any, TypeVar

from agent.daemon.field_types import field_hints, function_hint
from agent.daemon.plugin_discovery import BrokenPlugin
from agent.vendor_api.agent import NotShown
from agent.vendor_api.text import error_text, printable

T = TypeVar("T")

#: Errors that the contracts let functions raise. Their types tell the caller what to do.
WITH_MEANING = (BrokenPlugin, ValueError, NotShown)
#: Characters of a plugin's error text that are kept.
LONGEST = 1000


class PluginFailed(Exception):
    """Raised in place of what a plugin's function raised, where no handler could take that."""


def contained(group: T) -> T:
    """The frozen value of a plugin, nested values included, with each function contained.

    A contained function raises an `Exception` with a text that is printable and short. A plugin may raise
    SystemExit, or an error whose text cannot be made, is endless, or cannot be encoded. Errors with a fit
    text pass as they are. An error with a meaning in the contracts keeps its type and gets a fit text.
    """
    if isinstance(group, tuple):
        parts = [contained(part) for part in group]
        return type(group)(parts) if any(map(is_not, parts, group)) else group
    if isinstance(group, Mapping):
        values = {key: _contained_value(value) for key, value in group.items()}
        is_changed = any(values[key] is not value for key, value in group.items())
        return values if is_changed else group  # type: ignore[return-value]
    if not is_dataclass(group) or isinstance(group, type):
        return group
    changed: dict[str, Any] = {}
    for name, hint in field_hints(type(group)).items():
        value = getattr(group, name)
        is_function = callable(value) and function_hint(hint) is not None
        after = contained_function(value) if is_function else contained(value)
        if after is not value:
            changed[name] = after
    return replace(group, **changed) if changed else group


def _contained_value(value: Any) -> Any:
    is_function = callable(value) and not isinstance(value, type)
    return contained_function(value) if is_function else contained(value)


def contained_function(function: Callable[..., object]) -> Callable[..., object]:
    """The function, contained; the same one for the same function, so that equal vendors stay equal."""
    return _remembered(function) if isinstance(function, FunctionType) else _wrapped(function)


def _wrapped(function: Callable[..., object]) -> Callable[..., object]:
    @wraps(function)
    def call(*arguments: object, **named: object) -> object:
        try:
            return function(*arguments, **named)
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as exc:
            if isinstance(exc, Exception) and _has_fit_text(exc):
                raise
            raise PluginFailed(error_text(exc, LONGEST)) from None

    return call


_remembered = lru_cache(1024)(_wrapped)


def _has_fit_text(exc: Exception) -> bool:
    """Whether the text can be shown. The text of an error with a meaning is made fit."""
    try:
        text = str(exc)
        fit = printable(text)
        fit = fit if len(fit) <= LONGEST else f"{fit[: LONGEST - 1]}…"
        if text != fit and isinstance(exc, WITH_MEANING):
            exc.args = (fit,)
        return str(exc) == fit
    except BaseException:
        return False
