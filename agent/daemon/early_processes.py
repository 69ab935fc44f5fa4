"""Vendors' processes that discover their cards while the agent still imports what serves the kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import structlog

from agent.config import Config, ConfigState
from agent.daemon.vendor_config import plugins_in_service
from agent.daemon.vendor_plugins import VendorPlugin
from agent.isolation import agent_memory_limit, descendants
from agent.isolation.presence import absence
from agent.isolation.vendor_memory_limit import limits
from agent.isolation.vendor_process import EXIT_PATIENCE, VendorProcess
from agent.state import vendor_directories
from agent.vendor_api.agent import Vendor

log = structlog.get_logger()


class EarlyProcesses:
    """The processes of the vendors that one config wants and that are on this node, each with `open` sent.

    `VendorsInService` takes each of them as if its supervisor had started it. `end` ends what is left.
    """

    def __init__(
        self, config: Config, plugins: tuple[VendorPlugin, ...], processes: Mapping[str, VendorProcess]
    ) -> None:
        """`plugins` are those of the config; `processes` have the names of vendors."""
        self.config = config
        self.plugins = plugins
        self._left = {**processes}

    def take(self, name: str) -> VendorProcess | None:
        """The vendor's process, which belongs to the caller from then on; None where there is none."""
        return self._left.pop(name, None)

    async def end(self) -> None:
        """Kill the processes that were not taken, and wait a moment for their end."""
        while self._left:
            _, process = self._left.popitem()
            with anyio.move_on_after(EXIT_PATIENCE, shield=True):
                await process.end()
            process.drop()


def start_early(state: ConfigState, state_dir: Path, watch: float) -> EarlyProcesses | None:
    """Start the processes; None where no config is in force yet. The lock of the node must be held.

    Processes that a vendor's library left behind under an agent that was killed are ended first.

    `watch`: seconds of one wait for events (`Deadlines.events`). A process that cannot be started is left
    out: its supervisor tries again and reports the error.
    """
    if left := descendants.end_of_the_dead():
        log.warning("processes that a vendor's library left behind are ended", ended=left)
    if state.waiting:
        return None
    config = state.config
    plugins = plugins_in_service(config)
    vendors = {it.name: it.vendor for it in plugins if it.vendor is not None and _is_here(it.vendor, config)}
    sizes = {name: config.vendor(name).memory_limit for name in vendors}
    processes: dict[str, VendorProcess] = {}
    for name, limit in limits(sizes, agent_memory_limit.memory_limit()).items():
        directory = vendor_directories.of(state_dir, name)
        with suppress(OSError):
            processes[name] = VendorProcess(vendors[name], watch=watch, limit=limit, directory=directory)
    return EarlyProcesses(config, plugins, processes)


def _is_here(vendor: Vendor, config: Config) -> bool:
    return config.vendor(vendor.name).sought or not absence(vendor)
