"""Enflame's settings as frozen values, strictly read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from agent.core.text import shorten
from agent.core.vendor import SettingsError

from .facts import DRIVER_ROOT
from .names import Brand

DialectName = Literal["none", "gcushare-v1", "gcushare-v4", "hami"]
Unit = Literal["1", "0.1", "0.01", "0.001", "auto"]
#: GCUShare's slices of a card that nothing keeps apart: more than there are units of memory help nobody.
MAX_SLICES = 128

_Path = Annotated[str, Meta(pattern=r"^(/[^\x00]*)?$", max_length=4096)]
_Library = Annotated[str, Meta(pattern=r"^[^\x00]*$", max_length=4096)]
_Prefix = Annotated[str, Meta(pattern=r"^([A-Za-z]{1,16})?$")]
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_Resource = Annotated[str, Meta(pattern=rf"^{_LABEL}(\.{_LABEL})+/{_LABEL}$", max_length=128)]


def _backend(fits: str) -> Meta:
    """Of a setting that the vendor's process needs: what fits it. A change restarts the process."""
    return Meta(description=fits, extra={"backend": True})


def _agent(fits: str) -> Meta:
    """Of a setting that matters in the agent alone: what fits it."""
    return Meta(description=fits, extra={"backend": False})


def _one_of(names: tuple[str, ...]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every setting: its type, whose it is and what fits it, and its default."""

    dialect: Annotated[DialectName, _agent(_one_of(get_args(DialectName)))] = "none"
    register_resource: Annotated[
        _Resource, _agent("the name of the whole card's resource, such as enflame.com/gcu")
    ] = "enflame.com/gcu"
    memory_unit: Annotated[
        Unit, _agent(f"{_one_of(get_args(Unit))}, in quotes: GB of one unit of gcu-memory")
    ] = "1"
    slice_count: Annotated[
        Annotated[int, Meta(ge=2, le=MAX_SLICES)], _agent(f"a whole number from 2 to {MAX_SLICES}")
    ] = 6
    device_nodes: Annotated[bool, _agent("true or false")] = True
    isolation: Annotated[bool, _agent("true or false")] = False
    library: Annotated[
        _Library,
        _backend("libefml.so's absolute path, the directory that holds it, or another library's name"),
    ] = ""
    symbol_prefix: Annotated[_Prefix, _backend("the prefix of the library's functions, such as Erml")] = ""
    efsmi: Annotated[_Path, _backend("the absolute path of Enflame's tool efsmi")] = ""
    sysfs: Annotated[_Path, _backend("the absolute path where sysfs is mounted")] = "/sys"
    container_driver_root: Annotated[
        _Path, _backend("the absolute path where the agent sees the host's driver and /dev")
    ] = DRIVER_ROOT

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Options:
        """Read the settings of the vendor, as plain JSON values.

        Raises:
            SettingsError: With what would fit, and the path to what is wrong.
        """
        for key in settings:
            if key not in SETTINGS:
                raise _unknown(key, SETTINGS)
        try:
            return msgspec.convert(dict(settings), cls)
        except msgspec.ValidationError as error:
            raise _refusal(error, settings) from None

    @property
    def brand(self) -> Brand:
        domain, _, kind = self.register_resource.partition("/")
        return Brand(domain, kind)

    def for_backend(self) -> dict[str, Any]:
        """What the vendor's process needs: every key of its own, by the names in `SETTINGS`."""
        mine = msgspec.json.decode(msgspec.json.encode(self))
        return {key: mine[key] for key in _BACKEND}


_META: dict[str, Meta] = {it.encode_name: it.type.__metadata__[-1] for it in msgspec.structs.fields(Options)}
#: What may be set, and what would fit.
SETTINGS: dict[str, str] = {key: meta.description or "" for key, meta in _META.items()}
#: What each is where nobody says it.
DEFAULTS: dict[str, Any] = msgspec.to_builtins(Options())
_BACKEND = [key for key, meta in _META.items() if meta.extra == {"backend": True}]
_STEP = re.compile(r"\.([^.[\]]+)|\[([0-9]+)\]")


def _unknown(key: object, known: Iterable[str]) -> SettingsError:
    import difflib

    near = difflib.get_close_matches(str(key)[:100], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
    return SettingsError(f"unknown key; {hint}", (str(key),))


def _refusal(error: msgspec.ValidationError, given: Mapping[str, Any]) -> SettingsError:
    """msgspec's words in ours, with the path to the value."""
    where = str(error).rpartition(" - at `$")[2].removesuffix("`")
    path = tuple(key or int(index) for key, index in _STEP.findall(where))
    found: Any = given
    for step in path:
        found = found[step]
    shown = shorten(json.dumps(found, separators=(",", ":"), sort_keys=True), 200)
    return SettingsError(f"expected {SETTINGS[str(path[0])]}, found {shown}", path)
