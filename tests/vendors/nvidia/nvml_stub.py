"""Builds and scripts the stub of libnvidia-ml.so.1; stub/nvml_stub.c tells the script's format."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent / "stub" / "nvml_stub.c"
BUILT = Path(__file__).parents[3] / "build" / "stubs"
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden")
STRICT = ("-Wall", "-Wextra", "-Werror")

XID = 0x8
DOUBLE_BIT_ECC = 0x2
UNAVAILABLE = 0x4000
RECOVERY_ACTION = 0x8000

DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
#: The control file keeps the newest events; a reader takes each within milliseconds.
KEPT_EVENTS = 256


class NoCompiler(Exception):
    """There is no C compiler to build the stub with."""


def build_stub(directory: Path = BUILT) -> Path:
    """Compile the stub unless this very source is built already, and return the library's path."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:12]
    library = directory / f"nvml-{digest}" / LIBRARY
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        compile_stub(library)
    return library


def compile_stub(library: Path) -> None:
    """Compile the stub, strictly, to this path.

    Raises:
        NoCompiler: `cc` is not on PATH.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompiler("the NVML stub needs a C compiler, and there is no 'cc' on PATH: install gcc")
    # Beside the target and moved over it: builds may run at the same time.
    unfinished = library.with_name(f"{library.name}.{os.getpid()}")
    command = [compiler, *FLAGS, *STRICT, f"-Wl,-soname,{LIBRARY}", "-o", str(unfinished), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the NVML stub does not compile:\n{done.stderr}")
    unfinished.rename(library)


class NvmlStub:
    """One scripted node. What is changed here, every process that uses the stub sees at its next call."""

    def __init__(self, directory: Path, cards: int = 8, *, trace: bool = False) -> None:
        self.control = directory / "nvml-stub"
        self.library = build_stub()
        self._lines = [f"cards {cards}"] + ["trace"] * trace
        self._events: list[str] = []
        self._sequence = 0
        self._written = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {"XPU_NVML_STUB": str(self.control)}

    @property
    def settings(self) -> dict[str, str]:
        return {"library": str(self.library)}

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

    def xid(self, index: int, code: int) -> None:
        self.event(index, XID, code)

    def event(self, index: int, kind: int, data: int = 0) -> None:
        self._sequence += 1
        self._events.append(f"event {self._sequence} {index} {kind:x} {data}")
        self._events = self._events[-KEPT_EVENTS:]
        self._write()

    def recovery(self, index: int, action: int, *, announce: bool = True) -> None:
        """Let the driver name another recovery action, with the event that tells so or without."""
        self._replace(f"recovery {index} ", f"recovery {index} {action}")
        if announce:
            self.event(index, RECOVERY_ACTION)

    def old_driver(self) -> None:
        """Make it a driver that has no recovery action: neither the field nor the event."""
        self._lines += ["norecovery", "eventtypes f"]
        self._write()

    def trace(self) -> None:
        """Count calls from now on."""
        self._replace("trace", "trace")

    def no_nvlink(self) -> None:
        self._replace("nonvlink", "nonvlink")

    def fail(self, symbol: str, code: int, index: int | None = None) -> None:
        """Let calls of a symbol answer with a code; `index` confines it to one card."""
        self._replace(f"fail {symbol} ", f"fail {symbol} {code}" + ("" if index is None else f" {index}"))

    def hang(self, symbol: str) -> None:
        self._replace(f"hang {symbol}", f"hang {symbol}")

    def segv(self, symbol: str) -> None:
        self._replace(f"segv {symbol}", f"segv {symbol}")

    def latency(self, symbol: str, seconds: float) -> None:
        self._replace(f"latency {symbol} ", f"latency {symbol} {round(seconds * 1e6)}")

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

    def calls(self, symbol: str) -> int:
        """How often the symbol was called so far, by all processes; needs `trace`."""
        trace = Path(f"{self.control}.trace")
        return Counter(trace.read_text().split())[symbol] if trace.exists() else 0

    def await_calls(self, symbol: str, count: int, patience: float = 30.0) -> None:
        """Block until the symbol was called that often; needs `trace`."""
        deadline = time.monotonic() + patience
        while self.calls(symbol) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{symbol} was called {self.calls(symbol)} times, not {count}")
            time.sleep(0.005)

    def _drop(self, *starts: str) -> None:
        self._lines = [line for line in self._lines if not any(_begins(line, start) for start in starts)]
        self._write()

    def _replace(self, start: str, line: str) -> None:
        self._lines = [old for old in self._lines if not _begins(old, start)] + [line]
        self._write()

    def _write(self) -> None:
        text = "\n".join([*self._lines, *self._events, ""])
        unfinished = self.control.with_suffix(".new")
        unfinished.write_text(text)
        # Two writes within one tick of the file system's clock must differ, too.
        self._written = max(time.time_ns(), self._written + 1)
        os.utime(unfinished, ns=(self._written, self._written))
        unfinished.rename(self.control)


def _begins(line: str, start: str) -> bool:
    """Whether the line begins with these words: `lost 1` begins `lost 1`, and not `lost 12`."""
    words = start.split()
    return line.split()[: len(words)] == words
