"""Chooses one of several named configurations, by the rules of NVIDIA's config-manager."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, get_args

from agent.core.errors import ConfigError
from agent.vendor_api.text import shorten

Fallback = Literal["named", "single", "empty"]

FALLBACKS: tuple[Fallback, ...] = get_args(Fallback)
#: The default of NVIDIA's chart.
DEFAULT_FALLBACKS: tuple[Fallback, ...] = ("named", "single")
#: The name that the fallback `named` chooses.
_DEFAULT_NAME = "default"


def chosen(names: Collection[str], named: str, default: str, fallbacks: Sequence[Fallback]) -> str:
    """The name of the chosen configuration; empty for all defaults.

    `named` is what this node asks for, `default` applies if it asks for nothing.
    Source: cmd/config-manager/main.go of NVIDIA/k8s-device-plugin v0.20, updateConfigName.

    Raises:
        ConfigError: No configuration can be chosen; NVIDIA's words, with the existing names.
    """
    if not names:
        raise ConfigError("no configuration files available")
    wanted = named or default
    if wanted:
        if wanted not in names:
            raise ConfigError(f"specified config {shorten(wanted)} does not exist; {_listed(names)}")
        return wanted
    for fallback in fallbacks:
        match fallback:
            case "named" if _DEFAULT_NAME in names:
                return _DEFAULT_NAME
            case "single" if len(names) == 1:
                return next(iter(names))
            case "empty":
                return ""
    why = "no config was set, no default was provided, and all fallbacks failed"
    raise ConfigError(f"{why}; give --node-config or --default-config, {_listed(names)}")


def _listed(names: Collection[str]) -> str:
    return f"there are: {shorten(', '.join(sorted(names)), 400)}"
