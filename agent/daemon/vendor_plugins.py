"""Finds the vendors' plugins, in the tree and of other distributions, and loads those that are enabled."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import pluggy

import agent.vendors
from agent.config.flag_overlay import settable
from agent.core.kubernetes_names import reserved_name, wrong_name
from agent.daemon.field_types import wrong_field
from agent.daemon.plugin_discovery import BrokenPlugin, FoundPlugin, found
from agent.daemon.scheduler_parts import with_named_parts
from agent.daemon.scheduler_plugins import reserved, wrong_dialect
from agent.vendor_api.agent import NodeFacts, Settings, SettingsError, Vendor
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hooks import ENTRY_POINTS, PROJECT, VendorHooks
from agent.vendor_api.text import shorten

NOT_ENABLED = "not enabled"
SITS_OUT = "not in use: it offers nothing with these settings, and its README says which ones it needs"


@dataclass(frozen=True, slots=True)
class VendorPlugin:
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


def load(
    settings: Mapping[str, Mapping[str, Any]], wanted: Container[str] | None = None
) -> tuple[VendorPlugin, ...]:
    """Load the wanted vendors (None: all that are installed); others are listed, not imported.

    A plugin that is broken, and a vendor of the settings that is not installed, is left out and harms no
    other.
    """
    registry = _Registry()
    known = sorted(set(names()))
    unknown = [name for name in settings if name not in known and _wants(wanted, name)]
    return (
        *(
            _loaded(plugin, registry, settings.get(plugin.name, {}))
            if _wants(wanted, plugin.name)
            else VendorPlugin(plugin.name, plugin.origin, plugin.version, None, NOT_ENABLED)
            for plugin in _found()
        ),
        *(_unknown(name, known) for name in unknown),
    )


def _loaded(plugin: FoundPlugin, registry: _Registry, settings: Mapping[str, Any]) -> VendorPlugin:
    if plugin.clash:
        return _left_out(plugin, plugin.clash)
    try:
        vendor = registry.offer(plugin, settings)
    except SettingsError as exc:
        return replace(_left_out(plugin, f"settings: {exc}"), refusal=exc)
    except BrokenPlugin as exc:
        return _left_out(plugin, str(exc))
    except (Exception, SystemExit) as exc:
        return _left_out(plugin, f"{type(exc).__name__}: {exc}")
    reason = SITS_OUT if vendor is None else ""
    return VendorPlugin(plugin.name, plugin.origin, plugin.version, vendor, reason)


def names() -> tuple[str, ...]:
    """The names of all installed vendors, enabled or not."""
    return tuple(it.name for it in _found())


def config_inputs() -> dict[str, ConfigInputs]:
    """What each vendor reads beside the configuration, by name; imports every vendor.

    A plugin that is broken reads nothing. `load` says why, where the vendor is wanted.
    """
    registry, read = _Registry(), {}
    for plugin in _found():
        with suppress(Exception, SystemExit):
            inputs = None if plugin.clash else registry.config_inputs(plugin)
            if inputs is not None:
                read[plugin.name] = inputs
    return read


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


class _Registry:
    """Calls hooks of plugins through pluggy, with types that pluggy does not have."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(VendorHooks)

    def offer(self, plugin: FoundPlugin, settings: Mapping[str, Any]) -> Vendor | None:
        """The Vendor that the plugin makes of the settings; None where it sits out.

        Raises:
            BrokenPlugin: The plugin does not keep the contract.
            SettingsError: The settings are wrong.
        """
        with self._registered(plugin) as module:
            self._inputs(plugin.name, module)
            return self._sound(plugin.name, module, settings)

    def config_inputs(self, plugin: FoundPlugin) -> ConfigInputs | None:
        """What the plugin reads beside the configuration."""
        with self._registered(plugin) as module:
            return self._inputs(plugin.name, module)

    @contextmanager
    def _registered(self, plugin: FoundPlugin) -> Iterator[object]:
        """The plugin's module, which stays registered only where no error leaves the block."""
        module = plugin.load()
        self._manager.register(module, name=plugin.name)
        try:
            self._manager.check_pending()
            yield module
        except BaseException:
            self._manager.unregister(module)
            raise

    def _sound(self, name: str, module: object, settings: Mapping[str, Any]) -> Vendor | None:
        """The Vendor. Where it is good without the settings and bad with them, the settings are refused."""
        try:
            return _not_reserved(self._vendor(name, module, settings), settings)
        except BrokenPlugin as exc:
            if settings and self._is_sound(name, module):
                raise SettingsError(f"with these {exc}") from exc
            raise

    def _is_sound(self, name: str, module: object) -> bool:
        with suppress(Exception, SystemExit):
            return self._vendor(name, module, {}) is not None
        return False

    def _vendor(self, name: str, module: object, settings: Mapping[str, Any]) -> Vendor | None:
        hooks = self._manager.get_hookcallers(module) or []
        if not any(it.name == "register_backend" for it in hooks):
            raise BrokenPlugin(
                "implements no hook; decorate register_backend with agent.vendor_api.hooks.hookimpl"
            )
        return _checked(name, self._ask(module, "register_backend", settings=settings))

    def _inputs(self, name: str, module: object) -> ConfigInputs | None:
        return _checked_inputs(name, self._ask(module, "register_config_inputs"))

    def _ask(self, module: object, hook: str, **arguments: object) -> object:
        others = [it for it in self._manager.get_plugins() if it is not module]
        caller = self._manager.subset_hook_caller(hook, remove_plugins=others)
        answer: object = caller(**arguments)
        return answer


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
    return with_named_parts(offered)


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
    return registered


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
