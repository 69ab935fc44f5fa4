"""Finds the vendors' plugins, in the tree and of other distributions, and loads those that are enabled."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, structs

import agent.vendors
from agent.config.flag_overlay import settable
from agent.daemon.field_types import wrong_field
from agent.daemon.plugin_discovery import BrokenPlugin, FoundPlugin, found
from agent.daemon.plugin_functions import contained
from agent.daemon.plugin_hooks import PluginHooks, failure
from agent.daemon.scheduler_parts import with_named_parts
from agent.daemon.scheduler_plugins import reserved, wrong_dialect
from agent.scheduler_api.reserved_names import reserved_name
from agent.vendor_api.agent import Exporter, NodeFacts, Settings, SettingsError, Vendor
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hooks import ENTRY_POINTS, PROJECT, VendorHooks
from agent.vendor_api.kubernetes_names import wrong_name
from agent.vendor_api.text import shorten

NOT_ENABLED = "not enabled"
SITS_OUT = "not in use: it offers nothing with these settings, and its README says which ones it needs"


class VendorPlugin(Struct, frozen=True):
    """A vendor's plugin that was found. Without a `vendor`, `reason` says why the plugin is left out.

    `broken`: the plugin is at fault. Other plugins without a vendor are not enabled, or sit out.
    """

    name: str
    origin: str
    version: str
    vendor: Vendor | None = None
    reason: str = ""
    broken: bool = False
    #: The error of the plugin about settings that it refused.
    refusal: SettingsError | None = None

    @property
    def exporters(self) -> tuple[str, ...]:
        """The names of the exporters for the vendor's cards."""
        made = self.vendor.exporters if self.vendor is not None else ()
        return tuple(it.name for it in made if isinstance(it, Exporter))


def load(
    settings: Mapping[str, Mapping[str, Any]], wanted: Container[str] | None = None
) -> tuple[VendorPlugin, ...]:
    """Load the wanted vendors (None: all that are installed); others are listed, not imported.

    A plugin that is broken, and a vendor of the settings that is not installed, is left out and harms no
    other.
    """
    known = sorted(set(names()))
    unknown = [name for name in settings if name not in known and _wants(wanted, name)]
    return (
        *(
            _loaded(plugin, settings.get(plugin.name, {}))
            if _wants(wanted, plugin.name)
            else VendorPlugin(plugin.name, plugin.origin, plugin.version, None, NOT_ENABLED)
            for plugin in _found()
        ),
        *(_unknown(name, known) for name in unknown),
    )


def _loaded(plugin: FoundPlugin, settings: Mapping[str, Any]) -> VendorPlugin:
    if plugin.clash:
        return _left_out(plugin, plugin.clash)
    try:
        vendor = _offered(plugin, settings)
    except SettingsError as exc:
        return structs.replace(_left_out(plugin, f"settings: {exc}"), refusal=exc)
    except Exception as exc:  # contributors' code
        return _left_out(plugin, failure(exc))
    reason = SITS_OUT if vendor is None else ""
    return VendorPlugin(plugin.name, plugin.origin, plugin.version, vendor, reason)


def names() -> tuple[str, ...]:
    """The names of all installed vendors, enabled or not."""
    return tuple(it.name for it in _found())


@cache
def exporters_without_settings() -> Mapping[str, Sequence[str] | None]:
    """The names of the exporters of each installed vendor, enabled or not; imports every vendor.

    Loads each vendor without settings. None: the vendor needs some, or its plugin is broken.
    """
    return {it.name: it.exporters if it.vendor is not None else None for it in load({})}


def config_inputs() -> Mapping[str, ConfigInputs]:
    """What each vendor reads beside the configuration, by name; imports every vendor.

    A plugin that is broken reads nothing. `load` says why, where the vendor is wanted. A flag that two
    vendors name belongs to the first one.
    """
    return _read_inputs()[0]


def flag_clashes() -> Sequence[str]:
    """A sentence for each flag of a vendor that an earlier vendor has, too."""
    return _read_inputs()[1]


@cache
def _read_inputs() -> tuple[Mapping[str, ConfigInputs], Sequence[str]]:
    read, clashes, owners = dict[str, ConfigInputs](), list[str](), dict[str, str]()
    for plugin in _found():
        inputs = None
        with suppress(Exception):
            inputs = None if plugin.clash else _inputs(plugin.name, _hooks(plugin))
        if inputs is not None:
            taken = [name for name in _flag_names(inputs) if name in owners]
            clashes += [f"--{it} of {plugin.name} does nothing: {owners[it]} has that flag" for it in taken]
            read[plugin.name] = _without_flags(inputs, taken)
            owners |= {name: plugin.name for name in _flag_names(inputs) if name not in owners}
    return MappingProxyType(read), tuple(clashes)


def _flag_names(inputs: ConfigInputs) -> list[str]:
    return [name for flag in inputs.flags.flags for name in flag.names] if inputs.flags is not None else []


def _without_flags(inputs: ConfigInputs, taken: Collection[str]) -> ConfigInputs:
    """The inputs without these names of flags. Other names, and variables, stay."""
    if inputs.flags is None or not taken:
        return inputs
    less = (replace(it, names=tuple(n for n in it.names if n not in taken)) for it in inputs.flags.flags)
    left = tuple(flag for flag in less if flag.names or flag.variables)
    return replace(inputs, flags=replace(inputs.flags, flags=left))


def _wants(wanted: Container[str] | None, name: str) -> bool:
    return wanted is None or name in wanted


def _unknown(name: str, known: list[str]) -> VendorPlugin:
    reason = f"no vendor of this name is installed; there are: {', '.join(known)}"
    return VendorPlugin(name, "", "", None, reason, broken=True)


@cache
def _found() -> tuple[FoundPlugin, ...]:
    """The plugins of all installed vendors, by name; none is imported."""
    return found(agent.vendors, ENTRY_POINTS, "vendor")


def _left_out(plugin: FoundPlugin, reason: str) -> VendorPlugin:
    return VendorPlugin(plugin.name, plugin.origin, plugin.version, None, reason, broken=True)


def _hooks(plugin: FoundPlugin) -> PluginHooks:
    return PluginHooks(plugin, PROJECT, VendorHooks)


def _offered(plugin: FoundPlugin, settings: Mapping[str, Any]) -> Vendor | None:
    """The Vendor that the plugin makes of the settings; None where the plugin sits out.

    Raises:
        BrokenPlugin: The plugin does not keep the contract.
        SettingsError: The settings are wrong: without them the Vendor is good.
    """
    hooks = _hooks(plugin)
    _inputs(plugin.name, hooks)
    try:
        return _not_reserved(_vendor(plugin.name, hooks, settings), settings)
    except BrokenPlugin as exc:
        if settings and _is_sound(plugin.name, hooks):
            raise SettingsError(f"with these {exc}") from exc
        raise


def _is_sound(name: str, hooks: PluginHooks) -> bool:
    """Whether the plugin makes a good Vendor without settings."""
    with suppress(Exception):
        return _vendor(name, hooks, {}) is not None
    return False


def _vendor(name: str, hooks: PluginHooks, settings: Mapping[str, Any]) -> Vendor | None:
    hooks.need("register_backend", "agent.vendor_api.hooks.hookimpl")
    return _checked(name, hooks.ask("register_backend", settings=settings))


def _inputs(name: str, hooks: PluginHooks) -> ConfigInputs | None:
    return _checked_inputs(name, hooks.ask("register_config_inputs"))


def _checked(name: str, offered: object) -> Vendor | None:
    """The Vendor, if the agent can work with it.

    Raises:
        BrokenPlugin: It cannot; the text names the field.
    """
    if offered is None:
        return None
    if not isinstance(offered, Vendor):
        raise BrokenPlugin(f"register_backend returned a {type(offered).__name__}, a Vendor is needed")
    if trouble := _trouble(name, offered) or _trouble_of_facts(offered.publishes):
        raise BrokenPlugin(f"register_backend returned a bad Vendor: {trouble}")
    return contained(with_named_parts(offered))


def _checked_inputs(name: str, registered: object) -> ConfigInputs | None:
    """The ConfigInputs, if the agent can work with them.

    Raises:
        BrokenPlugin: It cannot; the text names the field.
    """
    if registered is None:
        return None
    if not isinstance(registered, ConfigInputs):
        shape = type(registered).__name__
        raise BrokenPlugin(f"register_config_inputs returned a {shape}, ConfigInputs are needed")
    trouble = wrong_field(registered) or _trouble_of_flags(name, registered)
    if trouble:
        raise BrokenPlugin(f"register_config_inputs returned bad ConfigInputs: {trouble}")
    return contained(registered)


def _trouble_of_flags(name: str, inputs: ConfigInputs) -> str:
    for index, flag in enumerate(inputs.flags.flags if inputs.flags is not None else ()):
        path = f"flags.flags[{index}]"
        if not flag.names and not flag.variables:
            return f"{path} has no names and no variables; one of them is needed"
        if not settable(name, flag.sets):
            needed = f"vendors.{name}.settings.KEY, vendors.{name}.enabled, agent.KEY or report.KEY"
            return f"{path}.sets is {shorten(flag.sets)!r}; {needed} is needed"
    return ""


def _not_reserved(vendor: Vendor | None, settings: Mapping[str, Any]) -> Vendor | None:
    """The Vendor, unless its resource has a name that belongs to a scheduler.

    Raises:
        SettingsError: The name stands in the settings; the error has the path.
        BrokenPlugin: The plugin chose the name.
    """
    wrong = reserved_name(vendor.resource, reserved()) if vendor is not None else ""
    if vendor is None or not wrong:
        return vendor
    key = next((key for key, value in settings.items() if value == vendor.resource), None)
    if key is not None:
        raise SettingsError(wrong, (key,))
    raise BrokenPlugin(f"register_backend returned a bad Vendor: resource is wrong: {wrong}")


def _trouble(name: str, vendor: Vendor) -> str:
    if trouble := wrong_field(vendor):
        return trouble
    if vendor.name != name:
        return f"name is {shorten(vendor.name)!r}; it is registered as {name!r}"
    if not _is_reference(vendor.backend):
        return f'backend is {vendor.backend!r}; "package.module:Class" is needed'
    if wrong := wrong_name(vendor.resource):
        return f"resource is wrong: {wrong}"
    dialects = {f"dialects[{index}]": it for index, it in enumerate(vendor.dialects)}
    if vendor.pod_limits is not None:
        dialects["pod_limits"] = vendor.pod_limits
    trouble = next(filter(None, (wrong_dialect(path, it) for path, it in dialects.items())), "")
    return trouble or _trouble_of_settings(vendor.settings)


def _trouble_of_facts(facts: NodeFacts) -> str:
    """Functions without the keys that they write: the agent could not own the keys, and would write none."""
    if facts.annotations is not None and not facts.annotation_keys:
        return "publishes.annotation_keys is (); the keys that publishes.annotations writes are needed"
    if facts.extended_resources is not None and not facts.extended_resource_keys:
        return "publishes.extended_resource_keys is (); the names of publishes.extended_resources are needed"
    return ""


def _trouble_of_settings(settings: Settings) -> str:
    for name, values in (("for_backend", settings.for_backend), ("defaults", settings.defaults)):
        try:
            msgspec.json.encode(values)
        except (TypeError, ValueError, msgspec.MsgspecError) as exc:
            return f"settings.{name} are no plain JSON values: {exc}"
    return ""


def _is_reference(text: str) -> bool:
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))
