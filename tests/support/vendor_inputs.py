"""The functions of `agent.config` with what the vendors in tree read: files, flags, variables of others."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agent import config
from agent.config import ConfigSource
from agent.daemon.vendor_plugins import config_inputs

INPUTS = config_inputs()
#: Flags of NVIDIA's programs.
NVIDIA_FLAGS = INPUTS["nvidia"].flags.flags if INPUTS["nvidia"].flags is not None else ()

parse = partial(config.parse, inputs=INPUTS)
configured = partial(config.configured, inputs=INPUTS)
given_flags = partial(config.given_flags, inputs=INPUTS)
given_source = partial(config.given_source, inputs=INPUTS)


def source_of(path: Path) -> ConfigSource:
    """A file, or a directory of files, as the agent reads it."""
    return ConfigSource(path, inputs=INPUTS)
