"""Lays flags and variables over a configuration: each sets one key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path as FilePath
from typing import Any, TypeVar, get_args

from agent.config import validation
from agent.config.given_flags import FLAGS, GivenValue
from agent.config.location import camel
from agent.config.settings import AgentSettings, Config, LogFormat, LogLevel, ReportSettings
from agent.vendor_api.config_inputs import Path
from agent.vendor_api.text import error_text, shorten

T = TypeVar("T")


def with_flags(config: Config, given: Iterable[GivenValue]) -> Config:
    """Lay the values over the configuration, in rising precedence, and check the result.

    Raises:
        ConfigError: A value cannot be used; the text names its place.
    """
    last: dict[str, GivenValue] = {}
    for value in given:
        last.pop(value.flag, None)
        last[value.flag] = value
    for value in last.values():
        config = _set_of_vendor(config, value) if value.vendor else _set_of_agent(config, value)
    places = {_key(it): it.place for it in last.values() if _key(it)}
    config = replace(config, places={**config.places, **places})
    validation.check(config)
    return config


def settable(vendor: str, key: str) -> bool:
    """Whether a flag of the vendor may set this key; empty sets nothing."""
    match key.split("."):
        case [""] | ["vendors", _, "enabled"]:
            return key in ("", f"vendors.{vendor}.enabled")
        case ["vendors", name, "settings", setting]:
            return name == vendor and bool(setting)
        case ["agent", name]:
            return name in map(camel, AgentSettings.__slots__)
        case ["report", name]:
            return name in map(camel, ReportSettings.__slots__)
    return False


def _key(given: GivenValue) -> Path:
    """The key that it sets, if any."""
    dotted = given.sets if given.vendor else FLAGS[given.flag]
    return tuple(dotted.split(".")) if dotted else ()


def _set_of_agent(config: Config, given: GivenValue) -> Config:
    agent, report, text = config.agent, config.report, str(given.value)
    match given.flag:
        case "http":
            agent = replace(agent, http="" if text == "off" else text)
        case "log-dir":
            agent = replace(agent, log=replace(agent.log, dir=text))
        case "log-format":
            agent = replace(agent, log=replace(agent.log, format=_one_of(given, text, get_args(LogFormat))))
        case "log-level":
            agent = replace(agent, log=replace(agent.log, level=_one_of(given, text, get_args(LogLevel))))
        case "watch-pods":
            agent = replace(agent, watch_pods=_switch(given, text))
        case "report-labels":
            report = replace(report, labels=_switch(given, text))
        case "report-events":
            report = replace(report, events=_switch(given, text))
        case "device-infos-dir":
            report = replace(report, device_infos_dir=str(_absolute(given)))
        case "usage-enabled":
            return replace(config, usage=replace(config.usage, enabled=_switch(given, text)))
        case "metrics-compat":
            compat = tuple(filter(None, (it.strip() for it in text.split(","))))
            return replace(config, metrics=replace(config.metrics, compat=compat))
        case path:
            changed: dict[str, Any] = {path.replace("-", "_"): _absolute(given)}
            agent = replace(agent, **changed)
    return replace(config, agent=agent, report=report)


def _set_of_vendor(config: Config, given: GivenValue) -> Config:
    value, settings = _convert(given), config.vendor(given.vendor)
    if value is None:
        return config
    match given.sets.split("."):
        case ["vendors", _, "settings", key]:
            return _with_vendor(config, given.vendor, settings={**settings.settings, key: value})
        case ["vendors", _, "enabled"] if settings.enabled is not False:
            return _with_vendor(config, given.vendor, enabled=value)
        case ["agent", key]:
            return replace(config, agent=_with_key(config.agent, key, value))
        case ["report", key]:
            return replace(config, report=_with_key(config.report, key, value))
    return config


def _convert(given: GivenValue) -> Any:
    """The value of the key that the flag sets; None where it sets none."""
    convert = given.definition.value if given.definition is not None else None
    try:
        value = convert(given.value) if convert is not None else given.value
    except ValueError as error:
        raise given.refused(str(error)) from None
    except Exception as error:  # contributors' code
        raise given.refused(f"the plugin of {given.vendor} fails to read it: {error_text(error)}") from None
    return list(value) if isinstance(value, tuple) else value


def _with_vendor(config: Config, name: str, **changed: Any) -> Config:
    vendor = replace(config.vendor(name), **changed)
    return replace(config, vendors={**config.vendors, name: vendor})


def _with_key(part: T, key: str, value: Any) -> T:
    """The settings with this value of the key, as the configuration file calls it."""
    name = next(field.name for field in fields(part) if camel(field.name) == key)  # type: ignore[arg-type]
    is_path = isinstance(getattr(part, name), FilePath)
    return replace(part, **{name: FilePath(value) if is_path else value})  # type: ignore[type-var]


def _absolute(given: GivenValue) -> FilePath:
    if why := validation.not_absolute(str(given.value)):
        raise given.refused(why)
    return FilePath(str(given.value))


def _switch(given: GivenValue, text: str) -> bool:
    return bool(_one_of(given, text, ("true", "false")) == "true")


def _one_of(given: GivenValue, text: str, choices: tuple[str, ...]) -> Any:
    if text not in choices:
        raise given.refused(f"must be one of {', '.join(choices)}, found '{shorten(text, 60)}'")
    return text
