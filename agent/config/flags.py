"""Command-line flags and environment variables, which win over the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from agent.config.address import parse_address
from agent.config.settings import Config, LogFormat, LogLevel
from agent.core.errors import ConfigError
from agent.core.text import shorten

PREFIX = "XPU_AGENT_"

FLAGS = ("kubelet-dir", "pod-resources-socket", "state-dir", "http", "log-format", "log-level")


def from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The flags that the environment sets: XPU_AGENT_STATE_DIR is --state-dir."""
    named = ((flag, PREFIX + flag.upper().replace("-", "_")) for flag in FLAGS)
    return {flag: environ[name] for flag, name in named if name in environ}


def with_flags(config: Config, flags: Mapping[str, str | Path | None]) -> Config:
    """Lay the flags that are set over the configuration; None is not set.

    Raises:
        ConfigError: A value can not be used; the text names the flag.
    """
    agent, log = config.agent, config.agent.log
    for key, given in flags.items():
        if given is None:
            continue
        flag, text = key.removeprefix("--").replace("_", "-"), str(given)
        match flag:
            case "kubelet-dir" | "pod-resources-socket" | "state-dir":
                changed: dict[str, Any] = {flag.replace("-", "_"): _path(flag, text)}
                agent = replace(agent, **changed)
            case "http":
                agent = replace(agent, http=_http(text))
            case "log-format":
                log = replace(log, format=_one_of(flag, text, get_args(LogFormat)))
            case "log-level":
                log = replace(log, level=_one_of(flag, text, get_args(LogLevel)))
            case _:
                raise ConfigError(
                    f"--{shorten(flag)}: is no setting of the agent; those are {', '.join(FLAGS)}"
                )
    return replace(config, agent=replace(agent, log=log))


def _path(flag: str, text: str) -> Path:
    if not text.startswith("/") or "\0" in text:
        raise ConfigError(f"--{flag}: must be an absolute path, found '{shorten(text, 60)}'")
    return Path(text)


def _http(text: str) -> str:
    if text in ("", "off"):
        return ""
    try:
        return str(parse_address(text))
    except ConfigError as error:
        raise ConfigError(f"--http: {error}") from None


def _one_of(flag: str, text: str, choices: tuple[str, ...]) -> Any:
    if text not in choices:
        raise ConfigError(f"--{flag}: must be one of {', '.join(choices)}, found '{shorten(text, 60)}'")
    return text
