"""Reads a vendor's settings for its agent half, and refuses wrong ones with the path and what would fit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Meta

from agent.vendor_api.agent import SettingsError
from agent.vendor_api.text import shorten

Path = tuple[str | int, ...]
Options = TypeVar("Options", bound=msgspec.Struct)

_LARGE = 10**12
_STEP = re.compile(r"\.([^.[\]]+)|\[([0-9]+)\]")


def of_backend(fits: str) -> Meta:
    """Metadata of a setting that the vendor's process needs. A change of its value restarts the process.

    `fits` says in words which values are allowed.
    """
    return Meta(description=fits, extra={"backend": True})


def of_agent(fits: str) -> Meta:
    """Metadata of a setting that only the agent half needs. `fits` says which values are allowed."""
    return Meta(description=fits, extra={"backend": False})


@cache
def metas(options: type[msgspec.Struct]) -> Mapping[str, Meta]:
    """The metadata of each setting, by the setting's name in the config."""
    return {it.encode_name: it.type.__metadata__[-1] for it in msgspec.structs.fields(options)}


def fitting(options: type[msgspec.Struct]) -> dict[str, str]:
    """The settings of a vendor, each with the words for its allowed values."""
    return {key: meta.description or "" for key, meta in metas(options).items()}


def for_backend(options: type[msgspec.Struct]) -> list[str]:
    """The names of the settings that the vendor's process needs."""
    return [key for key, meta in metas(options).items() if meta.extra == {"backend": True}]


def read(options: type[Options], settings: Mapping[str, Any], *texts: str) -> Options:
    """Decode a vendor's settings from plain JSON values. Numbers under the keys `texts` become texts.

    Raises:
        SettingsError: A setting is unknown or has a wrong value; with the path and the allowed values.
    """
    fits = fitting(options)
    for key in settings:
        if key not in fits:
            raise unknown(key, fits)
    try:
        return msgspec.convert(as_text(settings, *texts), options)
    except msgspec.ValidationError as error:
        raise refusal(error, settings, fits) from None


def as_text(settings: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The settings with the numbers under these keys as texts: YAML reads 0.1 without quotes as a number."""
    return {**settings, **{key: f"{settings[key]:.12g}" for key in keys if _is_number(settings.get(key))}}


def _is_number(value: object) -> bool:
    """Whether a value is a number below _LARGE, so that its text has all its digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGE


def unknown(key: object, known: Iterable[str], path: Path = ()) -> SettingsError:
    """The error for an unknown key, with the nearest known key, or all of them."""
    import difflib

    near = difflib.get_close_matches(str(key)[:100], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
    return SettingsError(f"unknown key; {hint}", (*path, str(key)))


def refusal(
    error: msgspec.ValidationError, settings: Mapping[str, Any], fits: Mapping[str, str]
) -> SettingsError:
    """The error of msgspec in the agent's words, with the path to the value.

    `fits` has the words for the allowed values of each key.
    """
    _, path = split(str(error))
    found: Any = settings
    for step in path:
        found = found[step]
    return SettingsError(f"expected {fits[str(path[0])]}, found {shown(found)}", path)


def split(text: str) -> tuple[str, Path]:
    """Message and path of msgspec's text "Expected `int` - at `$.timeSlicing.resources[0].replicas`"."""
    message, mark, path = text.rpartition(" - at `$")
    if not mark:
        return text, ()
    return message, tuple(key or int(index) for key, index in _STEP.findall(path[:-1]))


def shown(value: Any) -> str:
    """The value as compact JSON, shortened to 200 characters."""
    return shorten(json.dumps(value, separators=(",", ":"), sort_keys=True), 200)
