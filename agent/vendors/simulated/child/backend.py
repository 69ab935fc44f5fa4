"""The simulated backend: reads the scenario file again and again, as others ask a driver."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
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
    Request,
    RequestRefused,
)
from agent.vendors.simulated.cdi import SPEC, spec
from agent.vendors.simulated.child.scenario import ScenarioContent, cards, parse
from agent.vendors.simulated.child.slices import SliceFile

GLANCE = 0.008  # seconds between looks at the file


class SimulatedBackend(Backend):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._path = Path(settings["scenario"]) if settings.get("scenario") else None
        self._slices = SliceFile(Path(settings["partitions"])) if settings.get("partitions") else None
        self._born_with = ScenarioContent()
        self._garbage_told = 0
        self._events_told = ScenarioContent()
        self._stamp_told: tuple[int, ...] = ()
        self._leaked: list[bytes] = []

    def open(self) -> None:
        script = self._script()
        self._born_with = script
        self._garbage_told = script.garbage
        self._events_told = replace(ScenarioContent(), proofs=script.proofs)
        self._stamp_told = ()
        self._behave("open")

    def discover(self) -> Sequence[Device]:
        script = self._behave("discover")
        if script.leak:
            self._leaked.append(b"x" * script.leak)
        if script.garbage > self._garbage_told:
            self._garbage_told = script.garbage
            return cast("Sequence[Device]", ["garbage"])
        return tuple(self._told(it, script.due.get(it.uuid)) for it in script.devices)

    def links(self, uuid: str) -> Sequence[Link]:
        script = self._behave("links")
        time.sleep(script.links_delay)
        return next((device.links for device in script.devices if device.uuid == uuid), ())

    def health_events(self, timeout: float) -> Sequence[HealthEvent]:
        until = time.monotonic() + timeout
        while True:
            events = self._news()
            if events or time.monotonic() >= until:
                return events
            time.sleep(GLANCE)

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

    def _told(self, device: Device, due: bool | None) -> Device:
        # No node has /dev/xpu0, and a container that is given what its node lacks never starts.
        paths = device.paths if self.settings.get("deviceNodes") else ()
        return replace(device, paths=paths, links=(), recovery_due=due)

    def _news(self) -> tuple[HealthEvent, ...]:
        """The state of each device whose fault changed or was proven over since the last look."""
        stamp = self._stamp()
        if stamp == self._stamp_told:
            return ()
        old, new = self._events_told, self._behave("health_events")
        self._stamp_told, self._events_told = stamp, new
        proofs = dict(new.proofs[len(old.proofs) :])
        changed = [
            uuid for uuid in {**old.faults, **new.faults} if old.faults.get(uuid) != new.faults.get(uuid)
        ]
        return tuple(
            HealthEvent(uuid, new.faults.get(uuid), proofs.get(uuid))
            for uuid in dict.fromkeys([*changed, *proofs])
        )

    def _behave(self, call: str) -> ScenarioContent:
        """Do what the scenario wants of this call, and return what it says."""
        while (script := self._script()).hang == call:
            self._crash_if_told(script)
            time.sleep(GLANCE)
        self._crash_if_told(script)
        if script.unavailable and call in ("open", "discover"):
            raise BackendUnavailable(*script.unavailable)
        return script

    def _crash_if_told(self, script: ScenarioContent) -> None:
        if script.crash > self._born_with.crash:
            os.kill(os.getpid(), signal.SIGSEGV)

    def _script(self) -> ScenarioContent:
        if self._path is None:
            return parse({"devices": cards(self.settings.get("devices", 0))})
        try:
            return parse(json.loads(self._path.read_text()))
        except FileNotFoundError:
            raise BackendUnavailable("no-scenario", f"{self._path} does not exist") from None

    def _stamp(self) -> tuple[int, ...]:
        """What changes with the file, cheap to get."""
        if self._path is None:
            return (0,)
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return self._stamp_told  # discover tells of it
        return (status.st_mtime_ns, status.st_ino, status.st_size)
