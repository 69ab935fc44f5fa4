"""Reads a configuration file into the values that hold on this node."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from agent import files
from agent.config.settings import AgentSettings, Config, ReportSettings, VendorSettings
from agent.core.errors import ConfigError

if TYPE_CHECKING:
    from agent.config.document import Node

OURS = ("agent", "vendors", "report", "nodes")
DEFAULTS = "defaults"
_MAX_BYTES = 1 << 20


def load(path: Path | None, node_name: str, *, vendors: Collection[str] | None = None) -> Config:
    """Read the file; without one everything has its default. `vendors` are the names that exist.

    Raises:
        ConfigError: It can not be used; the text says where and what would work.
    """
    if path is None:
        return Config()
    return parse(text_of(read_bytes(path), str(path)), str(path), node_name, vendors=vendors)


def read_bytes(path: Path) -> bytes:
    """The content of the file, never more than a little over what is allowed.

    Raises:
        ConfigError: It can not be read.
    """
    try:
        return files.read(path, _MAX_BYTES, devices=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: can not be read: {why}; give --config a readable file") from error


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


def parse(text: str, source: str, node_name: str, *, vendors: Collection[str] | None = None) -> Config:
    """Read the text of a file called `source`.

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
    theirs = [key for key in given if key in nvidia_v1.KEYS]
    if ours and theirs:
        message = f"'{theirs[0]}' is a key of NVIDIA's file, '{ours[0]}' is one of ours; use one of both"
        raise refused(source, given[theirs[0]].line, (), message)
    version = given.get("version")
    if version is not None and version.value not in (None, "", "v1"):
        shown = version.value if isinstance(version.value, str) else found(version.value)
        raise refused(source, version.line, ("version",), f"unknown version: {str(shown)[:40]!s}; write v1")
    if theirs:
        return Config(vendors={"nvidia": nvidia_v1.read(root, source)})
    return _ours(root, source, node_name, vendors)


def _ours(root: Node, source: str, node_name: str, vendors: Collection[str] | None) -> Config:
    from agent.config import nodes, rules
    from agent.config.place import nearest, refused
    from agent.config.shape import build, known, mapping
    from agent.config.shape import vendors as vendor_settings

    names = dict.fromkeys(("version", *OURS), "")
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
