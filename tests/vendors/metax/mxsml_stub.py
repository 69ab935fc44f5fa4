"""Builds and scripts the stub of libmxsml.so; stub/mxsml_stub.c tells the formats of script and state."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.registered_processes import Registry
from support.scripted_libraries import Script, Source, begins

MXSML = Source("MXSML", Path(__file__).parent / "stub/mxsml_stub.c", "libmxsml.so")
#: What a build may lack.
EVENTS, SGPU, REINIT, USAGE = "events", "sgpu", "reinit", "usage"
#: Of the lists of processes: all, or the newer versions.
PROCESSES, PROCESSES_V2, PROCESSES_V3 = "processes", "processes_v2", "processes_v3"

MAX_SLICES = 16
ALIAS_SIZE = 32
#: MiB of an MXC500.
MEMORY = 65536
#: Minor numbers of slices begin here, and after a reload or reboot so much later.
MINORS, MINORS_STEP = 160, 32
_LOAD_DLL_FAILURE, _NO_DEVICE = 26, 2
#: Lines about what a driver forgets when it is loaded anew.
_COUNTED = ("ecc", "pcievent", "event", "use", "process")


@dataclass(frozen=True)
class Slice:
    """A slice on the hardware: its card's slot, its number there, MiB, percent, and what is written on it."""

    slot: int
    id: int
    serial: int
    minor: int
    vram: int
    compute: int
    alias: str = ""
    annotations_id: str = ""

    @property
    def uuid(self) -> str:
        return f"GPU-4d580001-0000-0000-{self.slot:04d}-{self.serial:012d}"

    @classmethod
    def read(cls, line: str) -> Slice:
        *numbers, alias, annotations = line.split()[1:]
        slot, number, serial, minor, vram, compute = map(int, numbers)
        return cls(slot, number, serial, minor, vram, compute, _unhex(alias), _unhex(annotations))

    def line(self) -> str:
        assert len(self.alias.encode()) < ALIAS_SIZE, f"{self.alias} is no alias: too long"
        numbers = (self.slot, self.id, self.serial, self.minor, self.vram, self.compute)
        return f"slice {' '.join(map(str, numbers))} {_hex(self.alias)} {_hex(self.annotations_id)}"


@dataclass
class Hardware:
    """What calls of the library change, as the state file has it."""

    serial: int = 1
    minors: int = MINORS
    toggles: dict[int, int] = field(default_factory=dict)
    classes: dict[int, int] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Hardware:
        it = cls()
        for line in text.splitlines():
            verb, *numbers = line.split()
            match verb:
                case "next":
                    it.serial = int(numbers[0])
                case "minors":
                    it.minors = int(numbers[0])
                case "toggle":
                    it.toggles[int(numbers[0])] = int(numbers[1])
                case "class":
                    it.classes[int(numbers[0])] = int(numbers[1])
                case _:
                    it.slices.append(Slice.read(line))
        return it

    def text(self) -> str:
        lines = [f"next {self.serial}", f"minors {self.minors}"]
        lines += [f"toggle {slot} {on}" for slot, on in self.toggles.items()]
        lines += [f"class {slot} {number}" for slot, number in self.classes.items()]
        return "\n".join([*lines, *(it.line() for it in self.slices), ""])


class MxsmlStub(Registry, Script):
    """One scripted node. What is changed here, every process that uses the stub sees at its next call.

    Cards are named by their slot, symbols without "mxSml". Slices, aliases, toggles and scheduling classes
    are the hardware's: they outlive processes, and this object.
    """

    variable = "XPU_MXSML_STUB"

    def __init__(
        self, directory: Path, cards: int = 8, *, without: Sequence[str] = (), trace: bool = False
    ) -> None:
        self.library = MXSML.build([f"WITHOUT_{part.upper()}" for part in without])
        super().__init__(directory / "mxsml-stub", cards, trace=trace)

    # Cards

    @staticmethod
    def uuid(slot: int) -> str:
        return f"GPU-4d580000-0000-0000-0000-{slot:012d}"

    @staticmethod
    def vf_uuid(slot: int, number: int) -> str:
        return f"GPU-4d580002-0000-0000-{number:04d}-{slot:012d}"

    @staticmethod
    def bdf(slot: int) -> str:
        return f"0000:{0x20 + slot:02x}:00.0"

    def cards(self, count: int) -> None:
        self._replace("cards", f"cards {count}")

    def order(self, *slots: int) -> None:
        """Let the library find the cards in this order: indices are places in it."""
        self._replace("order", f"order {' '.join(map(str, slots))}")

    def remove(self, slot: int) -> None:
        """Take the card out; its index answers InvalidDeviceId, and later ones move down at the next init."""
        self._replace(f"remove {slot}", f"remove {slot}")

    def lose(self, slot: int, code: int = _NO_DEVICE) -> None:
        """Let every call on the card fail."""
        self._drop(f"fail * {code} 0 {slot}")
        self._add(f"fail * {code} 0 {slot}")

    def restore(self, slot: int) -> None:
        """Bring back a lost or removed card."""
        self._lines = [it for it in self._lines if not (begins(it, "fail *") and it.split()[-1] == str(slot))]
        self._drop(f"remove {slot}")

    def limited(self, slot: int) -> None:
        """Let the card work in part only."""
        self._replace(f"limited {slot}", f"limited {slot}")

    def rename(self, slot: int, uuid: str) -> None:
        """Give the card another UUID, which may be none."""
        self._replace(f"uuid {slot}", f"uuid {slot} {uuid}")

    def bus_id(self, slot: int, text: str) -> None:
        self._replace(f"bdf {slot}", f"bdf {slot} {text}")

    def product(self, slot: int, name: str) -> None:
        self._replace(f"name {slot}", f"name {slot} {name}")

    def memory(self, slot: int, mebibytes: int, used: int = 858) -> None:
        """Of the whole card, whatever dies or virtual functions share it."""
        self._replace(f"memory {slot}", f"memory {slot} {mebibytes * 1024} {used * 1024}")

    def dies(self, slot: int, count: int = 2) -> None:
        self._replace(f"dies {slot}", f"dies {slot} {count}")

    def physical(self, slot: int, functions: int = 2) -> None:
        """Split the card into virtual functions: it is then a PF, with an index from 100.

        Raises RuntimeError where its sGPU toggle is on, for they exclude each other.
        """
        if self.hardware().toggles.get(slot):
            raise RuntimeError(f"card {slot} cannot be split: its sGPU toggle is on")
        self._replace(f"pf {slot}", f"pf {slot} {functions}")

    def whole(self, slot: int) -> None:
        """Take the card's virtual functions away again."""
        self._drop(f"pf {slot}")

    # Use

    def utilization(self, slot: int, percent: int, encoder: int = 0, decoder: int = 0) -> None:
        self._replace(f"usage {slot}", f"usage {slot} {percent} {encoder} {decoder}")

    def power(self, slot: int, milliwatts: int) -> None:
        """Of the whole board."""
        self._replace(f"power {slot}", f"power {slot} {milliwatts}")

    def temperature(self, slot: int, hotspot: float, hbm: float = 0) -> None:
        """Degrees; without `hbm` the card has no such sensor. A second die is a degree hotter."""
        self._replace(f"temperature {slot}", f"temperature {slot} {hotspot * 100:.0f} {hbm * 100:.0f}")

    def clocks(self, slot: int, xcore: int, memory: int) -> None:
        """MHz."""
        self._replace(f"clocks {slot}", f"clocks {slot} {xcore} {memory}")

    def slice_utilization(self, slot: int, sgpu: int, percent: float) -> None:
        self._replace(f"sliceusage {slot} {sgpu}", f"sliceusage {slot} {sgpu} {percent * 100:.0f}")

    def use(self, slot: int, pid: int, memory: int, *, sgpu: int = -1, count: int = 1) -> None:
        """Let a process use bytes of a card, or of a slice; or so many processes from this pid on."""
        self._add(f"process {slot} {pid} {memory} -1 {sgpu} {count}")

    def refuse_long_lists(self) -> None:
        """Let lists of processes that do not fit answer InsufficientSize, which the header does not say."""
        self._replace("longlists", "longlists")

    # Health

    def state(self, slot: int, *, available: bool) -> None:
        self._replace(f"state {slot}", f"state {slot} {int(available)}")

    def unavailable(self, slot: int, code: int, reason: str = "", die: int = 0) -> None:
        self._replace(f"unavailable {slot} {die}", f"unavailable {slot} {die} {code} {reason}")

    def mmio(self, slot: int, state: int) -> None:
        self._replace(f"mmio {slot}", f"mmio {slot} {state}")

    def ecc(
        self,
        slot: int,
        *,
        die: int = 0,
        sram: int = 0,
        dram: int = 0,
        corrected: tuple[int, int] = (0, 0),
        retired: int = 0,
    ) -> None:
        """Set the counts: uncorrected in SRAM and DRAM, corrected there, and pages retired."""
        counts = f"{corrected[0]} {sram} {corrected[1]} {dram} {retired}"
        self._replace(f"ecc {slot} {die}", f"ecc {slot} {die} {counts}")

    def pci_event(self, slot: int, kind: int, count: int, *, bit: int = 0, name: str = "event") -> None:
        """Set how often an error of this abi.PciEventType and bit came."""
        start = f"pcievent {slot} {kind} {bit}"
        self._replace(start, f"{start} {count} {name}")

    # Topology

    def level(self, slot: int, other: int, level: int) -> None:
        """Set the path between two cards, as abi.TopologyLevel."""
        self._replace(f"level {slot} {other}", f"level {slot} {other} {level}")

    def no_links(self) -> None:
        self._replace("nolinks", "nolinks")

    def link(self, slot: int, port: int, other: int) -> None:
        """Lead a card's MetaXLink to another card; the first call takes away the default groups of four."""
        self._replace(f"link {slot} {port}", f"link {slot} {port} {other}")

    # Slices

    def run_process(self, slot: int, sgpu: int) -> None:
        """Let a process use a slice, which can then not be removed."""
        self._replace(f"use {slot} {sgpu}", f"use {slot} {sgpu}")

    def end_processes(self, slot: int | None = None) -> None:
        self._drop("use" if slot is None else f"use {slot}")

    def sgpu_quota(self, slot: int, mebibytes: int) -> None:
        """Set what slices of the card may have together."""
        self._replace(f"quota {slot}", f"quota {slot} {mebibytes}")

    def astray(self, slot: int, mebibytes: int) -> None:
        """Let so much of the card's memory be neither free nor in a slice."""
        self._replace(f"astray {slot}", f"astray {slot} {mebibytes}")

    def hardware(self) -> Hardware:
        """What lies on the cards now."""
        try:
            return Hardware.read(Path(f"{self.control}.state").read_text())
        except FileNotFoundError:
            return Hardware()

    def slices(self, slot: int | None = None) -> list[Slice]:
        return [it for it in self.hardware().slices if slot is None or it.slot == slot]

    def enable_sgpu(self, slot: int, *, enabled: bool = True) -> None:
        """Turn the toggle by hand."""
        with self._change() as hardware:
            hardware.toggles[slot] = int(enabled)

    def sched_class(self, slot: int, number: int) -> None:
        """Set the scheduling class by hand, also under slices."""
        with self._change() as hardware:
            hardware.classes[slot] = number

    def make_slice(
        self, slot: int, mebibytes: int, percent: int, alias: str = "", annotations_id: str = ""
    ) -> Slice:
        """Make a slice by hand, and turn the card's toggle on; what is free is not asked."""
        with self._change() as hardware:
            taken = {it.id for it in hardware.slices if it.slot == slot}
            number = next(number for number in range(MAX_SLICES) if number not in taken)
            minors = {it.minor for it in hardware.slices}
            minor = next(it for it in range(hardware.minors, hardware.minors + 2048) if it not in minors)
            made = Slice(slot, number, hardware.serial, minor, mebibytes, percent, alias, annotations_id)
            hardware.serial += 1
            hardware.toggles[slot] = 1
            hardware.slices.append(made)
        return made

    def vanish(self, slot: int, sgpu: int) -> None:
        """Take a slice away, also one in use."""
        with self._change() as hardware:
            hardware.slices = [it for it in hardware.slices if (it.slot, it.id) != (slot, sgpu)]

    # The driver

    def driver_gone(self) -> None:
        """Unload the driver, also under processes that called it: neither init nor a call on a card works."""
        for symbol in ("Init", "InitWithFlags"):
            self.fail(symbol, _LOAD_DLL_FAILURE)
        self.fail("*", _NO_DEVICE)

    def driver_reload(self) -> None:
        """Load the driver anew: slices, toggles and processes are gone, counters at 0, minors are others.

        That toggles and scheduling classes do not stay is our assumption.
        """
        with self._change() as hardware:
            hardware.minors += MINORS_STEP
            hardware.toggles, hardware.classes, hardware.slices = {}, {}, []
        self._events = []
        gone = f"fail * {_NO_DEVICE} 0"  # of all cards: one that is lost stays lost
        self._lines = [it for it in self._lines if it != gone and it.split()[0] not in _COUNTED]
        self._drop("fail Init", "fail InitWithFlags")

    def reboot(self) -> None:
        """As a reload; what made a card unavailable is over, too."""
        self._drop("unavailable", "state", "mmio")
        self.driver_reload()

    def read_only(self) -> None:
        """Let sysfs be so: every call that writes fails with SysfsWriteError and EROFS."""
        self._replace("readonly", "readonly")

    def writable(self) -> None:
        self._drop("readonly")

    def busy_by_errno(self) -> None:
        """Let what is in use answer SysfsWriteError with EBUSY, as the vendor's header allows alone."""
        self._replace("ebusy", "ebusy")

    def event(self, slot: int, text: str = "eid 17", kind: int = 1) -> None:
        """Let the driver tell of the card: once to each event set of the card that is there."""
        self._happen(slot, f"{kind} {text}")

    @contextmanager
    def _change(self) -> Iterator[Hardware]:
        """Change the hardware as the stub does: under its lock, and at once."""
        with open(f"{self.control}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            hardware = self.hardware()
            yield hardware
            unfinished = Path(f"{self.control}.state.new")
            unfinished.write_text(hardware.text())
            unfinished.rename(f"{self.control}.state")


def _hex(text: str) -> str:
    return text.encode().hex() or "-"


def _unhex(text: str) -> str:
    return "" if text == "-" else bytes.fromhex(text).decode()
