"""`xpu-agent labels`: lists the devices once, and prints or writes the labels of the node."""

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
from agent.core.publishing.label_rules import NodeStamp, as_lines, vendor_labels
from agent.daemon.publishing.wanted_labels import machine
from agent.daemon.vendor_config import check_config, wanted_plugins
from agent.daemon.vendor_plugins import VendorPlugin
from agent.host.nfd_features import write
from agent.isolation.vendor_supervisor import VendorSupervisor
from agent.vendor_api.agent import Device, HealthEvent, Vendor

#: Seconds in which a vendor must have listed its devices; a driver may take some to wake each card.
PATIENCE = 30.0


def show(config: Config, output: Path | None, *, as_json: bool) -> int:
    """Print the labels, or write them to `output`; returns the exit status, 1 where no vendor answered.

    The reason why a vendor did not answer goes to standard error.

    Raises:
        AgentError: The config cannot be used, or the file cannot be written.
    """
    check_config(config)
    logs.configure(LogSettings(level="error"))  # what goes wrong with a vendor is printed below, once
    stamp = NodeStamp(machine(config.report.machine_file), time.time() if config.report.timestamp else None)
    answers = anyio.run(ask, config, wanted_plugins(config), stamp)
    for name, reason in answers.reasons.items():
        sys.stderr.write(f"xpu-agent: {name}: {reason}\n")
    if not answers.asked:
        return 1
    found = answers.labels
    text = json.dumps(found, indent=2, sort_keys=True) + "\n" if as_json else as_lines(found)
    if output is None:
        sys.stdout.write(text)
    else:
        write(output, text)
    return 0


@dataclass(slots=True)
class VendorAnswers:
    """Labels of all vendors, how many vendors answered, and why the others did not."""

    labels: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    reasons: dict[str, str] = field(default_factory=dict)


async def ask(
    config: Config, plugins: Sequence[VendorPlugin], stamp: NodeStamp, patience: float = PATIENCE
) -> VendorAnswers:
    """Ask all vendors at the same time. The process of a vendor without labels is not started."""
    answers = VendorAnswers()

    async def one(plugin: VendorPlugin) -> None:
        try:
            rules = config.vendor(plugin.name).resources
            devices = await devices_of(plugin, patience)
            if plugin.vendor is not None:
                answers.labels |= vendor_labels(plugin.vendor, rules, devices, stamp)
            answers.asked += 1
        except VendorError as exc:
            answers.reasons[plugin.name] = str(exc).removeprefix(f"{plugin.name}: ")

    async with anyio.create_task_group() as group:
        for plugin in plugins:
            group.start_soon(one, plugin)
    return answers


async def devices_of(plugin: VendorPlugin, patience: float) -> Sequence[Device]:
    """The devices that the vendor's labels follow from, as they are now.

    Raises:
        VendorError: The vendor is left out, not available here, failed, or did not answer in time.
    """
    if plugin.vendor is None:
        raise VendorError(plugin.reason)
    return () if plugin.vendor.publishes.labels is None else await first_list(plugin.vendor, patience)


async def first_list(vendor: Vendor, patience: float) -> Sequence[Device]:
    """The vendor's devices, listed by a process that ends with this call.

    Raises:
        VendorError: The vendor reported something else first, or nothing in `patience` seconds.
    """
    report = _FirstReport()
    async with anyio.create_task_group() as group:
        group.start_soon(VendorSupervisor(vendor, report).run)
        with anyio.move_on_after(patience):
            await report.received.wait()
        group.cancel_scope.cancel()
    if report.devices is None:
        raise VendorError(report.reason or f"did not list its devices within {patience:g} s")
    return report.devices


class _FirstReport:
    """Takes the reports of a vendor's process until it has listed its devices, or was lost."""

    def __init__(self) -> None:
        self.received = anyio.Event()
        self.devices: Sequence[Device] | None = None
        self.reason = ""

    def discovered(self, vendor: str, devices: Sequence[Device]) -> None:
        self.devices = devices
        self.received.set()

    def lost(self, vendor: str, state: VendorState, reason: str) -> None:
        self.reason = reason
        self.received.set()

    def observed(self, vendor: str, events: Sequence[HealthEvent]) -> None:
        """Ignored: no label follows from health."""

    def specified(self, vendor: str, specs: Mapping[str, str]) -> None:
        """Ignored: no label follows from CDI specs."""

    def unspecified(self, vendor: str, reason: str) -> None:
        """Ignored: no label follows from CDI specs."""
