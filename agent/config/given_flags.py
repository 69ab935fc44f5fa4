"""Command-line flags and environment variables, of the agent and of vendors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.config.location import KeyLocation
from agent.core.errors import ConfigError
from agent.vendor_api.config_flags import Flag, FlagValue, flag_value
from agent.vendor_api.config_inputs import ConfigInputs, FileFlag
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
    "usage-enabled": "usage.enabled",
    "metrics-compat": "metrics.compat",
}


@dataclass(frozen=True, slots=True)
class GivenValue:
    """The value of a flag, and the place that gives it."""

    flag: str
    value: FlagValue
    place: KeyLocation
    #: The vendor that defines the flag, and its definition; empty and None for a flag of the agent.
    vendor: str = ""
    definition: Flag | None = None

    @property
    def sets(self) -> str:
        """The key that a vendor's flag sets, with dots; empty where it sets none."""
        return self.definition.sets if self.definition is not None else ""

    def refused(self, why: str) -> ConfigError:
        """An error that names the place."""
        return ConfigError(self.place.with_place((), why))


def variable(flag: str) -> str:
    """The environment variable of a flag of the agent: XPU_AGENT_STATE_DIR for state-dir."""
    return PREFIX + flag.upper().replace("-", "_")


def given_flags(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    inputs: Mapping[str, ConfigInputs] | None = None,
) -> tuple[GivenValue, ...]:
    """All values that the environment and the command line set, in rising precedence.

    The environment comes first; in each of the two the flags of vendors come before the agent's own.

    `arguments` are named as flags; None is not set, a list is a flag that was repeated. `inputs`: what each
    vendor reads besides the configuration, by the vendor's name.

    Raises:
        ConfigError: A value cannot be read; the text names the flag or the variable.
    """
    flags = [(vendor, flag) for vendor, reads in (inputs or {}).items() for flag in _flags(reads)]
    return (*_from_environ(environ, flags), *_from_arguments(arguments, flags))


def flags_of_file(vendor: str, reads: ConfigInputs, flags: Iterable[FileFlag]) -> Iterator[GivenValue]:
    """The flags of the vendor that a file of another program sets; one that the vendor lacks sets nothing."""
    known = {flag.name: flag for flag in _flags(reads)}
    for flag in flags:
        if flag.name in known:
            place = KeyLocation(flag.place.source, flag.place.node, flag.place.path)
            yield GivenValue(flag.name, flag.value, place, vendor, known[flag.name])


def _flags(reads: ConfigInputs) -> tuple[Flag, ...]:
    return reads.flags.flags if reads.flags is not None else ()


def _from_environ(environ: Mapping[str, str], flags: Sequence[tuple[str, Flag]]) -> Iterator[GivenValue]:
    for vendor, flag in flags:
        name = next((name for name in flag.variables if name in environ), None)
        if name is not None:
            yield from _of_vendor(vendor, flag, environ[name], name)
    for agent_flag in FLAGS:
        name = variable(agent_flag)
        if name in environ:
            yield GivenValue(agent_flag, _text(environ[name], name), KeyLocation(name))


def _from_arguments(arguments: Mapping[str, Any], flags: Sequence[tuple[str, Flag]]) -> Iterator[GivenValue]:
    for vendor, flag in flags:
        value = arguments.get(flag.name)
        if value is not None:
            text = ",".join(value) if isinstance(value, list) else value
            yield from _of_vendor(vendor, flag, text, f"--{flag.name}")
    for agent_flag in FLAGS:
        value = arguments.get(agent_flag)
        if value is not None:
            yield GivenValue(agent_flag, _text(value, f"--{agent_flag}"), KeyLocation(f"--{agent_flag}"))


def _of_vendor(vendor: str, flag: Flag, text: str, where: str) -> Iterator[GivenValue]:
    try:
        value = flag_value(flag.kind, _text(text, where))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}, found '{shorten(text, 60)}'") from None
    if value is not None:
        yield GivenValue(flag.name, value, KeyLocation(where), vendor, flag)


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: is not UTF-8 text, found '{shorten(text, 60)}'") from None
    return text
