"""Command-line flags and environment variables, ours and NVIDIA's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.config.given_values import GivenValue
from agent.config.location import KeyLocation
from agent.config.nvidia_flags import NVIDIA_FLAGS, Flag, read
from agent.core.errors import ConfigError
from agent.vendor_api.text import shorten

PREFIX = "XPU_AGENT_"

#: The agent's own flags, and the key that each sets.
FLAGS = {
    "kubelet-dir": "agent.kubeletDir",
    "pod-resources-socket": "agent.podResourcesSocket",
    "state-dir": "agent.stateDir",
    "cdi-dir": "agent.cdiDir",
    "http": "agent.http",
    "watch-pods": "agent.watchPods",
    "log-dir": "agent.log.dir",
    "log-format": "agent.log.format",
    "log-level": "agent.log.level",
    "report-labels": "report.labels",
    "report-events": "report.events",
    "device-infos-dir": "report.deviceInfosDir",
}


def variable(flag: str) -> str:
    """The environment variable of a flag of the agent: XPU_AGENT_STATE_DIR for state-dir."""
    return PREFIX + flag.upper().replace("-", "_")


def given_flags(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[GivenValue, ...]:
    """What both set, in rising precedence: the environment, the command line; of each NVIDIA's, then ours.

    `arguments` are named as flags; None is not set, a list is a flag that was repeated.

    Raises:
        ConfigError: A value cannot be read; the text names the flag or the variable.
    """
    return (*_from_environ(environ), *_from_arguments(arguments))


def _from_environ(environ: Mapping[str, str]) -> Iterator[GivenValue]:
    for flag in NVIDIA_FLAGS:
        name = next((name for name in flag.variables if name in environ), None)
        if name is not None:
            yield from _theirs(flag, environ[name], name)
    for ours in FLAGS:
        name = variable(ours)
        if name in environ:
            yield GivenValue(ours, _text(environ[name], name), KeyLocation(name))


def _from_arguments(arguments: Mapping[str, Any]) -> Iterator[GivenValue]:
    for flag in NVIDIA_FLAGS:
        value = arguments.get(flag.name)
        if value is not None:
            text = ",".join(value) if isinstance(value, list) else value
            yield from _theirs(flag, text, f"--{flag.name}")
    for ours in FLAGS:
        value = arguments.get(ours)
        if value is not None:
            yield GivenValue(ours, _text(value, f"--{ours}"), KeyLocation(f"--{ours}"))


def _theirs(flag: Flag, text: str, where: str) -> Iterator[GivenValue]:
    try:
        value = read(flag.kind, _text(text, where))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}, found '{shorten(text, 60)}'") from None
    if value is not None:
        yield GivenValue(flag.name, value, KeyLocation(where))


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: is not UTF-8 text, found '{shorten(text, 60)}'") from None
    return text
