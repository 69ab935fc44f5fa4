"""The scenario file: which simulated devices there are, and what is wrong with them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import PCIE_ROOT, Device, Distance, Fault, Link, Proof, State

MEMORY = 80 << 30
MODEL = "Simulated H100 80GB"


@dataclass(frozen=True, slots=True)
class ScenarioContent:
    """What the file says now."""

    devices: tuple[Device, ...] = ()
    faults: Mapping[str, Fault] = field(default_factory=dict)
    proofs: tuple[tuple[str, Proof], ...] = ()
    due: Mapping[str, bool] = field(default_factory=dict)  # uuid to whether a reset is wanted
    unavailable: tuple[str, str] | None = None  # reason, message
    hang: str = ""  # the call that does not return
    crash: int = 0  # the process dies each time it grows
    garbage: int = 0  # discover answers nonsense each time it grows
    links_delay: float = 0.0
    leak: int = 0  # bytes that each `discover` takes and keeps
    refuse: str = ""  # why `prepare` refuses what it is asked for


def parse(raw: Mapping[str, Any]) -> ScenarioContent:
    """Read the JSON of a scenario; raises KeyError, TypeError or ValueError where it is none."""
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
    )


def _unavailable(text: str | None) -> tuple[str, str] | None:
    """`reason: message`, or a message alone."""
    if text is None:
        return None
    reason, parted, message = text.partition(": ")
    return (reason, message) if parted else ("simulated", text)


def _device(raw: Mapping[str, Any]) -> Device:
    links = tuple(
        Link(it["peer"], it.get("lanes", 0), Distance(it.get("distance", "system")))
        for it in raw.get("links", ())
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
    """H100-like cards on two NUMA nodes: neighbours share a PCIe root, a switch and most lanes."""
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
    """The file in the hands of a test or a demo: each verb changes it in one atomic step."""

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
        """Break a device. It asks for the reset that its fault waits for."""
        fault = {"reason": reason, "message": message, "state": state, "cleared_by": cleared_by}
        raw = self.read()
        due = {**raw.get("due", {}), **({uuid: True} if Proof.RESET in cleared_by else {})}
        self.write({**raw, "faults": {**raw.get("faults", {}), uuid: fault}, "due": due})

    def heal(self, uuid: str, proof: Proof | None = None) -> None:
        """End the fault of a device; a sticky one takes a proof."""
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
        """Let the vendor's process die of SIGSEGV, once."""
        self.change(crash=self.read().get("crash", 0) + 1)

    def garbage(self) -> None:
        """Let the next `discover` answer nonsense, once."""
        self.change(garbage=self.read().get("garbage", 0) + 1)

    def leak(self, size: int) -> None:
        """Let each `discover` keep so many bytes more."""
        self.change(leak=size)

    def refuse(self, why: str) -> None:
        """Let no slice be made, in these words; none lets them be made again."""
        self.change(refuse=why)

    def hang(self, call: str | None) -> None:
        """Let a call hang until it is told otherwise."""
        self.change(hang=call)
