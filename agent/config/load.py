"""Reads a configuration file into the values that hold on this node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.config.flags import given_flags
from agent.config.given import Given
from agent.config.overlay import with_flags
from agent.config.settings import AgentSettings, Config, ReportSettings, VendorSettings
from agent.config.source import Seen, Source, given_source
from agent.core.errors import ConfigError

if TYPE_CHECKING:
    from agent.config.document import Node

OURS = ("agent", "vendors", "report", "nodes")


def load(
    source: Source | Path | None,
    node_name: str,
    *,
    vendors: Collection[str] | None = None,
    flags: Sequence[Given] = (),
) -> Config:
    """Read what the source has now; without one everything has its default. `vendors`: those that exist.

    Raises:
        ConfigError: It can not be used; the text says where and what would work.
    """
    where = source if isinstance(source, Source) else Source(source)
    return taken(where.look(), node_name, vendors=vendors, flags=flags)


def configured(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    node_name: str,
    vendors: Collection[str] | None = None,
) -> Config:
    """Read what the command line and the environment name; `arguments` are called as flags, None is not set.

    Raises:
        ConfigError: It can not be used; the text says where and what would work.
    """
    source, flags = given_source(arguments, environ), given_flags(arguments, environ)
    return load(source, node_name, vendors=vendors, flags=flags)


def taken(
    seen: Seen, node_name: str, *, vendors: Collection[str] | None = None, flags: Sequence[Given] = ()
) -> Config:
    """The configuration of what was seen, with the flags laid over.

    Raises:
        ConfigError: It can not be used, or there was nothing to see.
    """
    if seen.error:
        raise ConfigError(seen.error)
    if not seen.content:
        return with_flags(Config(), flags)
    return parse(text_of(seen.content, seen.source), seen.source, node_name, vendors=vendors, flags=flags)


def text_of(content: bytes, source: str) -> str:
    """The content as text.

    Raises:
        ConfigError: It is not UTF-8.
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
    flags: Sequence[Given] = (),
) -> Config:
    """Read the text of a file called `source`, and lay the flags over it.

    Raises:
        ConfigError: It can not be used; the text says where and what would work.
    """
    # Both cost tens of milliseconds, and an agent without a file needs neither.
    from agent.config import document, nvidia_v1
    from agent.config.place import found, refused
    from agent.config.shape import mapping

    root = document.read(text, source)
    given = mapping(root, source, ())
    ours = [key for key in given if key in OURS]
    theirs = [key for key in given if key.lower() in nvidia_v1.KEYS]
    if ours and theirs:
        message = f"'{theirs[0]}' is a key of NVIDIA's file, '{ours[0]}' is one of ours; use one of both"
        raise refused(source, given[theirs[0]].line, (), message)
    version = given.get("version")
    if version is not None and version.value not in (None, "", "v1"):
        shown = version.value if isinstance(version.value, str) else found(version.value)
        raise refused(source, version.line, ("version",), f"unknown version: {str(shown)[:40]!s}; write v1")
    if theirs:
        return nvidia_v1.read(root, source, flags)
    return with_flags(_ours(root, source, node_name, vendors), flags)


def _ours(root: Node, source: str, node_name: str, vendors: Collection[str] | None) -> Config:
    from agent.config import nodes, nvidia_v1, rules
    from agent.config.place import nearest, refused
    from agent.config.shape import build, known, mapping
    from agent.config.shape import vendors as vendor_settings

    names = dict.fromkeys(("version", *OURS, *nvidia_v1.KEYS), "")
    known(Config, mapping(root, source, ()), names, source, ())
    tree = nodes.applied(root, source, node_name)
    given = mapping(tree, source, ())
    config = Config(
        agent=build(AgentSettings, given["agent"], source, ("agent",))
        if "agent" in given
        else AgentSettings(),
        vendors=vendor_settings(given["vendors"], source, VendorSettings) if "vendors" in given else {},
        report=build(ReportSettings, given["report"], source, ("report",))
        if "report" in given
        else ReportSettings(),
    )
    for name in config.vendors:
        if vendors is not None and name not in vendors:
            path = ("vendors", name)
            raise refused(source, tree.line_of(path), path, f"no such vendor; {nearest(name, vendors)}")
    problem = next(rules.problems(config), None)
    if problem is not None:
        raise refused(source, tree.line_of(problem.path), problem.path, problem.message)
    return config
