"""Builds and scripts the stub of libnvidia-ml.so.1; stub/nvml_stub.c tells the script's format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.scripted_libraries import ControlFile, Source, begins

NVML = Source("NVML", Path(__file__).parent / "stub/nvml_stub.c", "libnvidia-ml.so.1")

XID = 0x8
DOUBLE_BIT_ECC = 0x2
UNAVAILABLE = 0x4000
RECOVERY_ACTION = 0x8000

DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
#: The place of an event that is not an instance's.
NOWHERE = 0xFFFFFFFF
#: What a driver lists below each GPU instance: itself, then its compute instances.
_CIS = ("", *(f"/ci{ci}" for ci in range(8)))

#: Mebibytes of a MIG device of an H100 80GB by the gigabytes in its profile's name.
MIG_MEMORY = {10: 9984, 20: 20096, 40: 40448, 80: 81024}
#: NVML's numbers of GPU instance profiles, by slices and suffix.
MIG_PROFILES = {
    **{(slices, ""): number for number, slices in enumerate((1, 2, 3, 4, 7, 8, 6))},
    **{(1, "+me"): 7, (2, "+me"): 8, (1, "+gfx"): 10, (2, "+gfx"): 11, (3, "+gfx"): 17, (4, "+gfx"): 12},
    **{(1, "-me"): 13, (2, "-me"): 14, (1, "+me.all"): 15, (2, "+me.all"): 16},
}
_SYMBOL = re.compile(r"^API Ret (nvml\w+)\(", re.MULTILINE)
_PROFILE = re.compile(r"(?:(?P<c>\d+)c\.)?(?P<g>\d+)g\.(?P<gb>\d+)gb(?P<suffix>[+-][a-z.]+)?")


@dataclass(frozen=True)
class Mig:
    """A MIG device of an H100: its profile as NVIDIA writes it, and its places.

    `memory` in MiB; `engines` are multiprocessors, copy engines, decoders, encoders, JPEG and OFA engines.
    """

    profile: str = "1g.10gb"
    gi: int = 7
    ci: int = 0
    memory: int | None = None
    engines: tuple[int, int, int, int, int, int] | None = None

    def line(self) -> str:
        """What the control file says of it: PROFILE GI CI SLICES MIB, without the serial and what follows."""
        found = _PROFILE.fullmatch(self.profile)
        assert found is not None, f"{self.profile} is no MIG profile"
        slices, gigabytes = int(found["g"]), int(found["gb"])
        profile = MIG_PROFILES[slices, found["suffix"] or ""]
        if (slices, gigabytes) == (1, 20):
            profile = 9  # the second revision of one slice, with twice the memory
        memory = self.memory or MIG_MEMORY[gigabytes]
        return f"{profile} {self.gi} {self.ci} {found['c'] or slices} {memory}"

    def has(self) -> str:
        slices = int(self.line().split()[3])
        return " ".join(map(str, self.engines or (16 * slices, slices, 0, 0, 0, 0)))


@dataclass(frozen=True)
class Process:
    """A process on a card or MIG device.

    `memory` in bytes, None where the driver cannot tell; `lists` are letters of those that have the process:
    c compute, g graphics, m MPS compute. `samples` are percent of utilization, now or at a Unix time in
    microseconds.
    """

    pid: int
    memory: int | None = 1 << 30
    lists: str = "c"
    samples: Sequence[int | tuple[int, int]] = ()

    def lines(self, card: int, number: int | None) -> list[str]:
        """What the control file says of it, on a card or its MIG device `number`."""
        memory = "-" if self.memory is None else self.memory
        samples = [sample if isinstance(sample, tuple) else (sample,) for sample in self.samples]
        return [
            f"process {_place(card, number)} {self.lists} {self.pid} {memory}",
            *(f"sample {card} {self.pid} {' '.join(map(str, sample))}" for sample in samples),
        ]


def _place(card: int, number: int | None) -> str:
    return str(card) if number is None else f"{card}:{number}"


#: The MIG devices of a card in the recordings of NVIDIA's plugin.
RECORDED_MIGS = (Mig(gi=7), Mig(gi=8), Mig(gi=9))


class NvmlStub(ControlFile):
    """One scripted node."""

    variable = "XPU_NVML_STUB"
    kept_events = 256

    def __init__(self, directory: Path, cards: int = 8, *, trace: bool = False) -> None:
        self.library = NVML.build()
        self._migs: dict[tuple[int, int], tuple[Mig, int]] = {}
        super().__init__(directory / "nvml-stub", cards, trace=trace)

    @staticmethod
    def symbols() -> frozenset[str]:
        """The names of NVML's functions that the stub has."""
        return frozenset(_SYMBOL.findall(NVML.path.read_text()))

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-00000000-0000-0000-0000-{index:012d}"

    def cards(self, count: int) -> None:
        self._replace("cards ", f"cards {count}")

    def remove(self, index: int) -> None:
        """Take the card out; the indices of later cards move down."""
        self._replace(f"remove {index}", f"remove {index}")

    def lose(self, index: int) -> None:
        """Let the card fall off the bus."""
        self._replace(f"lost {index}", f"lost {index}")

    def restore(self, index: int) -> None:
        """Bring back a lost or removed card."""
        self._drop(f"lost {index}", f"remove {index}")

    def minor(self, index: int, minor: int) -> None:
        self._replace(f"minor {index} ", f"minor {index} {minor}")

    def product(self, index: int, name: str) -> None:
        self._replace(f"name {index} ", f"name {index} {name}")

    def bus_id(self, index: int, text: str) -> None:
        """Give the card another PCI bus id, which may be none."""
        self._replace(f"busid {index} ", f"busid {index} {text}")

    def driver(self, version: str) -> None:
        self._replace("driver ", f"driver {version}")

    def pci_ids(self, index: int, device: int, subsystem: int) -> None:
        """Give the card other PCI ids: of the device and its maker, of the board and its maker."""
        self._replace(f"pciid {index} ", f"pciid {index} {device:x} {subsystem:x}")

    def event_types(self, mask: int) -> None:
        """Let the driver report events of these kinds alone."""
        self._replace("eventtypes ", f"eventtypes {mask:x}")

    def memory(self, index: int, size: int) -> None:
        """Give the card this much memory, in bytes."""
        self._replace(f"memory {index} ", f"memory {index} {size}")

    def energy(self, index: int, millijoules: int) -> None:
        """Let the card tell the energy that it used since its driver was loaded."""
        self._replace(f"energy {index} ", f"energy {index} {millijoules}")

    def used(self, index: int, used: int, reserved: int = 0, *, number: int | None = None) -> None:
        """Let so many bytes be in use, on the card or its MIG device `number`."""
        self._replace(f"used {_place(index, number)} ", f"used {_place(index, number)} {reserved} {used}")

    def rates(self, index: int, card: int, memory: int) -> None:
        """Set the card's utilization, and that of its memory's controller, in percent."""
        self._replace(f"rates {index} ", f"rates {index} {card} {memory}")

    def video(self, index: int, encoder: int, decoder: int) -> None:
        """Set the utilization of what encodes and decodes video, in percent."""
        self._replace(f"video {index} ", f"video {index} {encoder} {decoder}")

    def power(self, index: int, milliwatts: int) -> None:
        self._replace(f"power {index} ", f"power {index} {milliwatts}")

    def temperature(self, index: int, card: int, memory: int | None = None) -> None:
        """Set the temperature of the card, and of its memory, in degrees Celsius."""
        words = " ".join(str(one) for one in (card, memory) if one is not None)
        self._replace(f"temperature {index} ", f"temperature {index} {words}")

    def clocks(self, index: int, *, graphics: int = 0, sm: int, memory: int, video: int = 0) -> None:
        """Set the card's clocks, in MHz."""
        self._replace(f"clocks {index} ", f"clocks {index} {graphics} {sm} {memory} {video}")

    def ecc(self, index: int, corrected: int, uncorrected: int) -> None:
        self._replace(f"ecc {index} ", f"ecc {index} {corrected} {uncorrected}")

    def gpm(self, index: int, sm: float, tensor: float, *, number: int | None = None) -> None:
        """Let GPM tell the percent of units in use, of the card or of a MIG device's GPU instance."""
        self._replace(f"gpm {_place(index, number)} ", f"gpm {_place(index, number)} {sm} {tensor}")

    def processes(self, index: int, *found: Process, number: int | None = None) -> None:
        """Let exactly these processes be on the card, or on its MIG device `number`."""
        gone = (f"process {_place(index, number)}", *((f"sample {index}",) if number is None else ()))
        self._lines = [line for line in self._lines if not any(begins(line, start) for start in gone)]
        self._lines += [line for process in found for line in process.lines(index, number)]
        self._write()

    def register(self, pid: int, *claims: tuple[str, int | None, int | None]) -> None:
        """Let a living process register itself: device, bytes of memory there, percent of utilization."""
        directory = Path(f"{self.control}.processes")
        directory.mkdir(exist_ok=True)
        lines = (" ".join("-" if one is None else str(one) for one in claim) for claim in claims)
        (directory / str(pid)).write_text("".join(f"{line}\n" for line in lines))

    def capability(self, index: int, major: int, minor: int) -> None:
        self._replace(f"capability {index} ", f"capability {index} {major} {minor}")

    def fabric(self, index: int, cluster: str, clique: int, *, state: int = 3, status: int = 0) -> None:
        """Put the card into a GPU fabric; `cluster` is a UUID, state 3 is completed."""
        line = f"fabric {index} {state} {status} {clique} {cluster.replace('-', '')}"
        self._replace(f"fabric {index} ", line)

    def no_mig(self, index: int) -> None:
        """Make it a card that does not know MIG."""
        self._replace(f"nomig {index}", f"nomig {index}")

    def mig_mode(self, index: int, *, enabled: bool) -> None:
        self._replace(f"migmode {index} ", f"migmode {index} {int(enabled)}")

    def mig(self, index: int, layout: Sequence[Mig | None] = RECORDED_MIGS) -> tuple[str, ...]:
        """Turn MIG mode on with this layout, None where a number is free; return the MIG devices' UUIDs.

        One that is where and what it was before keeps its UUID.
        """
        lines = [line for line in self._lines if not begins(line, f"mig {index}")]
        for number, it in enumerate(layout):
            if it is not None:
                lines.append(f"mig {index} {number} {it.line()} {self._serial(index, number, it)} {it.has()}")
        self._lines = lines
        self.mig_mode(index, enabled=True)
        return tuple(self.mig_uuid(index, number) for number, it in enumerate(layout) if it is not None)

    def mig_uuid(self, index: int, number: int) -> str:
        """The UUID of the MIG device that this number was last given to."""
        _, serial = self._migs[index, number]
        return f"MIG-00000000-0000-{serial:04x}-{number:04x}-{index:012d}"

    def _serial(self, index: int, number: int, it: Mig) -> int:
        before, serial = self._migs.get((index, number), (it, 0))
        self._migs[index, number] = (it, serial + (it != before))
        return self._migs[index, number][1]

    def write_minors(self, procfs: Path) -> None:
        """Write the driver's list of the capability nodes of all cards, as on a node with MIG."""
        places = [f"gpu{gpu}/gi{gi}{ci}/access" for gpu in range(8) for gi in range(15) for ci in _CIS]
        lines = [f"{name} {minor}" for minor, name in enumerate(("config", "monitor", *places), start=1)]
        path = procfs / "driver/nvidia-caps/mig-minors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]))

    def xid(self, index: int, code: int, gi: int | None = None, ci: int | None = None) -> None:
        self.event(index, XID, code, gi, ci)

    def event(
        self, index: int, kind: int, data: int = 0, gi: int | None = None, ci: int | None = None
    ) -> None:
        """Let the driver tell of the card, of a GPU instance, or of a compute instance in one."""
        places = " ".join(str(NOWHERE if place is None else place) for place in (gi, ci))
        self._happen(index, f"{kind:x} {data} {places}")

    def recovery(self, index: int, action: int, *, announce: bool = True) -> None:
        """Let the driver name another recovery action, with the event that tells so or without."""
        self._replace(f"recovery {index} ", f"recovery {index} {action}")
        if announce:
            self.event(index, RECOVERY_ACTION)

    def old_driver(self) -> None:
        """Make it a driver that has no recovery action: neither the field nor the event."""
        self._lines += ["norecovery", "eventtypes f"]
        self._write()

    def no_nvlink(self) -> None:
        self._replace("nonvlink", "nonvlink")

    def level(self, index: int, other: int, level: int) -> None:
        """Set the common ancestor of two cards: 0 board, 10, 20, 30, 40 NUMA node, 50 system."""
        self._replace(f"level {index} {other} ", f"level {index} {other} {level}")

    def nvlinks(self, index: int, other: int, count: int) -> None:
        """Set the active NVLinks between two cards; the first call takes away all recorded ones."""
        self._replace(f"nvlinks {index} {other} ", f"nvlinks {index} {other} {count}")

    def nvswitch(self, index: int, count: int) -> None:
        """Set the active NVLinks of a card to an NVSwitch; the first call takes away all recorded ones."""
        self._replace(f"nvswitch {index} ", f"nvswitch {index} {count}")

    def fail(self, symbol: str, code: int, index: int | None = None, number: int | None = None) -> None:
        """Let calls of a symbol answer with a code: for all, for a card, or for its MIG device `number`."""
        only = " ".join(str(one) for one in (index, number) if one is not None)
        self._replace(f"fail {symbol} ", f"fail {symbol} {code} {only}".rstrip())

    def init_error(self, code: int) -> None:
        """Let NVML refuse to start; a session that is open goes on."""
        self.fail("nvmlInitWithFlags", code)
        self.fail("nvmlInit_v2", code)

    def driver_gone(self) -> None:
        """Unload the driver, under open sessions too."""
        self.init_error(DRIVER_NOT_LOADED)
        self.fail("nvmlDeviceGetCount_v2", DRIVER_NOT_LOADED)

    def wait_error(self, code: int = GPU_IS_LOST) -> None:
        """Let every wait for events fail."""
        self.fail("nvmlEventSetWait_v2", code)

    def clear(self, symbol: str | None = None) -> None:
        """Undo fail, hang, segv and latency: of one symbol, or of all."""
        verbs = ("fail", "hang", "segv", "latency")
        self._drop(*(f"{verb} {symbol}" if symbol else f"{verb} " for verb in verbs))
