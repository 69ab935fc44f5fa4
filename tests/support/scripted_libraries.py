"""What drives the scripted libraries of vendors: builds one, and writes the control file that it reads.

vendors/stub/control.h tells the format of the lines that all of them know.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "tests/vendors/stub"
BUILT = ROOT / "build/stubs"
FLAGS = ("-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wl,-Bsymbolic")
STRICT = ("-Wall", "-Wextra", "-Werror")


class NoCompiler(Exception):
    """There is no C compiler to build a stub with."""


@dataclass(frozen=True)
class Source:
    """A stub in C, by the name of the vendor's library ("EFML"), and the file that it becomes."""

    name: str
    path: Path
    library: str

    def build(self, defines: Sequence[str] = (), directory: Path = BUILT) -> Path:
        """Compile the stub unless this very source is built already, and return the library's path."""
        flags = (*FLAGS, *(f"-D{define}" for define in sorted(defines)))
        headers = b"".join(header.read_bytes() for header in sorted(HEADERS.glob("*.h")))
        digest = hashlib.sha256(self.path.read_bytes() + headers + " ".join(flags).encode())
        library = directory / f"{self.name.lower()}-{digest.hexdigest()[:12]}" / self.library
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            self.compile(library, flags)
        return library

    def compile(self, library: Path, flags: Sequence[str] = FLAGS) -> None:
        """Compile the stub, strictly, to this path.

        Raises:
            NoCompiler: `cc` is not on PATH.
        """
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            said = f"the {self.name} stub needs a C compiler, and there is no 'cc' on PATH: install gcc"
            raise NoCompiler(said)
        # Beside the target and moved over it: builds may run at the same time.
        unfinished = library.with_name(f"{library.name}.{os.getpid()}")
        target = (f"-Wl,-soname,{self.library}", "-o", str(unfinished), str(self.path))
        done = subprocess.run(
            [compiler, *flags, *STRICT, *target], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the {self.name} stub does not compile:\n{done.stderr}")
        unfinished.rename(library)


class ControlFile:
    """What one scripted node reads: what is changed, every process with its stub sees at its next call."""

    #: The variable that names the file to the stub.
    variable: ClassVar[str]
    library: Path
    #: The file keeps so many of the newest events; a reader takes each within milliseconds.
    kept_events: ClassVar[int] = 64

    def __init__(self, control: Path, cards: int, *, trace: bool = False) -> None:
        self.control = control
        self._lines = [f"cards {cards}"] + ["trace"] * trace
        self._events: list[str] = []
        # Later than those of whoever had this node before, which processes that go on have heard.
        self._sequence = time.time_ns()
        self._written = 0
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        return {self.variable: str(self.control)}

    @property
    def settings(self) -> dict[str, str]:
        return {"library": str(self.library)}

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Let a process of its own run Python code with the stub, and leave no core file where it dies."""
        quiet = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        return subprocess.run(
            [sys.executable, "-c", quiet + script],
            cwd=ROOT,
            env={**os.environ, **self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    # Calls

    def hang(self, symbol: str) -> None:
        self._replace(f"hang {symbol}", f"hang {symbol}")

    def segv(self, symbol: str) -> None:
        self._replace(f"segv {symbol}", f"segv {symbol}")

    def latency(self, symbol: str, seconds: float) -> None:
        self._replace(f"latency {symbol}", f"latency {symbol} {round(seconds * 1e6)}")

    def trace(self) -> None:
        """Count calls from now on."""
        self._replace("trace", "trace")

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
            time.sleep(0.005)  # between looks at the trace, which other processes write

    # Lines

    def _happen(self, slot: int, what: str) -> None:
        """Add an event, whose text follows the card's slot."""
        self._sequence += 1
        self._events.append(f"event {self._sequence} {slot} {what}")
        self._events = self._events[-self.kept_events :]
        self._write()

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._write()

    def _drop(self, *starts: str) -> None:
        self._lines = [line for line in self._lines if not any(begins(line, start) for start in starts)]
        self._write()

    def _replace(self, start: str, line: str) -> None:
        self._lines = [old for old in self._lines if not begins(old, start)] + [line]
        self._write()

    def _write(self) -> None:
        text = "\n".join([*self._lines, *self._events, ""])
        unfinished = self.control.with_suffix(".new")
        unfinished.write_text(text)
        # Two writes within one tick of the file system's clock must differ, too.
        self._written = max(time.time_ns(), self._written + 1)
        os.utime(unfinished, ns=(self._written, self._written))
        unfinished.rename(self.control)


class Script(ControlFile):
    """A control file of stub/control.h's rules."""

    def fail(self, symbol: str, code: int, *, errno: int = 0, slot: int | None = None) -> None:
        """Let calls of a symbol, or all on cards that begin so ("X*"), answer a code: of all or of one."""
        only = [str(slot)] if slot is not None else []
        self._lines = [
            line for line in self._lines if not (begins(line, f"fail {symbol}") and line.split()[4:] == only)
        ]
        self._add(" ".join([f"fail {symbol} {code} {errno}", *only]))

    def kill_before(self, symbol: str) -> None:
        """Kill the first process that calls the symbol, before the call takes effect; others go on."""
        self._kill(symbol, "before")

    def kill_after(self, symbol: str) -> None:
        """Kill the first process in which the symbol, a call that writes, took effect; others go on."""
        self._kill(symbol, "after")

    def killed(self) -> int:
        """How many processes died so."""
        return len(list(self.control.parent.glob(f"{self.control.name}.killed.*")))

    def clear(self, symbol: str | None = None) -> None:
        """Undo fail, hang, segv, latency and kill: of one symbol, or of all."""
        verbs = ("fail", "hang", "segv", "latency")
        lines = self._lines if symbol else [line for line in self._lines if not begins(line, "kill")]
        self._lines = [
            line for line in lines if not (line.split()[0] == "kill" and line.split()[2] == symbol)
        ]
        self._drop(*(f"{verb} {symbol}" if symbol else verb for verb in verbs))

    def _kill(self, symbol: str, when: str) -> None:
        self._lines = [line for line in self._lines if not (begins(line, "kill") and self._fired(line))]
        self._sequence += 1
        self._add(f"kill {self._sequence} {symbol} {when}")

    def _fired(self, kill: str) -> bool:
        return Path(f"{self.control}.killed.{kill.split()[1]}").exists()


def begins(line: str, start: str) -> bool:
    """Whether the line begins with these words: `lost 1` begins `lost 1`, and not `lost 12`."""
    words = start.split()
    return line.split()[: len(words)] == words
