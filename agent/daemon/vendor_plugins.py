"""Finds vendors, in the tree and in other distributions, and loads those that are enabled."""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import msgspec
import pluggy

import agent.vendors
from agent.core.kubernetes_names import reserved_name, wrong_name
from agent.daemon.plugin_discovery import BrokenPlugin, Found, found
from agent.daemon.scheduler_plugins import hearing, reserved, trouble_of_dialects
from agent.scheduler_api import Dialect, DialectOf
from agent.vendor_api.agent import (
    Doubt,
    HostPart,
    HostRuntime,
    Placement,
    SettingsError,
    Sharing,
    Signs,
    Vendor,
)
from agent.vendor_api.hooks import ENTRY_POINTS, PROJECT, Hooks
from agent.vendor_api.text import shorten

NOT_ENABLED = "not enabled"
SITS_OUT = "not in use: it offers nothing with these settings, and its README says which ones it needs"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A vendor that was found; without a `vendor`, the reason says why it is left out.

    `broken` tells a plugin at fault from one that is not wanted, or sits out by its own decision.
    """

    name: str
    origin: str
    version: str
    vendor: Vendor | None = None
    reason: str = ""
    broken: bool = False
    #: What the vendor says of settings that it refused.
    refusal: SettingsError | None = None


def load(
    settings: Mapping[str, Mapping[str, Any]], wanted: Container[str] | None = None
) -> tuple[Plugin, ...]:
    """Load the wanted vendors (None: all there are); others are listed, not imported.

    One that is broken, or that the settings name and nobody brings, is left out and harms no other.
    """
    registry = _Registry()
    known = sorted(set(names()))
    unknown = [name for name in settings if name not in known and _wants(wanted, name)]
    return (
        *(
            _plugin(it, registry, settings.get(it.name, {}))
            if _wants(wanted, it.name)
            else Plugin(it.name, it.origin, it.version, None, NOT_ENABLED)
            for it in _found()
        ),
        *(_unknown(name, known) for name in unknown),
    )


def _plugin(it: Found, registry: _Registry, settings: Mapping[str, Any]) -> Plugin:
    if it.clash:
        return _left_out(it, it.clash)
    try:
        vendor = registry.offer(it, settings)
    except SettingsError as exc:
        return replace(_left_out(it, f"settings: {exc}"), refusal=exc)
    except BrokenPlugin as exc:
        return _left_out(it, str(exc))
    except (Exception, SystemExit) as exc:
        return _left_out(it, f"{type(exc).__name__}: {exc}")
    return Plugin(it.name, it.origin, it.version, vendor, SITS_OUT if vendor is None else "")


def names() -> tuple[str, ...]:
    """Every vendor there is, enabled or not."""
    return tuple(it.name for it in _found())


def _wants(wanted: Container[str] | None, name: str) -> bool:
    return wanted is None or name in wanted


def _unknown(name: str, known: list[str]) -> Plugin:
    reason = f"no vendor of this name is installed; there are: {', '.join(known)}"
    return Plugin(name, "", "", None, reason, broken=True)


@cache
def _found() -> tuple[Found, ...]:
    """Every vendor there is, by name; nothing is imported."""
    return found(agent.vendors, ENTRY_POINTS, "vendor")


def _left_out(it: Found, reason: str) -> Plugin:
    return Plugin(it.name, it.origin, it.version, None, reason, broken=True)


class _Registry:
    """A typed face of pluggy, which knows plugins and hooks as plain objects."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(Hooks)

    def offer(self, it: Found, settings: Mapping[str, Any]) -> Vendor | None:
        """What the plugin offers; it stays registered only when it keeps the contract."""
        module = it.load()
        self._manager.register(module, name=it.name)
        try:
            self._manager.check_pending()
            return self._sound(it.name, module, settings)
        except BaseException:
            self._manager.unregister(module)
            raise

    def _sound(self, name: str, module: object, settings: Mapping[str, Any]) -> Vendor | None:
        """What it offers; where that is good without the settings and bad with them, they are at fault."""
        try:
            return _not_reserved(_checked(name, self._ask(module, settings)), settings)
        except BrokenPlugin as exc:
            if settings and self._is_sound(name, module):
                raise SettingsError(f"with these {exc}") from exc
            raise

    def _is_sound(self, name: str, module: object) -> bool:
        with suppress(Exception, SystemExit):
            return _checked(name, self._ask(module, {})) is not None
        return False

    def _ask(self, module: object, settings: Mapping[str, Any]) -> object:
        if not self._manager.get_hookcallers(module):
            raise BrokenPlugin(
                "implements no hook; decorate register_backend with agent.vendor_api.hooks.hookimpl"
            )
        others = [it for it in self._manager.get_plugins() if it is not module]
        caller = self._manager.subset_hook_caller("register_backend", remove_plugins=others)
        answer: object = caller(settings=settings)
        return answer


def _checked(name: str, offered: object) -> Vendor | None:
    """The Vendor, if it is one that the agent can work with."""
    if offered is None:
        return None
    if not isinstance(offered, Vendor):
        raise BrokenPlugin(f"register_backend returned a {type(offered).__name__}, a Vendor is needed")
    trouble = _trouble(name, offered)
    if trouble:
        raise BrokenPlugin(f"register_backend returned a Vendor whose {trouble}")
    return hearing(offered)


def _not_reserved(vendor: Vendor | None, settings: Mapping[str, Any]) -> Vendor | None:
    """The Vendor, unless its resource has a name that belongs to a scheduler.

    Raises:
        SettingsError: The settings say the name; with the place.
        BrokenPlugin: The plugin itself does.
    """
    wrong = reserved_name(vendor.resource, reserved()) if vendor is not None else ""
    if vendor is None or not wrong:
        return vendor
    said = [key for key, value in settings.items() if value == vendor.resource]
    if said:
        raise SettingsError(wrong, (said[0],))
    raise BrokenPlugin(f"register_backend returned a Vendor whose resource is wrong: {wrong}")


def _trouble(name: str, vendor: Vendor) -> str:
    if vendor.name != name:
        return f"name is {shorten(str(vendor.name))!r}; it is registered as {name!r}"
    if not (isinstance(vendor.backend, str) and _is_reference(vendor.backend)):
        return f'backend is {vendor.backend!r}; "package.module:Class" is needed'
    if not isinstance(vendor.resource, str):
        return f'resource is {vendor.resource!r}; "domain/name" is needed'
    if wrong := wrong_name(vendor.resource):
        return f"resource is wrong: {wrong}"
    if trouble := _trouble_of_type(vendor) or trouble_of_dialects(vendor.dialects):
        return trouble
    if not (isinstance(vendor.hears, tuple) and all(isinstance(it, DialectOf) for it in vendor.hears)):
        return f"hears is {shorten(repr(vendor.hears))}; a tuple of DialectOf is needed"
    if not (vendor.limits is None or isinstance(vendor.limits, Dialect)):
        return f"limits are {shorten(repr(vendor.limits))}; a Dialect is needed"
    if vendor.limits is not None and (trouble := trouble_of_dialects((vendor.limits,))):
        return trouble
    for key in ("settings", "defaults"):
        try:
            msgspec.json.encode(getattr(vendor, key))
        except (TypeError, ValueError, msgspec.MsgspecError) as exc:
            return f"{key} are no plain JSON values: {exc}"
    return ""


def _trouble_of_type(vendor: Vendor) -> str:
    for function in (
        "container_edits",
        "resources",
        "judge",
        "labels",
        "annotations",
        "extended_resources",
        "libraries",
        "unclaimed",
        "cards_with_room",
    ):
        given = getattr(vendor, function)
        if not callable(given) and (given is not None or function == "container_edits"):
            return f"{function} can not be called"
    for key in ("machine_label", "time_label", "visible"):
        if not isinstance(getattr(vendor, key), str):
            return f"{key} is {shorten(repr(getattr(vendor, key)))}; a text is needed"
    for key in ("prepares", "by_cdi", "clears"):
        if not isinstance(getattr(vendor, key), bool):
            return f"{key} is {shorten(repr(getattr(vendor, key)))}; True or False is needed"
    if not (vendor.signs is None or isinstance(vendor.signs, Signs)):
        return f"signs are {shorten(repr(vendor.signs))}; Signs are needed"
    parts = vendor.host_parts
    if not (isinstance(parts, tuple) and all(isinstance(it, HostPart) for it in parts)):
        return "host_parts are no tuple of HostPart"
    if not (vendor.host_runtime is None or isinstance(vendor.host_runtime, HostRuntime)):
        return f"host_runtime is {shorten(repr(vendor.host_runtime))}; a HostRuntime is needed"
    if not isinstance(vendor.sharing, Sharing):
        return f"sharing is {shorten(repr(vendor.sharing))}; a Sharing is needed"
    if vendor.placement not in get_args(Placement):
        shown = shorten(repr(vendor.placement))
        return f"placement is {shown}; one of {', '.join(get_args(Placement))} is needed"
    if not (isinstance(vendor.doubts, tuple) and all(isinstance(it, Doubt) for it in vendor.doubts)):
        return "doubts are no tuple of Doubt"
    return ""


def _is_reference(text: str) -> bool:
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))
