"""Scripts the stubs of libefml.so and efsmi; stub/efml_stub.c and stub/efsmi.py tell the formats."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.registered_processes import Registry
from support.scripted_libraries import Script, Source

STUB = Path(__file__).parent / "stub"
EFML = Source("EFML", STUB / "efml_stub.c", "libefml.so")
ERML = Source("ERML", STUB / "efml_stub.c", "liberml.so")
#: What a build may lack: a family, what came after 2019 (handles, too), the newer names of the handle family.
INDICES, HANDLES, NEWER, SUFFIXES = "indices", "handles", "newer", "suffixes"
#: Of the processes: those of the handle family, or those of both.
RUNNING, PROCESSES = "running", "processes"

#: MiB of an S60 with ECC on.
MEMORY = 42976
SLICES = 6
#: The releases of efsmi whose table is known.
FORMATS = ("1.2.0.301", "1.4.0.3", "1.6.3.12", "1.7.2.14")
DRIVER = "1.4.3.4"

_FAIL, _GCU_IS_LOST, _RESET_REQUIRED = 254, 15, 16
_DRIVER_NOT_LOADED, _DRIVER_NOT_LOADED_BY_HANDLE = 6, 9
_NOT_SUPPORTED = 3


def _module(path: Path) -> Any:
    """The tool's own code, which is a program and not among the modules of the tests."""
    spec = importlib.util.spec_from_file_location("efsmi_double", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


double = _module(STUB / "efsmi.py")


@dataclass(frozen=True)
class Instance:
    """A DRS instance on the hardware: its card's slot, its number there."""

    slot: int
    id: int
    profile: str
    uuid: str


@dataclass(frozen=True)
class Card:
    """What sysfs and efsmi tell of a slot, beside what the library does. `memory` in MiB."""

    slot: int
    bdf: str
    uuid: str
    serial: str
    logic: int
    minor: int
    numa: int
    memory: int = MEMORY
    name: str = "S60"
    virt: str = "Disable"


class EfmlStub(Registry, Script):
    """One scripted node. What is changed here, every process that uses the stubs sees at its next call.

    Cards are named by their slot, functions as Enflame names them ("EfmlGetDevMem", "efmlInit_v2"), commands
    of efsmi as stub/efsmi.py does ("create"). DRS and its instances are the hardware's: they outlive
    processes, and this object.
    """

    variable = "XPU_EFML_STUB"

    def __init__(
        self,
        directory: Path,
        cards: int = 8,
        *,
        without: Sequence[str] = (),
        rebranded: bool = False,
        trace: bool = False,
    ) -> None:
        source, defines = (ERML, ["PREFIXED_ERML"]) if rebranded else (EFML, [])
        self.library = source.build([*defines, *(f"WITHOUT_{part.upper()}" for part in without)])
        self.directory = directory
        self._count, self._order = cards, list(range(64))
        self._cards: dict[int, Card] = {}
        self._removed: set[int] = set()
        self._busy: set[int] = set()
        self._tool: dict[str, Any] = {
            "driver": True,
            "format": FORMATS[-1],
            "faults": {},
            "kills": [],
            "used": [],
        }
        super().__init__(directory / "efml-stub", cards, trace=trace)
        self.efsmi = directory / "efsmi"
        self.efsmi.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.argv.insert(1, {str(self.control)!r})\n"
            f"sys.path.insert(0, {str(STUB)!r})\nimport efsmi\nefsmi.main()\n"
        )
        self.efsmi.chmod(0o755)

    @property
    def settings(self) -> dict[str, str]:
        return {**super().settings, "efsmi": str(self.efsmi)}

    # Cards

    @staticmethod
    def uuid(slot: int) -> str:
        return f"TR6Y460{slot:05d}"

    @staticmethod
    def bdf(slot: int) -> str:
        return f"0000:{0x20 + slot:02x}:00.0"

    def card(self, slot: int) -> Card:
        serial = f"A018K305{slot:05d}"
        fresh = Card(slot, self.bdf(slot), self.uuid(slot), serial, logic=slot, minor=slot, numa=slot // 4)
        return self._cards.get(slot, fresh)

    @property
    def slots(self) -> list[int]:
        """Those with a card, in the order in which library and tool find them."""
        return [it for it in self._order if it < self._count and it not in self._removed]

    def cards(self, count: int) -> None:
        self._count = count
        self._replace("cards", f"cards {count}")

    def count(self, number: int) -> None:
        """Let the library say that there are so many cards, whatever there is."""
        self._replace("count", f"count {number}")

    def order(self, *slots: int) -> None:
        """Let the library and efsmi find the cards in this order: indices are places in it."""
        self._order = [*slots, *(it for it in range(64) if it not in slots)]
        self._replace("order", f"order {' '.join(map(str, slots))}")

    def order_of_handles(self, *slots: int) -> None:
        """Let the handle family find them in another order."""
        self._replace("handleorder", f"handleorder {' '.join(map(str, slots))}")

    def remove(self, slot: int) -> None:
        """Take the card out; its index answers NO_DEVICE, and later ones move down at the next start."""
        self._removed.add(slot)
        self._replace(f"remove {slot}", f"remove {slot}")

    def lose(self, slot: int, code: int = _FAIL) -> None:
        """Let the card fall off the bus: the handle family says so, the index family answers this code."""
        self.fail("Efml*", code, slot=slot)
        self.fail("efml*", _GCU_IS_LOST, slot=slot)

    def require_reset(self, slot: int) -> None:
        """Let the handle family say that the card needs a reset; the index family goes on."""
        self.fail("efml*", _RESET_REQUIRED, slot=slot)

    def restore(self, slot: int) -> None:
        """Bring back a lost or removed card."""
        self._removed.discard(slot)
        ends = ("Efml*", "efml*")
        self._lines = [
            it
            for it in self._lines
            if not (it.startswith("fail") and it.split()[1] in ends and it.split()[4:] == [str(slot)])
        ]
        self._drop(f"remove {slot}")

    def unsupported(self, symbol: str, slot: int | None = None) -> None:
        """Let the function say that the card cannot tell; the number is the same in both families."""
        self.fail(symbol, _NOT_SUPPORTED, slot=slot)

    def rename(self, slot: int, uuid: str) -> None:
        """Give the card another UUID, which may be none."""
        self._change(slot, f"uuid {slot} {uuid}", uuid=uuid)

    def serial(self, slot: int, text: str) -> None:
        self._change(slot, f"serial {slot} {text}", serial=text)

    def product(self, slot: int, name: str) -> None:
        self._change(slot, f"name {slot} {name}", name=name)
        self._replace(f"sku {slot}", f"sku {slot} {name}")

    def arch(self, slot: int, name: str) -> None:
        self._replace(f"arch {slot}", f"arch {slot} {name}")

    def address(self, slot: int, bdf: str) -> None:
        self._change(slot, f"bdf {slot} {bdf}", bdf=bdf)

    def minor(self, slot: int, minor: int, logic: int | None = None) -> None:
        """Set N of /dev/gcuN, and N of enflame/gcuN in sysfs, where that is another."""
        logic = minor if logic is None else logic
        self._change(slot, f"logic {slot} {logic}", minor=minor, logic=logic)

    def numa(self, slot: int, node: int) -> None:
        """-1 for none."""
        self._change(slot, f"numa {slot} {node}", numa=node)

    def memory(self, slot: int, mebibytes: int, used: int = 1129) -> None:
        """MiB, both."""
        self._change(slot, f"memory {slot} {mebibytes << 20} {used}", memory=mebibytes)

    def virt(self, slot: int, mode: int, word: str) -> None:
        """What the card is to virtual machines, as abi.VirtMode, and efsmi's word for it (SRIOV)."""
        self._change(slot, f"virt {slot} {mode}", virt=word)

    def utilization(self, slot: int, percent: float) -> None:
        self._replace(f"usage {slot}", f"usage {slot} {percent}")

    def memory_utilization(self, slot: int, percent: int) -> None:
        self._replace(f"memoryusage {slot}", f"memoryusage {slot} {percent}")

    def power(self, slot: int, watts: float, limit: float = 300) -> None:
        self._replace(f"draw {slot}", f"draw {slot} {limit} {watts}")

    def clocks(self, slot: int, sip: int, memory: int) -> None:
        """MHz."""
        self._replace(f"clocks {slot}", f"clocks {slot} {sip} {memory}")

    def process_unit(self, size: int) -> None:
        """Let the index family count the memory of processes in units of so many bytes."""
        self._replace("processunit", f"processunit {size}")

    def sampled_at(self, time: int) -> None:
        """Let the use of processes be measured at this time, and at no later one."""
        self._replace("sampled", f"sampled {time}")

    def run_process(self, slot: int, pid: int, memory: int = 0, percent: int = -1, *, count: int = 1) -> None:
        """Let a process use the card, whose DRS mode can then not be changed; or `count` from this pid on.

        Bytes, and percent of the compute (-1: unknown).
        """
        self._busy.add(slot)
        self._replace(f"process {slot} {pid}", f"process {slot} {pid} {memory} {percent} -1 {count}")

    def end_processes(self, slot: int) -> None:
        self._busy.discard(slot)
        self._drop(f"process {slot}")

    # Health

    def health(self, slot: int, *, healthy: bool) -> None:
        """What the library itself takes the card for."""
        self._replace(f"health {slot}", f"health {slot} {int(healthy)}")

    def ecc(
        self,
        slot: int,
        *,
        single: int = 0,
        double: int = 0,
        enabled: bool = True,
        pending: bool = False,
        blacklist: bool = False,
    ) -> None:
        """Set the counts of errors of one and of two bits."""
        flags = f"{int(enabled)} {int(pending)} {int(blacklist)}"
        self._replace(f"ecc {slot}", f"ecc {slot} {flags} {single} {double}")

    def rma(self, slot: int, *, flagged: bool, double: int = 0, supported: bool = True) -> None:
        self._replace(f"rma {slot}", f"rma {slot} {int(supported)} {int(flagged)} {double}")

    def link(self, slot: int, width: int, most: int = 16, *, speed: int = 5, fastest: int = 5) -> None:
        """PCIe's lanes and generation."""
        self._replace(f"link {slot}", f"link {slot} {speed} {fastest} {width} {most}")

    def temperature(self, slot: int, chip: float, memory: float = 38, board: float = 34) -> None:
        """Degrees Celsius."""
        self._replace(f"temperature {slot}", f"temperature {slot} {chip} {memory} {board}")

    def power_mode(self, slot: int, mode: int) -> None:
        """As abi.PowerMode."""
        self._replace(f"power {slot}", f"power {slot} {mode}")

    def record_error(
        self, slot: int, event: int, *, reset: int = 0, source: int = 999, time: int = 0
    ) -> None:
        """Let the card remember one more error."""
        self._add(f"record {slot} {event} {reset} {source} {time}")

    def port(self, slot: int, port: int, other: int) -> None:
        """Lead a LARE port of the card to another card."""
        self._replace(f"port {slot} {port}", f"port {slot} {port} {other}")

    def event(self, slot: int, kind: int, number: int = 0, message: str = "") -> None:
        """Let the driver tell of the card, as abi.EventType: once to every process that is there."""
        self._happen(slot, f"{number} {kind} {message}".rstrip())

    # The driver and the library

    def driver_gone(self) -> None:
        """Unload the driver, also under processes that called it: no start and no call on a card works."""
        self.fail("EfmlInit", _DRIVER_NOT_LOADED)
        self.fail("Efml*", _DRIVER_NOT_LOADED)
        for symbol in ("efmlInit", "efmlInit_v2", "efml*"):
            self.fail(symbol, _DRIVER_NOT_LOADED_BY_HANDLE)
        self._tool["driver"] = False
        self._write()

    def driver_reload(self) -> None:
        """Load the driver anew: DRS, instances and processes are gone, counters at 0, events forgotten.

        That DRS does not stay is our assumption.
        """
        with double.changed_state(str(self.control)) as state:
            state["drs"], state["instances"] = [], []
        self._events, self._busy, self._tool["driver"] = [], set(), True
        of_all = {f"fail {family}* {code} 0" for family, code in (("Efml", 6), ("efml", 9))}
        self._lines = [it for it in self._lines if it not in of_all]
        self._drop("fail EfmlInit", "fail efmlInit", "fail efmlInit_v2", "ecc", "process", "record")

    def driver_version(self, version: str) -> None:
        self._replace("driver", f"driver {version}")

    def access_point(self, path: str) -> None:
        """The directory of cards, with a slash at its end."""
        self._replace("access", f"access {path}")

    def raise_on_load(self, number: int) -> None:
        """Let loading the library raise a signal, in processes that have not loaded it yet."""
        self._replace("raise", f"raise {number}")

    def change_signal(self, number: int, how: str) -> None:
        """Let starting the library change what the process does about a signal: "ignore" or "handle"."""
        self._replace(f"signal {number}", f"signal {number} {how}")

    def overlaps(self) -> int:
        """How often a call came into the library while another one was inside."""
        return self.calls("overlap")

    # efsmi and DRS

    def efsmi_format(self, release: str) -> None:
        """Let the tool print the table as a release does, one of FORMATS."""
        self._tool["format"] = release
        self._write()

    def efsmi_fails(
        self, command: str, status: int = 1, text: str = "Error: failed", *, late: bool = False
    ) -> None:
        """Let a command fail; `late` after it took effect, as when the answer is lost."""
        self._fault(command, status=status, text=text, late=late)

    def efsmi_hangs(self, command: str) -> None:
        self._fault(command, hang=True)

    def efsmi_says(self, command: str, text: str) -> None:
        """Let a command print this and do nothing else."""
        self._fault(command, garbage=text)

    def efsmi_kills(self, command: str, when: str = "after", *, caller: bool = False) -> None:
        """Kill the tool, or the process that called it, "before" or "after" a command took effect, once."""
        self._sequence += 1
        kill = {"command": command, "when": when, "caller": caller, "number": self._sequence}
        self._tool["kills"] = [*self._tool["kills"], kill]
        self._write()

    def efsmi_works(self) -> None:
        """Undo what the four above said."""
        self._tool.update(faults={}, kills=[])
        self._write()

    def use_instance(self, uuid: str, *, used: bool = True) -> None:
        """Let a process use an instance, which can then not be destroyed."""
        self._tool["used"] = [it for it in self._tool["used"] if it != uuid] + [uuid] * used
        self._write()

    def instances(self, slot: int | None = None) -> list[Instance]:
        found = [Instance(**it) for it in double.read_state(str(self.control))["instances"]]
        return [it for it in found if slot is None or it.slot == slot]

    def drs(self) -> list[int]:
        """The slots with DRS on."""
        return list(double.read_state(str(self.control))["drs"])

    def set_drs(self, slot: int, *, on: bool = True) -> None:
        """Turn DRS by hand, whatever is on the card."""
        with double.changed_state(str(self.control)) as state:
            state["drs"] = sorted({*state["drs"], slot} if on else {*state["drs"]} - {slot})

    def make_instance(self, slot: int, profile: str = "1g.6gb") -> Instance:
        """Make an instance by hand, as another program would; DRS is on then."""
        self.set_drs(slot)
        with double.changed_state(str(self.control)) as state:
            return Instance(**double.make_instance(state, slot, profile))

    def vanish(self, uuid: str) -> None:
        """Take an instance away, also one in use."""
        with double.changed_state(str(self.control)) as state:
            state["instances"] = [it for it in state["instances"] if it["uuid"] != uuid]

    def _fault(self, command: str, **fault: Any) -> None:
        self._tool["faults"] = {**self._tool["faults"], command: fault}
        self._write()

    def _change(self, slot: int, line: str, **facts: Any) -> None:
        self._cards[slot] = replace(self.card(slot), **facts)
        self._replace(" ".join(line.split()[:2]), line)

    def _write(self) -> None:
        cards = [self._listed(index, slot) for index, slot in enumerate(self.slots)]
        said = {**self._tool, "trace": "trace" in self._lines, "cards": cards}
        unfinished = Path(f"{self.control}.efsmi.new")
        unfinished.write_text(json.dumps(said))
        unfinished.rename(f"{self.control}.efsmi")
        super()._write()

    def _listed(self, index: int, slot: int) -> Mapping[str, Any]:
        it = self.card(slot)
        names = ("bdf", "name", "serial", "uuid", "memory", "virt")
        return {
            "index": index,
            "slot": slot,
            "busy": slot in self._busy,
            **{at: getattr(it, at) for at in names},
        }
