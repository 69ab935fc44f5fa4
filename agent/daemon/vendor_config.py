"""Checks a config against the vendors' plugins, completes it, and says what of it cannot be served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from msgspec import structs

from agent.config import Config, VendorSettings
from agent.config.validation import overlaps, refuse, settings_without_use, shares_as_cards, shares_in_doubt
from agent.core.devices.offers import VendorRules
from agent.daemon.scheduler_plugins import registered, reserved
from agent.daemon.vendor_plugins import NOT_ENABLED, VendorPlugin, exporters_without_settings, load, names
from agent.scheduler_api.reserved_names import reserved_name
from agent.vendor_api.agent import Modes, ResourceRule, SettingsError, SettingsWarning, Sharing, Vendor
from agent.vendor_api.config_inputs import Path, nearest, one_of
from agent.vendor_api.text import shorten

#: Warnings about the settings of one vendor.
MAX_WARNINGS = 20


class _LastLoad:
    """The plugins of the config that was loaded last: a config that is checked is put in service next."""

    def __init__(self) -> None:
        #: Replaced at once: configs are checked in one thread and put in service in another.
        self._last: tuple[Mapping[str, VendorSettings] | None, tuple[VendorPlugin, ...]] = None, ()

    def of(self, config: Config) -> tuple[VendorPlugin, ...]:
        """The plugins, loaded unless the last config had this very section; a file that is read again has
        another one.
        """
        vendors, plugins = self._last
        if config.vendors is not vendors:
            off = {name for name, it in config.vendors.items() if it.enabled is False}
            plugins = load(_settings_by_vendor(config), {*names(), *config.vendors} - off)
            self._last = config.vendors, plugins
        return plugins


_last = _LastLoad()


def wanted_plugins(config: Config) -> tuple[VendorPlugin, ...]:
    """The plugins that the config wants, without those that have nothing to offer here."""
    found = _last.of(config)
    return tuple(it for it in found if it.vendor or it.broken or config.vendor(it.name).enabled is True)


def plugins_in_service(config: Config) -> tuple[VendorPlugin, ...]:
    """The wanted plugins, with one vendor for each resource. A second one is left out, with the reason."""
    return tuple(_without_clashes(wanted_plugins(config), config))


def unserved_sentences(config: Config) -> tuple[str, ...]:
    """A sentence with its place for each part of the config that no node with the vendors' cards can serve.

    The agent runs with such a config, serves the rest and is not ready.
    """
    able = {it.name for it in wanted_plugins(config) if it.vendor is not None}
    found: list[str] = []
    for plugin in plugins_in_service(config):
        at: Path = ("vendors", plugin.name, "resources")
        if plugin.vendor is not None:
            warnings = _rule_warnings(config, plugin.vendor)
            found += (config.with_place((*at, *it.path), it.message) for it in warnings)
        elif plugin.name in able:
            found.append(config.with_place(at, plugin.reason))
    return tuple(found)


def _rule_warnings(config: Config, vendor: Vendor) -> Iterator[SettingsWarning]:
    """The vendor's warnings about its rules. Rules that may name the same cards are checked one by one."""
    rules = _complete_rules(config, vendor)
    if vendor.offers.check_rules is None:
        return
    if _modes(config, vendor) != "dynamic":
        yield from vendor.offers.check_rules(rules) or ()
        return
    for index, rule in enumerate(rules):
        for warning in vendor.offers.check_rules((rule,)) or ():
            yield replace(warning, path=(index, *warning.path[1:]) if warning.path else ())


def vendor_rules(vendor: Vendor, config: Config) -> VendorRules:
    """The rules that the config has for the vendor."""
    resources = config.vendor(vendor.name).resources
    return VendorRules(vendor, resources, dynamic=_modes(config, vendor) == "dynamic")


def rules_by_vendor(config: Config) -> Mapping[str, VendorRules]:
    """The rules that the config has for each of its vendors."""
    vendors = [it.vendor for it in wanted_plugins(config) if it.vendor is not None]
    return {it.name: vendor_rules(it, config) for it in vendors}


def _modes(config: Config, vendor: Vendor) -> Modes:
    """Whether the vendor's resources may name the same cards, by the config or else by the vendor."""
    return config.vendor(vendor.name).modes or vendor.offers.modes


def _settings_by_vendor(config: Config) -> dict[str, dict[str, Any]]:
    return {
        name: {**own.settings, **({"library": own.library} if own.library else {})}
        for name, own in config.vendors.items()
    }


def check_config(config: Config) -> Config:
    """Have the vendors check their settings and rules; returns the config with all warnings.

    Raises:
        ConfigError: With the place of a setting that its vendor refuses, of a resource that takes the cards
            of another, or of an exporter that no vendor has while all are loaded. A broken plugin is no
            fault of the config: its vendor is left out.
    """
    if config.report.vendor and config.report.vendor not in (known := names()):
        why = f"no vendor of this name is installed; {nearest(config.report.vendor, known)}"
        raise config.refused(("report", "vendor"), why)
    for path, wrong in _reserved_names(config):
        raise config.refused(path, wrong)
    unused = settings_without_use(config)
    warnings = [*config.warnings, *(config.with_place(it.path, it.message) for it in unused)]
    warnings += _warnings_of_exporters(config)
    for scheduler in registered():
        refuse(config, shares_as_cards(config, scheduler))
        warnings += (config.with_place(it.path, it.message) for it in shares_in_doubt(config, scheduler))
    for plugin in wanted_plugins(config):
        if plugin.refusal is not None and plugin.name in config.vendors:
            raise config.refused(_setting_path(config, plugin.name, plugin.refusal.path), str(plugin.refusal))
        if plugin.vendor is not None:
            _check_overlap(config, plugin.vendor)
            _check_rules(config, plugin.vendor)
            found = islice(plugin.vendor.settings.warnings, MAX_WARNINGS)
            for warning in found:
                place = _setting_path(config, plugin.name, warning.path)
                warnings.append(config.with_place(place, warning.message))
    return replace(config, warnings=tuple(warnings))


def _reserved_names(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Places of resources with a name that belongs to a scheduler, each with a sentence on that."""
    for vendor, settings in config.vendors.items():
        for index, rule in enumerate(settings.resources):
            if wrong := reserved_name(rule.name, reserved()):
                yield ("vendors", vendor, "resources", index, "name"), wrong


def _warnings_of_exporters(config: Config) -> Iterator[str]:
    """A warning for each exporter that no loaded vendor has and one that is not loaded may have.

    Metrics must not cost the vendors that work their config.

    Raises:
        ConfigError: All vendors are loaded, and none has the exporter.
    """
    here = {name for it in wanted_plugins(config) for name in it.exporters}
    missing = [(index, name) for index, name in enumerate(config.metrics.compat) if name not in here]
    installed = exporters_without_settings() if missing else {}
    known = list(dict.fromkeys(name for exporters in installed.values() for name in exporters or ()))
    there = f"there are {one_of(known)}" if known else "there is none"
    unread = ", ".join(map(shorten, _without_known_exporters(config, installed)))
    for index, name in missing:
        if name not in known:
            wrong = f"no vendor has an exporter '{shorten(name, 60)}'; {there}"
            if not unread:
                raise config.refused(("metrics", "compat", index), wrong)
            wrong = f"{wrong}; not known are the exporters of {unread}"
            yield config.with_place(("metrics", "compat", index), wrong)


def _without_known_exporters(config: Config, installed: Mapping[str, Sequence[str] | None]) -> Sequence[str]:
    """The vendors whose plugin is broken, refuses its settings, or is disabled and needs settings."""
    return [
        plugin.name
        for plugin in _last.of(config)
        if plugin.broken or (plugin.reason == NOT_ENABLED and installed.get(plugin.name) is None)
    ]


def complete_config(config: Config) -> Config:
    """The configuration with the vendors' values in place of all that it leaves out, for people to read."""
    vendors = {it.name: it.vendor for it in wanted_plugins(config) if it.vendor is not None}
    filled = {
        name: replace(
            own,
            settings={**_defaults(vendors[name]), **own.settings},
            resources=_complete_rules(config, vendors[name]),
            modes=_modes(config, vendors[name]),
        )
        for name, own in config.vendors.items()
        if name in vendors
    }
    return replace(config, vendors={**config.vendors, **filled})


def _defaults(vendor: Vendor) -> Mapping[str, Any]:
    """The defaults of the vendor's settings, without the library, which has a key of its own."""
    return {key: value for key, value in vendor.settings.defaults.items() if key != "library"}


def _complete_rules(config: Config, vendor: Vendor) -> tuple[ResourceRule, ...]:
    """The configured rules. A rule without sharing or placement gets the vendor's."""
    filled = []
    for index, rule in enumerate(config.vendor(vendor.name).resources):
        at = ("vendors", vendor.name, "resources", index)
        own = vendor.offers.rule(rule.name)
        if rule.sharing == Sharing() and not config.is_set((*at, "sharing")):
            rule = replace(rule, sharing=own.sharing)
        if rule.placement == "local" and not config.is_set((*at, "placement")):
            rule = replace(rule, placement=own.placement)
        filled.append(replace(rule, policy=rule.policy or own.policy, ids=rule.ids or own.ids))
    return tuple(filled)


def _check_rules(config: Config, vendor: Vendor) -> None:
    """Have the vendor check the rules that the config asks of it."""
    if vendor.offers.check_rules is None:
        return
    try:
        vendor.offers.check_rules(_complete_rules(config, vendor))
    except SettingsError as refusal:
        at = ("vendors", vendor.name, "resources", *refusal.path)
        raise config.refused(at, str(refusal)) from None


def _setting_path(config: Config, vendor: str, path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The place of a vendor's setting in the config. The library has a key of its own."""
    if path[:1] == ("library",) and config.vendor(vendor).library:
        return ("vendors", vendor, *path)
    return ("vendors", vendor, "settings", *path)


def _check_overlap(config: Config, vendor: Vendor) -> None:
    """Refuse rules that name the same cards.

    A vendor with rules of its own for resources decides itself which cards `all` means for each of them.

    Raises:
        ConfigError: With the place of the rule.
    """
    rules, dynamic = config.vendor(vendor.name).resources, _modes(config, vendor) == "dynamic"
    for overlap in overlaps(
        _complete_rules(config, vendor), ("vendors", vendor.name, "resources"), dynamic=dynamic
    ):
        raise config.refused(overlap.path, overlap.message)
    if vendor.offers.resources is not None or len(rules) < 2 or dynamic:
        return
    for index, rule in enumerate(rules):
        if rule.devices == "all":
            others = ", ".join(shorten(it.name) for it in rules if it is not rule)
            message = f"'{shorten(rule.name)}' takes all cards, also those of {others}; set 'devices'"
            raise config.refused(("vendors", vendor.name, "resources", index, "devices"), message)


def _without_clashes(plugins: Iterable[VendorPlugin], config: Config) -> Iterator[VendorPlugin]:
    names: set[str] = set()
    takers: dict[str, str] = {}
    for plugin in sorted(plugins, key=lambda it: it.vendor is None):
        if plugin.name in names:
            continue
        names.add(plugin.name)
        if plugin.vendor is not None:
            served = _resource_names(config, plugin.vendor)
            taken = next((name for name in served if name in takers), None)
            if taken is not None:
                why = (
                    f"{takers[taken]} already serves {taken}; name another in vendors.{plugin.name}.resources"
                )
                plugin = structs.replace(plugin, vendor=None, reason=why, broken=True)
            else:
                takers.update(dict.fromkeys(served, plugin.name))
        yield plugin


def _resource_names(config: Config, vendor: Vendor) -> list[str]:
    """The names of the vendor's resources, as far as they are known without its devices."""
    return [rule.name for rule in config.vendor(vendor.name).resources] or [vendor.resource]
