"""The scenario file: the simulated devices, their faults, and how calls of the backend fail."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import (
    PCIE_ROOT,
    Device,
    Distance,
    Fault,
    Link,
    ProcessUsage,
    Proof,
    State,
)
from agent.vendors.simulated.child.registered_processes import process_usage

MEMORY = 80 << 30
MODEL = "Simulated H100 80GB"


@dataclass(frozen=True, slots=True)
class ScenarioContent:
    """The scenario file as it is now."""

    devices: tuple[Device, ...] = ()
    faults: Mapping[str, Fault] = field(default_factory=dict)
    proofs: tuple[tuple[str, Proof], ...] = ()
    due: Mapping[str, bool] = field(default_factory=dict)  # uuid to whether the card waits for a reset
    unavailable: tuple[str, str] | None = None  # reason, message
    hang: str = ""  # the call that does not return
    crash: int = 0  # the process dies each time this count grows
    garbage: int = 0  # `discover` answers garbage each time this count grows
    links_delay: float = 0.0  # seconds
    leak: int = 0  # bytes that each `discover` allocates and never frees
    refuse: str = ""  # why `prepare` refuses each request
    usage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # uuid to figures of `Usage`
    processes: tuple[ProcessUsage, ...] = ()
    registrations: str = ""  # the directory in which more processes register


def parse(raw: Mapping[str, Any]) -> ScenarioContent:
    """Decode the JSON value of a scenario. Raises KeyError, TypeError or ValueError: it is no scenario."""
    return ScenarioContent(
        devices=tuple(_device(it) for it in raw.get("devices", ())),
        faults={uuid: _fault(it) for uuid, it in raw.get("faults", {}).items()},
        proofs=tuple((uuid, Proof(name)) for uuid, name in raw.get("proofs", ())),
        due=raw.get("due", {}),
        unavailable=_unavailable(raw.get("unavailable")),
        hang=raw.get("hang") or "",
        crash=raw.get("crash", 0),
        garbage=raw.get("garbage", 0),
        links_delay=raw.get("links_delay", 0.0),
        leak=raw.get("leak", 0),
        refuse=raw.get("refuse") or "",
        usage=raw.get("usage", {}),
        processes=tuple(process_usage(it) for it in raw.get("processes", ())),
        registrations=raw.get("registrations") or "",
    )


def _unavailable(text: str | None) -> tuple[str, str] | None:
    """Reason and message of `reason: message`; the reason is `simulated` for a message alone."""
    if text is None:
        return None
    reason, parted, message = text.partition(": ")
    return (reason, message) if parted else ("simulated", text)


def _device(raw: Mapping[str, Any]) -> Device:
    links = tuple(
        Link(link["peer"], link.get("lanes", 0), Distance(link.get("distance", "system")))
        for link in raw.get("links", ())
    )
    return Device(**{**raw, "paths": tuple(raw.get("paths", ())), "links": links})


def _fault(raw: Mapping[str, Any]) -> Fault:
    return Fault(
        reason=raw["reason"],
        message=raw.get("message", ""),
        state=State(raw.get("state", "unhealthy")),
        cleared_by=tuple(Proof(name) for name in raw.get("cleared_by", ())),
    )


def cards(count: int) -> list[dict[str, Any]]:
    """The JSON values of H100-like cards on two NUMA nodes.

    Cards come in pairs that share a PCIe root and a switch, with more lanes than to other cards.
    """
    return [_card(index, count) for index in range(count)]


def _card(index: int, count: int) -> dict[str, Any]:
    return {
        "uuid": _uuid(index),
        "index": index,
        "minor": index,
        "pci": f"0000:{0x10 + index // 0xE0:02x}:{index % 0x20:02x}.{index // 0x20 % 7}",
        "numa": _numa(index, count),
        "memory": MEMORY,
        "model": MODEL,
        "paths": [f"/dev/xpu{index}"],
        "links": [_link(index, peer, count) for peer in range(count) if peer != index],
        "attributes": {"architecture": "simulated", PCIE_ROOT: f"pci0000:{0x10 + index // 2 % 0xF0:02x}"},
    }


def _uuid(index: int) -> str:
    return f"SIM-00000000-0000-4000-8000-{index:012x}"


def _numa(index: int, count: int) -> int:
    return 0 if index < (count + 1) // 2 else 1


def _link(index: int, peer: int, count: int) -> dict[str, Any]:
    if index // 2 == peer // 2:
        lanes, distance = 12, Distance.SWITCH
    elif _numa(index, count) == _numa(peer, count):
        lanes, distance = 4, Distance.NUMA_NODE
    else:
        lanes, distance = 1, Distance.SYSTEM
    return {"peer": _uuid(peer), "lanes": lanes, "distance": distance}


class Scenario:
    """Changes a scenario file for a test or a demo. Each method replaces the file in one atomic step."""

    def __init__(self, path: Path, devices: int | list[dict[str, Any]] = 0) -> None:
        self.path = path
        if not path.exists():
            self.write({"devices": cards(devices) if isinstance(devices, int) else devices})

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(device["uuid"] for device in self.read().get("devices", ()))

    def read(self) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(self.path.read_text())
        return raw

    def write(self, raw: Mapping[str, Any]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(raw))
        temporary.replace(self.path)

    def change(self, **parts: Any) -> None:
        self.write({**self.read(), **parts})

    def fault(
        self,
        uuid: str,
        reason: str,
        message: str = "",
        *,
        state: State = State.UNHEALTHY,
        cleared_by: tuple[Proof, ...] = (),
    ) -> None:
        """Give a device a fault. If a reset ends the fault, the device also reports that a reset is due."""
        fault = {"reason": reason, "message": message, "state": state, "cleared_by": cleared_by}
        raw = self.read()
        due = {**raw.get("due", {}), **({uuid: True} if Proof.RESET in cleared_by else {})}
        self.write({**raw, "faults": {**raw.get("faults", {}), uuid: fault}, "due": due})

    def heal(self, uuid: str, proof: Proof | None = None) -> None:
        """End the fault of a device. A fault that clean polls cannot end needs a proof."""
        raw = self.read()
        faults = {key: fault for key, fault in raw.get("faults", {}).items() if key != uuid}
        proofs = [*raw.get("proofs", ()), *([[uuid, proof]] if proof else ())]
        due = {**raw.get("due", {}), **({uuid: False} if proof is Proof.RESET else {})}
        self.write({**raw, "faults": faults, "proofs": proofs, "due": due})

    def unload(self, text: str = "driver-not-loaded: the driver was unloaded") -> None:
        self.change(unavailable=text)

    def reload(self) -> None:
        self.change(unavailable=None)

    def crash(self) -> None:
        """Let the vendor's process die of SIGSEGV once."""
        self.change(crash=self.read().get("crash", 0) + 1)

    def garbage(self) -> None:
        """Let the next `discover` answer garbage, once."""
        self.change(garbage=self.read().get("garbage", 0) + 1)

    def leak(self, size: int) -> None:
        """Let each `discover` leak this many bytes."""
        self.change(leak=size)

    def refuse(self, why: str) -> None:
        """Refuse to make slices, for this reason. An empty reason allows slices again."""
        self.change(refuse=why)

    def use(self, uuid: str, **figures: Any) -> None:
        """Give a card these figures of `Usage`, in place of those that follow from the processes on it."""
        self.change(usage={**self.read().get("usage", {}), uuid: figures})

    def run(self, *processes: Mapping[str, Any]) -> None:
        """Let these processes use the cards, and no others. Each has the fields of `ProcessUsage`."""
        self.change(processes=processes)

    def register_in(self, directory: Path) -> None:
        """Let processes register themselves by files in this directory."""
        self.change(registrations=str(directory))

    def hang(self, call: str | None) -> None:
        """Let this call of the backend hang until `hang` names another one, or None."""
        self.change(hang=call)
