"""What the vendors in tree read beside the configuration, for tests that read files of other programs."""

from __future__ import annotations

from pathlib import Path

from agent.config import ConfigSource
from agent.daemon.vendor_plugins import config_inputs

INPUTS = config_inputs()


def source_of(path: Path) -> ConfigSource:
    """A file, or a directory of files, as the agent reads it."""
    return ConfigSource(path, inputs=INPUTS)
