"""Reads the configuration as `run` would read it with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agent.config import (
    CONFIG_LABEL,
    AgentSettings,
    Config,
    ConfigSource,
    LabelsUnknown,
    NodeLabels,
    configured,
    given_flags,
    given_source,
    stated,
    with_flags,
)
from agent.core.errors import ConfigError
from agent.daemon.scheduler_plugins import registered
from agent.daemon.vendor_config import check_config, plugins_in_service
from agent.daemon.vendor_plugins import config_inputs
from agent.doctor.doctor_arguments import DoctorArguments
from agent.doctor.surroundings import Configuration


def read_configuration(arguments: DoctorArguments, labels: NodeLabels) -> Configuration:
    """The configuration for a Node with these labels, and the plugins that it enables.

    As in `run`, a vendor without an installed package is left out, and the other vendors stay. An invalid
    configuration keeps the flags and the valid keys of `agent`, because they name directories and sockets. No
    vendor is enabled then.
    """
    source = ConfigSource()
    try:
        inputs = config_inputs()
        source = given_source(arguments.given, arguments.environ, inputs)
        node = arguments.node
        config = check_config(
            configured(arguments.given, arguments.environ, node, labels=labels, inputs=inputs)
        )
        # A Node without this label uses the default file of the directory, so the label is not missing there.
        chooses_file = source.is_directory and labels.get(CONFIG_LABEL)
        return Configuration(
            config,
            source.look(labels).source,
            plugins=plugins_in_service(config),
            schedulers=registered(),
            labels=tuple(sorted({*config.asks, *([CONFIG_LABEL] if chooses_file else [])})),
        )
    except ConfigError as exc:
        usable = stated(source.look(labels), arguments.node)
        return Configuration(
            _with_usable_flags(usable, arguments),
            str(arguments.given.get("config") or "defaults"),
            str(exc),
            schedulers=registered(),
            awaits_labels=isinstance(exc, LabelsUnknown),
        )


def _with_usable_flags(settings: AgentSettings, arguments: DoctorArguments) -> Config:
    """The settings of the file, overlaid with each variable and each flag that can be used alone."""
    config, inputs = Config(agent=settings), config_inputs()
    one_by_one: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [
        *(({}, {name: value}) for name, value in arguments.environ.items()),
        *(({name: value}, {}) for name, value in arguments.given.items()),
    ]
    for flag, variable in one_by_one:
        with suppress(ConfigError):
            config = with_flags(config, given_flags(flag, variable, inputs))
    return config
