"""The `agent` part of a file that is otherwise unusable, as far as its keys can be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.config import validation
from agent.config.location import camel
from agent.config.settings import AgentSettings, Config
from agent.config.source import SourceContent
from agent.core.errors import ConfigError

if TYPE_CHECKING:
    from agent.vendor_api.config_inputs import YamlNode

#: The lines below the key `agent` at the top level, indented as people do.
_LINES = re.compile(rb"^agent:[^\n]*(?:\n(?:[ \t#][^\n]*)?)*", re.MULTILINE)
#: How many of these lines are read of a file that is no YAML.
_MAX_LINES = 60


def stated(seen: SourceContent, node_name: str) -> AgentSettings:
    """Each key of `agent` that is valid by itself; other keys have their defaults.

    In a file that is no YAML, the lines below `agent` are read up to the first error.
    """
    settings = AgentSettings()
    for key, child in _keys(seen, node_name).items():
        settings = _with(settings, key, child, seen.source)
    return settings


def _with(settings: AgentSettings, key: str, child: YamlNode, source: str) -> AgentSettings:
    from agent.config.schema import build
    from agent.vendor_api.config_inputs import YamlNode

    with suppress(ConfigError):
        alone = build(AgentSettings, YamlNode({key: child}, child.line), source, ("agent",))
        values = {name: getattr(alone, name) for name in AgentSettings.__slots__ if camel(name) == key}
        more: AgentSettings = replace(settings, **values)
        validation.check(Config(agent=more))
        return more
    return settings


def _keys(seen: SourceContent, node_name: str) -> Mapping[str, YamlNode]:
    root = _root(seen)
    part = root.value.get("agent") if root is not None and isinstance(root.value, Mapping) else None
    with suppress(ConfigError):
        part = _of_node(root, seen.source, node_name) or part
    return part.value if part is not None and isinstance(part.value, Mapping) else {}


def _of_node(root: YamlNode | None, source: str, node_name: str) -> YamlNode | None:
    """The `agent` part with this node's overrides that do not depend on labels."""
    from agent.config import node_overrides
    from agent.config.known_labels import NOWHERE

    tree = node_overrides.applied(root, source, node_name, NOWHERE).tree if root is not None else None
    return tree.value.get("agent") if tree is not None and isinstance(tree.value, Mapping) else None


def _root(seen: SourceContent) -> YamlNode | None:
    from agent.config import yaml_document

    with suppress(ConfigError):
        return yaml_document.read(seen.content.decode(errors="replace"), seen.source)
    found = _LINES.search(seen.content)
    lines = found[0].decode(errors="replace").splitlines()[:_MAX_LINES] if found else []
    while lines:
        with suppress(ConfigError):
            return yaml_document.read("\n".join(lines), seen.source)
        lines.pop()
    return None
