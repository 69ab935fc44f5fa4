"""The simulated backend: reads the scenario file at each call, as other backends ask a driver."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from agent.vendor_api.backend import (
    Backend,
    BackendUnavailable,
    Device,
    HealthEvent,
    Link,
    Partition,
    ProcessUsage,
    Request,
    RequestRefused,
    Usage,
)
from agent.vendors.simulated.child.registered_processes import registered
from agent.vendors.simulated.child.scenario import ScenarioContent, cards, parse
from agent.vendors.simulated.child.slices import SliceFile
from agent.vendors.simulated.shared.cdi_spec import SPEC, spec

POLL_INTERVAL = 0.008  # seconds between two reads of the file


class SimulatedBackend(Backend):
    """Devices, faults and slices by the setting `scenario`, or `devices` healthy cards without one.

    A change of faults in the file makes health events. `crash` and `garbage` of the scenario are counts: the
    backend crashes, or answers garbage once, when the count has grown since `open`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._path = Path(settings["scenario"]) if settings.get("scenario") else None
        self._slices = SliceFile(Path(settings["partitions"])) if settings.get("partitions") else None
        self._at_open = ScenarioContent()
        self._garbage_reported = 0
        self._reported = ScenarioContent()
        self._stamp_reported: tuple[int, ...] = ()
        self._leaked: list[bytes] = []

    def open(self) -> None:
        scenario = self._read_scenario()
        self._at_open = scenario
        self._garbage_reported = scenario.garbage
        self._reported = replace(ScenarioContent(), proofs=scenario.proofs)
        self._stamp_reported = ()
        self._behave("open")

    def discover(self) -> Sequence[Device]:
        scenario = self._behave("discover")
        if scenario.leak:
            self._leaked.append(b"x" * scenario.leak)
        if scenario.garbage > self._garbage_reported:
            self._garbage_reported = scenario.garbage
            return cast("Sequence[Device]", ["garbage"])
        return tuple(self._device(it, scenario.due.get(it.uuid)) for it in scenario.devices)

    def links(self, uuid: str) -> Sequence[Link]:
        scenario = self._behave("links")
        time.sleep(scenario.links_delay)
        return next((device.links for device in scenario.devices if device.uuid == uuid), ())

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        until = time.monotonic() + timeout
        while True:
            events = self._new_events()
            if events or time.monotonic() >= until:
                return events
            time.sleep(POLL_INTERVAL)

    def prepare(self, request: Request, uuids: Sequence[str]) -> Sequence[Partition]:
        refused = self._behave("prepare").refuse
        if self._slices is None:
            raise RuntimeError("no slices without the setting `partitions`")
        if refused:
            raise RequestRefused(refused)
        made = self._slices.make(request, uuids)
        self._behave("prepared")
        return made

    def release(self, allocation: str) -> None:
        self._behave("release")
        if self._slices is not None:
            self._slices.remove(allocation)

    def partitions(self) -> Sequence[Partition]:
        self._behave("partitions")
        return () if self._slices is None else self._slices.all()

    def cdi(self) -> Mapping[str, str]:
        self._behave("cdi")
        return {SPEC: spec(self.partitions())} if self.settings.get("cdi") else {}

    def usage(self) -> Sequence[Usage]:
        scenario = self._behave("usage")
        used = {it.uuid: it for it in _used(scenario.devices, self._processes(scenario))}
        scripted = {
            uuid: replace(used.get(uuid, Usage(uuid)), **figures) for uuid, figures in scenario.usage.items()
        }
        return tuple({**used, **scripted}.values())

    def processes(self) -> Sequence[ProcessUsage]:
        return self._processes(self._behave("processes"))

    def _processes(self, scenario: ScenarioContent) -> tuple[ProcessUsage, ...]:
        more = registered(Path(scenario.registrations)) if scenario.registrations else ()
        return (*scenario.processes, *more)

    def _device(self, device: Device, due: bool | None) -> Device:
        # No node has /dev/xpu0, and a container with a missing device node never starts.
        paths = device.paths if self.settings.get("deviceNodes") else ()
        return replace(device, paths=paths, links=(), recovery_due=due)

    def _new_events(self) -> tuple[HealthEvent, ...]:
        """An event for each device with another fault, or with a new proof that its fault ended."""
        stamp = self._stamp()
        if stamp == self._stamp_reported:
            return ()
        old, new = self._reported, self._behave("health_events")
        self._stamp_reported, self._reported = stamp, new
        proofs = dict(new.proofs[len(old.proofs) :])
        changed = [
            uuid for uuid in {**old.faults, **new.faults} if old.faults.get(uuid) != new.faults.get(uuid)
        ]
        return tuple(
            HealthEvent(uuid, new.faults.get(uuid), proofs.get(uuid))
            for uuid in dict.fromkeys([*changed, *proofs])
        )

    def _behave(self, call: str) -> ScenarioContent:
        """Hang, crash or fail in this call if the scenario says so, else return the scenario."""
        while (scenario := self._read_scenario()).hang == call:
            self._crash_if_due(scenario)
            time.sleep(POLL_INTERVAL)
        self._crash_if_due(scenario)
        if scenario.unavailable and call in ("open", "discover"):
            raise BackendUnavailable(*scenario.unavailable)
        return scenario

    def _crash_if_due(self, scenario: ScenarioContent) -> None:
        if scenario.crash > self._at_open.crash:
            os.kill(os.getpid(), signal.SIGSEGV)

    def _read_scenario(self) -> ScenarioContent:
        if self._path is None:
            return parse({"devices": cards(self.settings.get("devices", 0))})
        try:
            return parse(json.loads(self._path.read_text()))
        except FileNotFoundError:
            raise BackendUnavailable("no-scenario", f"{self._path} does not exist") from None

    def _stamp(self) -> tuple[int, ...]:
        """Changes whenever the file does, and costs one `stat`."""
        if self._path is None:
            return (0,)
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return self._stamp_reported  # `discover` reports the missing file
        return (status.st_mtime_ns, status.st_ino, status.st_size)


def _used(devices: Sequence[Device], processes: Sequence[ProcessUsage]) -> Iterator[Usage]:
    """The use of each device by the processes on it."""
    by_device: dict[str, list[ProcessUsage]] = {}
    for process in processes:
        by_device.setdefault(process.uuid, []).append(process)
    for device in devices:
        here = by_device.get(device.uuid, ())
        yield Usage(
            device.uuid,
            memory_used=sum(it.memory or 0 for it in here),
            memory_total=device.memory,
            # In this order NaN stays NaN, which the agent leaves out.
            utilization=min(sum(it.utilization or 0.0 for it in here), 1.0),
        )
