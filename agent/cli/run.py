"""`run`: the agent itself."""

from __future__ import annotations

import argparse
import gc
import os
import signal

from .common_arguments import INTERRUPTED, api_server, configuration, given_by, node_name_of
from .parser import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("run", help="run the agent on this node", allow_abbrev=False)
    configuration(parser)
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    """`xpu-agent run`: serve until SIGTERM."""
    import anyio
    import structlog

    from agent import logs
    from agent.config import ConfigWatch, Labels, given_flags, given_source
    from agent.core.cell import Cell
    from agent.daemon.process import serve
    from agent.daemon.vendor_config import check_config
    from agent.daemon.vendor_plugins import config_inputs, flag_clashes
    from agent.state.last_config_file import remembered_from

    arguments, node_name = given_by(args), node_name_of(args)
    inputs = config_inputs()
    source, flags = given_source(arguments, os.environ, inputs), given_flags(arguments, os.environ, inputs)
    warnings = list(flag_clashes())
    access = api_server(args, warnings.append)
    labels: Cell[Labels | None] | None = Cell(None) if access else None
    watch = ConfigWatch(
        source, node_name, flags=flags, check=check_config, labels=labels, recall=remembered_from
    )
    logs.configure(watch.cell.value.config.agent.log)
    for warning in warnings:  # before, the config had not said how to log
        structlog.get_logger().warning(warning)
    try:
        anyio.run(serve, watch, node_name, None, access, labels)
    finally:
        logs.flush()  # a thread writes the log; the sentence of an error is the last line
    return 0


def begin() -> None:
    """What comes before all imports of `run`, those of plugins included."""
    gc.disable()  # `serve` enables the collector after the first registration
    end_at_once()
    import agent.logs  # noqa: F401 (before the plugins import structlog, which would then bring rich with it)


def end_at_once() -> None:
    """Handle signals before the event loop does. Nothing has begun yet that would have to be ended.

    The handlers exit and do not raise: code that loads plugins, or the callback of a weak reference, which
    every import has, would catch an exception.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # no config is read yet that could be read again
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
