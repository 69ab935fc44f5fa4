"""The effective configuration as a document, which `config check` prints and the agent can read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from agent.config.location import camel
from agent.config.settings import Config
from agent.vendor_api.config_inputs import dotted
from agent.vendor_api.text import printable


def effective(config: Config) -> dict[str, Any]:
    """Every key with its value, as plain JSON values."""
    parts = {key: getattr(config, key) for key in ("agent", "vendors", "report", "usage", "metrics")}
    return {"version": "v1", **_plain(parts)}


def elsewhere(config: Config, source: str) -> Iterator[str]:
    """Each key that is not from `source`, with its place: a flag, a variable, or another file."""
    for path, place in config.places.items():
        if place.source != source:
            yield f"{dotted(path)}: {printable(place.where)}"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        named = ((camel(it.name), getattr(value, it.name)) for it in fields(value))
        return {name: _plain(inner) for name, inner in named if inner is not None}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def to_yaml(config: Config) -> str:
    """The effective configuration as YAML that the agent reads back to the same values."""
    import yaml

    from agent.config.yaml_document import SCALARS

    class Dumper(yaml.SafeDumper):
        """Quotes texts that YAML 1.1 or 1.2 would read as another type."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    for tag, pattern, first in SCALARS:
        Dumper.add_implicit_resolver(tag, pattern, first)
    return yaml.dump(effective(config), Dumper=Dumper, sort_keys=False, allow_unicode=False, width=10_000)
