"""`xpu-agent labels`: asks the vendors once what is here, and prints or writes the labels of the node."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from agent import logs
from agent.config import Config, LogSettings
from agent.core.errors import VendorError
from agent.core.model import VendorState
from agent.core.publishing.label_rules import NodeStamp, as_lines, labels_of
from agent.daemon.publishing.wanted_labels import machine
from agent.daemon.vendor_plugins import VendorPlugin
from agent.daemon.vendors_in_service import check, wanted
from agent.host.nfd_features import write
from agent.isolation.supervisor import VendorProcess
from agent.vendor_api.agent import Device, HealthEvent, Vendor

#: Seconds in which a vendor must have listed its devices; a driver may take some to wake each card.
PATIENCE = 30.0


def show(config: Config, output: Path | None, *, as_json: bool) -> int:
    """Print the labels, or write them there. Exit 1 where no vendor could be asked.

    Why one could not be asked stands on standard error.

    Raises:
        AgentError: The config cannot be used, or the file not be written.
    """
    check(config)
    logs.configure(LogSettings(level="error"))  # what goes wrong with a vendor is told here, and once
    stamp = NodeStamp(machine(config.report.machine_file), time.time() if config.report.timestamp else None)
    said = anyio.run(ask, config, wanted(config), stamp)
    for name, reason in said.reasons.items():
        sys.stderr.write(f"xpu-agent: {name}: {reason}\n")
    if not said.asked:
        return 1
    found = said.labels
    text = json.dumps(found, indent=2, sort_keys=True) + "\n" if as_json else as_lines(found)
    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
    return 0


@dataclass(slots=True)
class VendorAnswers:
    """What the vendors answered together: labels, how many had an answer, and why the others had none."""

    labels: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    reasons: dict[str, str] = field(default_factory=dict)


async def ask(
    config: Config, plugins: Sequence[VendorPlugin], stamp: NodeStamp, patience: float = PATIENCE
) -> VendorAnswers:
    """Ask all vendors at once. One that has no labels is not started for them."""
    said = VendorAnswers()

    async def one(plugin: VendorPlugin) -> None:
        try:
            rules = config.vendor(plugin.name).resources
            devices = await devices_of(plugin, patience)
            if plugin.vendor is not None:
                said.labels |= labels_of(plugin.vendor, rules, devices, stamp)
            said.asked += 1
        except VendorError as exc:
            said.reasons[plugin.name] = str(exc).removeprefix(f"{plugin.name}: ")

    async with anyio.create_task_group() as group:
        for plugin in plugins:
            group.start_soon(one, plugin)
    return said


async def devices_of(plugin: VendorPlugin, patience: float) -> Sequence[Device]:
    """The devices that the vendor's labels follow from, as they are now.

    Raises:
        VendorError: It is left out, not available here, failed, or was silent for too long.
    """
    if plugin.vendor is None:
        raise VendorError(plugin.reason)
    return () if plugin.vendor.publishes.labels is None else await first_list(plugin.vendor, patience)


async def first_list(vendor: Vendor, patience: float) -> Sequence[Device]:
    """The vendor's devices, read in a process that ends with this.

    Raises:
        VendorError: Its first word was another, or there was none in `patience` seconds.
    """
    word = _FirstReport()
    async with anyio.create_task_group() as group:
        group.start_soon(VendorProcess(vendor, word).run)
        with anyio.move_on_after(patience):
            await word.spoken.wait()
        group.cancel_scope.cancel()
    if word.devices is None:
        raise VendorError(word.reason or f"did not list its devices within {patience:g} s")
    return word.devices


class _FirstReport:
    """Hears of a vendor's process until it has listed its devices, or was lost."""

    def __init__(self) -> None:
        self.spoken = anyio.Event()
        self.devices: Sequence[Device] | None = None
        self.reason = ""

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        self.devices = devices
        self.spoken.set()

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        self.reason = reason
        self.spoken.set()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        """Health makes no label."""

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """Nor do CDI specs."""

    def unspecified(self, vendor: str, reason: str) -> None:
        """Nor what keeps them from being made."""
