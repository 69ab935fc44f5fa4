"""Lays flags and variables over a configuration: each sets one key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, get_args

from agent.config import validation
from agent.config.flags import FLAGS
from agent.config.given_values import GivenValue
from agent.config.nvidia_flags import BY_NAME, VENDOR
from agent.config.settings import Config, LogFormat, LogLevel
from agent.vendor_api.config_inputs import Path
from agent.vendor_api.text import shorten

_DISCOVERY = ("auto", "nvml")
_DISCOVERY_ELSEWHERE = ("tegra", "vfio")


def with_flags(config: Config, given: Iterable[GivenValue]) -> Config:
    """Lay the values over the configuration, in rising precedence, and check the result.

    Raises:
        ConfigError: A value cannot be used; the text names its place.
    """
    last: dict[str, GivenValue] = {}
    for it in given:
        last.pop(it.flag, None)
        last[it.flag] = it
    for it in last.values():
        config = _ours(config, it) if it.flag in FLAGS else _theirs(config, it)
    said = {_key(it.flag): it.place for it in last.values() if _key(it.flag)}
    config = replace(config, places={**config.places, **said})
    validation.check(config)
    return config


def _key(flag: str) -> Path:
    """The key that it sets, if any."""
    dotted = FLAGS[flag] if flag in FLAGS else BY_NAME[flag].sets
    return tuple(dotted.split(".")) if dotted else ()


def _ours(config: Config, given: GivenValue) -> Config:
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
        case path:
            changed: dict[str, Any] = {path.replace("-", "_"): _absolute(given)}
            agent = replace(agent, **changed)
    return replace(config, agent=agent, report=report)


def _theirs(config: Config, given: GivenValue) -> Config:
    match BY_NAME[given.flag].sets.split("."):
        case ["vendors", _, "settings", key]:
            return _vendor(config, settings={**config.vendor(VENDOR).settings, key: _plain(given)})
        case ["vendors", _, "enabled"] if config.vendor(VENDOR).enabled is not False:
            return _vendor(config, enabled=True if given.value else "auto")
        case ["agent", "kubeletDir"]:
            return replace(config, agent=replace(config.agent, kubelet_dir=_kubelet_dir(given)))
        case ["report", "timestamp"]:
            return replace(config, report=replace(config.report, timestamp=not given.value))
        case ["report", "labelsAs"] if given.value:
            return replace(config, report=replace(config.report, labels_as="nodeFeature"))
        case ["report", "namespace"]:
            return replace(config, report=replace(config.report, namespace=str(given.value)))
        case ["report", "featuresFile"]:
            return replace(config, report=replace(config.report, features_file=str(given.value)))
        case ["report", "machineFile"]:
            return replace(config, report=replace(config.report, machine_file=str(given.value)))
    if given.flag == "device-discovery-strategy":
        _check_discovery(given)
    return config


def _vendor(config: Config, **changed: Any) -> Config:
    vendor = replace(config.vendor(VENDOR), **changed)
    return replace(config, vendors={**config.vendors, VENDOR: vendor})


def _plain(given: GivenValue) -> Any:
    return list(given.value) if isinstance(given.value, tuple) else given.value


def _kubelet_dir(given: GivenValue) -> FilePath:
    if not given.value:
        why = "must name the kubelet's socket: an agent without a kubelet is not served; try `xpu-agent demo`"
        raise given.refused(why)
    return _absolute(given).parent


def _absolute(given: GivenValue) -> FilePath:
    if why := validation.not_absolute(str(given.value)):
        raise given.refused(why)
    return FilePath(str(given.value))


def _check_discovery(given: GivenValue) -> None:
    strategy = str(given.value)
    if strategy in _DISCOVERY_ELSEWHERE:
        raise given.refused(f"'{strategy}' is not served by this release; it serves 'auto' or 'nvml'")
    if strategy not in _DISCOVERY:
        shown = shorten(strategy, 60)
        raise given.refused(f"unable to validate flags: invalid --device-discovery-strategy option {shown}")


def _switch(given: GivenValue, text: str) -> bool:
    return bool(_one_of(given, text, ("true", "false")) == "true")


def _one_of(given: GivenValue, text: str, choices: tuple[str, ...]) -> Any:
    if text not in choices:
        raise given.refused(f"must be one of {', '.join(choices)}, found '{shorten(text, 60)}'")
    return text
