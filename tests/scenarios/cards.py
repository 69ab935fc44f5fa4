"""The hardware of a scenario: simulated cards from a file, or NVIDIA's library played by a compiled stub."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from agent.daemon.vendor_plugins import names
from agent.vendor_api.agent import Proof
from agent.vendors.simulated.child.scenario import Scenario, cards
from agent.vendors.simulated.child.slices import SliceFile

sys.path.append(str(Path(__file__).parents[1] / "vendors" / "nvidia"))

from nvml_stub import DRIVER_NOT_LOADED, Mig, NvmlStub

__all__ = ["OFF", "Cards", "Mig", "Nvidia", "Simulated", "Sliced"]

#: No process for a vendor whose cards the node does not have; its own comes over this.
OFF: Mapping[str, Any] = {name: {"enabled": False} for name in names()}


class Cards(Protocol):
    """Hardware that a test breaks and repairs; cards are named by their index."""

    vendor: str
    #: The variable that tells a container its cards.
    visible: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """The vendor's part of the configuration, without resources."""

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def uuids(self) -> tuple[str, ...]: ...

    @property
    def watched(self) -> bool:
        """Whether somebody listens: the driver tells nobody later of what happens before."""

    def named(self, told: str) -> str:
        """The uuid of the card that a container is told of so."""

    def fail(self, index: int) -> None:
        """Report XID 79, which takes a proof to be over."""

    def reset(self, index: int) -> None:
        """Reset the card, with proof."""

    def unload(self) -> None:
        """Take the driver away."""

    def load(self) -> None:
        """Bring the driver back."""

    def segfault(self) -> None:
        """Let the library die in its next call."""

    def hang(self) -> None:
        """Let the library's next call not return."""

    def behave(self) -> None:
        """Let the library work again."""


class Simulated:
    vendor = "simulated"
    visible = "XPU_VISIBLE_DEVICES"
    environment: Mapping[str, str] = {}

    def __init__(self, directory: Path, count: int) -> None:
        self.scenario = Scenario(directory / "scenario.json", devices=count)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"settings": {"scenario": str(self.scenario.path), "deviceNodes": True}}

    @property
    def uuids(self) -> tuple[str, ...]:
        return self.scenario.uuids

    @property
    def watched(self) -> bool:
        return True

    def named(self, told: str) -> str:
        return told

    def sized(self, *mebibytes: int) -> None:
        """Let the cards have this much memory each; more are more cards."""
        devices = [
            {**it, "memory": mib << 20} for it, mib in zip(cards(len(mebibytes)), mebibytes, strict=True)
        ]
        self.scenario.change(devices=devices)

    def fail(self, index: int) -> None:
        proofs = (Proof.RESET, Proof.REBOOT)
        self.scenario.fault(self.uuids[index], "xid-79", "fell off the bus", cleared_by=proofs)

    def reset(self, index: int) -> None:
        self.scenario.heal(self.uuids[index], Proof.RESET)

    def unload(self) -> None:
        self.scenario.unload()

    def load(self) -> None:
        self.scenario.reload()

    def segfault(self) -> None:
        self.scenario.crash()

    def hang(self) -> None:
        self.scenario.hang("discover")

    def behave(self) -> None:
        self.scenario.hang(None)


class Sliced(Simulated):
    """Simulated cards whose hardware is made for each allocation, and outlives every process."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory, count)
        self._file = directory / "slices.json"
        self._slices = SliceFile(self._file)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "settings": {
                "scenario": str(self.scenario.path),
                "prepares": True,
                "partitions": str(self._file),
            }
        }

    @property
    def slices(self) -> dict[str, str | None]:
        """Each slice on the hardware, and the mark that it bears."""
        return {it["id"]: it["allocation"] for it in self._slices.read()}

    @property
    def cards(self) -> set[str]:
        """The cards on which slices lie."""
        return {it["uuid"] for it in self._slices.read()}

    def made_with(self, mark: str) -> Mapping[str, str]:
        """The parameters of the slice that bears this mark."""
        (found,) = (it["parameters"] for it in self._slices.read() if it["allocation"] == mark)
        parameters: Mapping[str, str] = found
        return parameters

    def plant(self, name: str, mark: str | None) -> None:
        """Make a slice that no allocation asked for; without a mark it is another program's."""
        more: dict[str, Any] = {"id": name, "uuid": self.uuids[0], "allocation": mark, "parameters": {}}
        self._slices.write([*self._slices.read(), more])

    @property
    def written(self) -> tuple[int, int]:
        """Another one after each change of the hardware."""
        found = self._file.stat()
        return found.st_ino, found.st_mtime_ns

    def spoil(self) -> None:
        """Let nobody be able to tell which slices there are."""
        self._file.write_text("{")

    def lose(self) -> None:
        """Take every slice, as a reboot does."""
        self._slices.write([])


class Nvidia:
    vendor = "nvidia"
    visible = "NVIDIA_VISIBLE_DEVICES"

    def __init__(self, directory: Path, count: int) -> None:
        self.stub = NvmlStub(directory, count, trace=True)
        self._count = count
        self._sysfs = directory / "sys"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"library": str(self.stub.library), "settings": {"sysfs": str(self._sysfs)}}

    @property
    def environment(self) -> Mapping[str, str]:
        return self.stub.environment

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self.stub.uuid(index) for index in range(self._count))

    @property
    def watched(self) -> bool:
        return self.stub.calls("nvmlEventSetWait_v2") > 0

    def named(self, told: str) -> str:
        return told

    def fail(self, index: int) -> None:
        self.stub.xid(index, 79)

    def reset(self, index: int) -> None:
        self.stub.recovery(index, 0)

    def unload(self) -> None:
        self.stub.driver_gone()
        self.stub.fail("nvmlDeviceGetHandleByIndex_v2", DRIVER_NOT_LOADED)

    def load(self) -> None:
        self.stub.clear()

    def segfault(self) -> None:
        self.stub.segv("nvmlDeviceGetCount_v2")

    def hang(self) -> None:
        self.stub.hang("nvmlDeviceGetCount_v2")

    def behave(self) -> None:
        self.stub.clear()
