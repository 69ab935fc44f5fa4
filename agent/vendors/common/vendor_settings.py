"""Settings as the agent's half reads them: whose each is, what fits it, and how a wrong one is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
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
    """Of a setting that the vendor's process needs: what fits it. A change restarts the process."""
    return Meta(description=fits, extra={"backend": True})


def of_agent(fits: str) -> Meta:
    """Of a setting that matters in the agent alone: what fits it."""
    return Meta(description=fits, extra={"backend": False})


def metas(options: type[msgspec.Struct]) -> dict[str, Meta]:
    """What each setting says of itself."""
    return {it.encode_name: it.type.__metadata__[-1] for it in msgspec.structs.fields(options)}


def fitting(options: type[msgspec.Struct]) -> dict[str, str]:
    """What may be set, and what would fit."""
    return {key: meta.description or "" for key, meta in metas(options).items()}


def for_backend(options: type[msgspec.Struct]) -> list[str]:
    """The settings that the vendor's process needs."""
    return [key for key, meta in metas(options).items() if meta.extra == {"backend": True}]


def read(options: type[Options], given: Mapping[str, Any], *texts: str) -> Options:
    """The settings of a vendor, given as plain JSON values; numbers under the keys `texts` stand for texts.

    Raises:
        SettingsError: With what would fit, and the path to what is wrong.
    """
    fits = fitting(options)
    for key in given:
        if key not in fits:
            raise unknown(key, fits)
    try:
        return msgspec.convert(as_text(given, *texts), options)
    except msgspec.ValidationError as error:
        raise refusal(error, given, fits) from None


def as_text(given: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The settings with numbers under these keys as texts: without quotes 0.1 is a number to YAML."""
    return {**given, **{key: f"{given[key]:.12g}" for key in keys if _is_number(given.get(key))}}


def _is_number(value: object) -> bool:
    """Whether it is one of few digits: a larger one would have its text in another form, or none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGE


def unknown(key: object, known: Iterable[str], path: Path = ()) -> SettingsError:
    """A key that does not exist, with the nearest that does."""
    import difflib

    near = difflib.get_close_matches(str(key)[:100], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
    return SettingsError(f"unknown key; {hint}", (*path, str(key)))


def refusal(
    error: msgspec.ValidationError, given: Mapping[str, Any], fits: Mapping[str, str]
) -> SettingsError:
    """msgspec's words in ours, with the path to the value. `fits`: what would be good for each key."""
    _, path = split(str(error))
    found: Any = given
    for step in path:
        found = found[step]
    return SettingsError(f"expected {fits[str(path[0])]}, found {shown(found)}", path)


def split(text: str) -> tuple[str, Path]:
    """What is wrong, and the way to it: Expected `int` - at `$.timeSlicing.resources[0].replicas`."""
    what, mark, where = text.rpartition(" - at `$")
    if not mark:
        return text, ()
    return what, tuple(key or int(index) for key, index in _STEP.findall(where[:-1]))


def shown(value: Any) -> str:
    """The value as compact JSON, not too long."""
    return shorten(json.dumps(value, separators=(",", ":"), sort_keys=True), 200)
