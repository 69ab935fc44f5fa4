"""Reads a configuration file into the values that apply to this node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.config.flag_overlay import with_flags
from agent.config.given_flags import GivenValue, given_flags
from agent.config.known_labels import NOWHERE, LabelsUnknown, NodeLabels
from agent.config.settings import Config
from agent.config.side_files import SideFiles
from agent.config.source import ConfigSource, SourceContent, given_source
from agent.core.errors import ConfigError
from agent.vendor_api.config_inputs import ConfigFormat, ConfigInputs
from agent.vendor_api.text import shorten

if TYPE_CHECKING:
    from agent.vendor_api.config_inputs import YamlNode


def load(
    source: ConfigSource | Path | None,
    node_name: str,
    *,
    vendors: Collection[str] | None = None,
    flags: Sequence[GivenValue] = (),
    labels: NodeLabels = NOWHERE,
) -> Config:
    """Read the source as it is now; without a source, all values are defaults. `vendors` are the known ones.

    Raises:
        ConfigError: The configuration cannot be used; the text says where and what would work.
    """
    where = source if isinstance(source, ConfigSource) else ConfigSource(source)
    seen = where.look(labels)
    return taken(seen, node_name, vendors=vendors, flags=flags, labels=labels, inputs=where.inputs)


def configured(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    node_name: str,
    vendors: Collection[str] | None = None,
    labels: NodeLabels = NOWHERE,
    inputs: Mapping[str, ConfigInputs] | None = None,
) -> Config:
    """Read what the command line and the environment name; `arguments` are called as flags, None is not set.

    Raises:
        ConfigError: It cannot be used; the text says where and what would work.
    """
    source, flags = given_source(arguments, environ, inputs), given_flags(arguments, environ, inputs)
    return load(source, node_name, vendors=vendors, flags=flags, labels=labels)


def taken(
    seen: SourceContent,
    node_name: str,
    *,
    vendors: Collection[str] | None = None,
    flags: Sequence[GivenValue] = (),
    labels: NodeLabels = NOWHERE,
    inputs: Mapping[str, ConfigInputs] | None = None,
) -> Config:
    """The configuration from a look's content, with the flags laid over it.

    Raises:
        ConfigError: The configuration cannot be used, or the look failed.
        LabelsUnknown: It depends on a label of the Node that is not known yet.
    """
    if seen.error:
        raise LabelsUnknown(seen.error) if seen.labels_awaited else ConfigError(seen.error)
    if not seen.content:
        return with_flags(Config(), flags)
    text = text_of(seen.content, seen.source)
    return parse(
        text,
        seen.source,
        node_name,
        vendors=vendors,
        flags=flags,
        labels=labels,
        inputs=inputs,
        side_files=seen.side_files,
    )


def text_of(content: bytes, source: str) -> str:
    """The content as text.

    Raises:
        ConfigError: The content is not UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: is not UTF-8 text (byte {error.start})") from None


def parse(
    text: str,
    source: str,
    node_name: str,
    *,
    vendors: Collection[str] | None = None,
    flags: Sequence[GivenValue] = (),
    labels: NodeLabels = NOWHERE,
    inputs: Mapping[str, ConfigInputs] | None = None,
    side_files: Sequence[SideFiles] = (),
) -> Config:
    """Read the text of a file called `source`, and lay the flags over it.

    `inputs`: what each vendor reads besides the configuration, by the vendor's name; None: nothing.
    `side_files`: the files that the configuration names, as they were read with it; others are read now.

    Raises:
        ConfigError: It cannot be used; the text says where and what would work.
    """
    # These cost tens of milliseconds, and an agent without a file needs none of them.
    from agent.config import own_document, vendor_formats, yaml_document

    root = yaml_document.read(text, source)
    known = inputs or {}
    foreign = _foreign(root, source, known)
    _check_version(root, source)
    if foreign is not None:
        return vendor_formats.read(root, source, *foreign, known, flags)
    config = own_document.read(root, source, node_name, vendors, labels, known, side_files)
    return with_flags(config, flags)


def _foreign(
    root: YamlNode, source: str, inputs: Mapping[str, ConfigInputs]
) -> tuple[str, ConfigFormat] | None:
    """The vendor and the format, where the file is another program's.

    Raises:
        ConfigError: The file is partly another program's and partly the agent's own.
    """
    from agent.config import own_document
    from agent.config.location import refused
    from agent.config.schema import mapping
    from agent.config.vendor_formats import format_with

    keys = mapping(root, source, ())
    found = format_with([*keys], inputs)
    if found is None:
        return None
    vendor, kind, first = found
    own_key = next((key for key in keys if key in own_document.KEYS), None)
    if own_key is not None:
        message = f"'{first}' is a key of {kind.title}, '{own_key}' is a key of the agent's; use one of both"
        raise refused(source, keys[first].line, (), message)
    return vendor, kind


def _check_version(root: YamlNode, source: str) -> None:
    """Both styles have the one version v1.

    Raises:
        ConfigError: It is another.
    """
    from agent.config.location import refused
    from agent.config.schema import mapping
    from agent.vendor_api.config_inputs import found

    version = mapping(root, source, ()).get("version")
    if version is not None and version.value not in (None, "", "v1"):
        shown = version.value if isinstance(version.value, str) else found(version.value)
        raise refused(source, version.line, ("version",), f"unknown version: {shorten(shown, 40)}; write v1")
