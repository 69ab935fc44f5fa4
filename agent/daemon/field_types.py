"""Checks what a plugin registers, nested frozen dataclasses, against the type hints of their fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from agent.vendor_api.text import shorten

#: How a sentence names a plain type that is needed, for one value and for several.
ONE = {str: "a text", bool: "True or False", int: "a whole number", NoneType: "None"}
SEVERAL = {str: "texts", int: "whole numbers"}


def wrong_field(registered: object) -> str:
    """A sentence on the first field with a wrong value by its type hint; empty where all are right.

    The sentence begins with the path of the field: `host.parts is 5; a tuple of HostPart is needed`. A
    function that takes another number of arguments is refused, too.
    """
    return next(_wrong_fields(registered), "")


def wrong_value(value: object, hint: Any, path: str) -> str:
    """A sentence on the first part of a value that is wrong by the hint; empty where all parts are right.

    The sentence begins with the path of the part, below `path`.
    """
    return next(_wrong(value, hint, path), "")


@cache
def field_hints(group: Any) -> Mapping[str, Any]:
    """The type hint of each field of a dataclass."""
    hints = get_type_hints(group)
    return {it.name: hints[it.name] for it in fields(group)}


def function_hint(hint: Any) -> Any:
    """The hint of a function within the hint of a field, such as an optional one; None without a function."""
    hints = (hint, *get_args(hint)) if get_origin(hint) is not Callable else (hint,)
    return next((it for it in hints if get_origin(it) is Callable), None)


def _wrong_fields(group: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in field_hints(type(group)).items():  # type: ignore[arg-type]  # classes are hashable
        yield from _wrong(getattr(group, name), hint, prefix + name)


def _wrong(value: Any, hint: Any, path: str) -> Iterator[str]:
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    fitting = next((it for it in choices if _fits(value, it)), None)
    if fitting is None:
        yield f"{path} is {shorten(repr(value))}; {' or '.join(map(_one, choices))} is needed"
    elif is_dataclass(fitting):
        yield from _wrong_fields(value, f"{path}.")
    elif get_origin(fitting) is tuple:
        for index, element in enumerate(value):
            yield from _wrong(element, get_args(fitting)[0], f"{path}[{index}]")
    elif get_origin(fitting) is Mapping:
        of_keys, of_values = get_args(fitting)
        for key, element in value.items():
            yield from _wrong(key, of_keys, f"{path} key")
            yield from _wrong(element, of_values, f"{path}[{key!r}]")
    elif get_origin(fitting) is Callable:
        yield from _wrong_arguments(value, len(get_args(fitting)[0]), path)


def _fits(value: object, hint: Any) -> bool:
    """Whether the value is of the type. What it contains is not looked at."""
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is int:
        return type(value) is int  # not a bool, which is an int to Python
    if hint is float:
        return type(value) in (int, float)
    return isinstance(value, get_origin(hint) or hint)


def _wrong_arguments(function: Callable[..., object], count: int, path: str) -> Iterator[str]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are not written in Python have no signature
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        yield f"{path} takes {shorten(str(signature))}; {_function(count)} is needed"


def _one(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Callable:
        return _function(len(arguments[0]))
    if origin is tuple:
        return f"a tuple of {_several(arguments[0])}"
    name = (origin or hint).__name__
    return ONE.get(hint) or f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def _several(hint: Any) -> str:
    choices = get_args(hint) or (hint,)
    return " or ".join(SEVERAL.get(it) or it.__name__ for it in choices)


def _function(count: int) -> str:
    return f"a function of {count or 'no'} argument{'' if count == 1 else 's'}"
