"""Runs Enflame's tool efsmi and reads its output. EFML has no functions for DRS, the hardware's slices.

Sources: gcushare-device-plugin runs the same commands and reads the same rows (pkg/smi/smi.go at ee04a65;
`--list-instance` at 778c4fb). The tables are published for efsmi 1.2.0.301, 1.4, 1.6.3.12 and 1.7.2.14. The
output of `-L` for cards is published, too. GCUShare relies on `-L` for a list of the instances as well. The
tool runs without a shell, and every command that changes a card has `-i`: without `-i` it changes every card.

Assumptions: a command that failed ends with another status than 0; the tool counts cards as the library does;
it lists the profiles of a card only while DRS is on there (GCUShare turns DRS on for the list).
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from agent.vendors.enflame.shared import constants

T = TypeVar("T")

NAME, FOLDERS = constants.EFSMI, constants.EFSMI_FOLDERS
#: Seconds that a command may take, and bytes that it may print: ten times a table of 128 cards.
TIMEOUT = 30.0
MAX_OUTPUT = 1 << 20
#: How many rows without a known form are reported, and how many characters of each.
MAX_REMARKS, REMARK = 20, 120

#: Modes in the table, behind a card's memory. Some cards have others, such as SRIOV.
DISABLED, DRS = "Disable", "DRS"

MAX_CARD, MAX_NUMBER = 127, 999_999_999
_BUS_ID = re.compile(r"(?:[0-9a-f]{2,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII | re.IGNORECASE)
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_MEMORY = re.compile(r"([0-9]{1,9})\s*MiB", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_UUID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}", re.ASCII)


class EfsmiError(Exception):
    """Raised when efsmi cannot be run, does not end in time, prints too much or ends with an error.

    The command may have taken effect nevertheless. `status` is the exit status of the tool, or the negative
    number of the signal that killed it. It is None if the tool did not run to its end.
    """

    def __init__(self, argv: Sequence[str], text: str, status: int | None = None) -> None:
        super().__init__(f"{' '.join(argv)}: {text}")
        self.argv, self.status = tuple(argv), status


@dataclass(frozen=True, slots=True)
class TableRow:
    """A card in the table. `memory` is in MiB; `virt` is DISABLED, DRS or another mode (SRIOV)."""

    index: int
    name: str
    firmware: str
    bus_id: str
    ecc: str
    memory: int | None
    virt: str
    serial: str

    def is_at(self, bdf: str) -> bool:
        """Whether this row is for the card at a PCI address. The table has only two digits of the domain."""
        return bdf.lower().endswith(self.bus_id.lower())


@dataclass(frozen=True, slots=True)
class ListedCard:
    """A card in the output of `-L`. `uuid` is the one that the library tells."""

    index: int
    serial: str
    bdf: str
    uuid: str


@dataclass(frozen=True, slots=True)
class SliceProfile:
    """A profile of instances. A card can have `count` of them. `memory` and `sip` are texts of the tool."""

    card: int
    name: str
    id: int
    count: int
    memory: str
    sip: str

    @property
    def slices(self) -> int:
        """How many of the card's slices an instance takes: 3 for 3g.20gb."""
        return constants.slices(self.name)

    @property
    def gigabytes(self) -> int:
        return constants.gigabytes(self.name)


@dataclass(frozen=True, slots=True)
class DrsInstance:
    """An instance, which is a slice of a card.

    Another instance can get the `id` after this one is destroyed. `uuid` is empty if the tool lists none.
    """

    card: int
    profile: str
    id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class EfsmiListing(Generic[T]):
    """The rows of an output, and a remark about each row without a known form."""

    rows: tuple[T, ...]
    remarks: tuple[str, ...] = ()


class Efsmi:
    """Runs the tool at a path. `card` is the card's index. Every method raises EfsmiError.

    A lock serialises the commands of all threads. `listed_instances` is not called by the agent: the method
    completes the commands that list slices, and the tests hold it against a tool that plays efsmi.
    """

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self.path, self.timeout = path, timeout
        #: File descriptors that the tool inherits.
        self.inherited: Sequence[int] = ()
        self._turn = threading.Lock()

    def table(self) -> EfsmiListing[TableRow]:
        return table(self._run())

    def cards(self) -> EfsmiListing[ListedCard]:
        return cards(self._run("-L"))

    def profiles(self, card: int) -> EfsmiListing[SliceProfile]:
        """The profiles that an empty card offers. DRS must be on."""
        return profiles(self._run(*_of(card), "--drs", "--list-profile"))

    def instances(self, card: int | None = None) -> EfsmiListing[DrsInstance]:
        """The instances of one card, or of all cards."""
        return instances(self._run(*(_of(card) if card is not None else ()), "-L"))

    def listed_instances(self, card: int) -> EfsmiListing[DrsInstance]:
        """The instances of one card by releases without `-L`. They have no UUIDs."""
        return instances_without_uuid(self._run(*_of(card), "--drs", "--list-instance"))

    def set_drs(self, card: int, on: bool) -> None:
        """Turn DRS on or off. The card must have no instances for off."""
        self._run(*_of(card), "--drs", "on" if on else "off")

    def create(self, card: int, profile: int) -> None:
        """Make an instance of the profile with this number. A list afterwards shows the instance."""
        self._run(*_of(card), "--drs", "--create-instance", _number(profile, MAX_NUMBER))

    def destroy(self, card: int, instance: int) -> None:
        self._run(*_of(card), "--drs", "--destroy-instance", _number(instance, MAX_NUMBER))

    def _run(self, *arguments: str) -> str:
        """Run the tool and return its output.

        The tool stays in the process group of the vendor's process, so that it dies with the agent.
        """
        argv = (self.path, *arguments)
        with self._turn:
            try:
                tool = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=tuple(self.inherited),
                )
            except OSError as error:
                raise EfsmiError(argv, str(error)) from error
            try:
                output = _output(tool, argv, self.timeout)
            finally:
                _end(tool)
        if tool.returncode:
            raise EfsmiError(argv, f"ends with {tool.returncode}: {_complaint(output)}", tool.returncode)
        return output


def _output(tool: subprocess.Popen[bytes], argv: Sequence[str], timeout: float) -> str:
    """The output of the tool until its end. Raises EfsmiError: the tool runs or prints too long."""
    assert tool.stdout is not None
    output, deadline = bytearray(), time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(tool.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise EfsmiError(argv, f"does not end within {timeout:g} s")
            chunk = os.read(tool.stdout.fileno(), 65536)
            if not chunk:
                break
            output += chunk
            if len(output) > MAX_OUTPUT:
                raise EfsmiError(argv, f"says more than {MAX_OUTPUT} bytes")
    try:
        tool.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise EfsmiError(argv, f"does not end within {timeout:g} s") from error
    return output.decode(errors="replace")


def _end(tool: subprocess.Popen[bytes]) -> None:
    """Kill the tool and its children if they still run. A process that the driver blocks is left behind."""
    assert tool.stdout is not None
    tool.stdout.close()
    if tool.poll() is None:
        for pid in _family(tool.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            tool.wait(1)


def _family(pid: int) -> list[int]:
    """The process and its descendants, if the kernel lists children in procfs."""
    pids = [pid]
    for parent in pids:
        with suppress(OSError):
            pids += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    return pids


def _complaint(output: str) -> str:
    """The first line that looks like an error, or else the last line. The tool prints a banner first."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    bad = (line for line in lines if "error" in line.lower() or "fail" in line.lower())
    return next(bad, lines[-1] if lines else "no word")[:REMARK]


def find(settings: Mapping[str, Any], root: str = "") -> str | None:
    """The path of the tool: the setting `efsmi`, or else PATH, or else FOLDERS here and below `root`.

    None if there is no such program.
    """
    named = settings.get("efsmi") or ""
    if named:
        return named if _is_program(named) else None
    folders = [above + folder for above in dict.fromkeys(["", root]) for folder in FOLDERS]
    places = (os.path.join(folder, NAME) for folder in (*os.get_exec_path(), *folders))
    return next(filter(_is_program, places), None)


def _is_program(path: str) -> bool:
    """As shutil.which decides. The module shutil would load three compression libraries into this process."""
    return os.access(path, os.X_OK) and not os.path.isdir(path)


# Output


def table(text: str) -> EfsmiListing[TableRow]:
    """Read the table that efsmi without arguments prints.

    A card has two lines of three columns: index and name, firmware, address and ECC; then temperature and
    power, memory and mode, use and serial number. The words within a column differ between releases.
    """
    rows: list[TableRow] = []
    remarks: list[str] = []
    upper: list[str] | None = None
    for line in text.splitlines():
        cells = _cells(line)
        if len(cells) != 3 or cells[0].startswith(("DEV ", "TEMP ")):
            continue
        if _is_upper(cells):
            if upper:
                remarks.append(f"card without a second line: {' | '.join(upper)}")
            upper = cells
        elif upper:
            rows.append(_row(upper, cells))
            upper = None
        else:
            remarks.append(f"not understood: {line.strip()}")
    if upper:
        remarks.append(f"card without a second line: {' | '.join(upper)}")
    return _listing(rows, remarks)


def cards(text: str) -> EfsmiListing[ListedCard]:
    """Read the output of `-L`: rows of index, serial number, slot, PCI ids, address, CPUs and UUID."""

    def read(words: Sequence[str]) -> ListedCard:
        index, serial, *_, uuid = words
        bdf = next(word.lower() for word in words if _BDF.fullmatch(word.lower()))
        return ListedCard(_index(index), serial, bdf, _checked(uuid))

    return _listed(text, read, _BDF)


def profiles(text: str) -> EfsmiListing[SliceProfile]:
    """Read the output of `--list-profile`: rows of index, name, number, count, memory and SIPs."""

    def read(words: Sequence[str]) -> SliceProfile:
        card, name, number, count, memory, sip = words[:6]
        return SliceProfile(_index(card), _profile(name), _int(number), _int(count), memory, sip)

    return _listed(text, read)


def instances(text: str) -> EfsmiListing[DrsInstance]:
    """Read the output of `-L`: rows of index, profile, number and UUID."""

    def read(words: Sequence[str]) -> DrsInstance:
        card, profile, number, uuid = words[:4]
        return DrsInstance(_index(card), _profile(profile), _int(number), _checked(uuid))

    return _listed(text, read)


def instances_without_uuid(text: str) -> EfsmiListing[DrsInstance]:
    """Read the output of `--list-instance`.

    Its rows have index, profile, the profile's number, the instance's number and placement.
    """

    def read(words: Sequence[str]) -> DrsInstance:
        card, profile, _, number, _ = words[:5]
        return DrsInstance(_index(card), _profile(profile), _int(number), "")

    return _listed(text, read)


def _listed(
    text: str, read: Callable[[Sequence[str]], T], sign: re.Pattern[str] = constants.PROFILE_NAME
) -> EfsmiListing[T]:
    """Read the rows of a list: the lines with a word that matches `sign`."""
    rows: list[T] = []
    remarks: list[str] = []
    for line in text.splitlines():
        words = line.replace("|", " ").split()
        if not any(sign.fullmatch(word.lower()) for word in words):
            continue
        try:
            rows.append(read(words))
        except ValueError:
            remarks.append(f"not understood: {line.strip()}")
    return _listing(rows, remarks)


def _listing(rows: Sequence[T], remarks: Sequence[str]) -> EfsmiListing[T]:
    return EfsmiListing(tuple(rows), tuple(remark[:REMARK] for remark in remarks[:MAX_REMARKS]))


def _cells(line: str) -> list[str]:
    line = line.strip()
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def _is_upper(cells: Sequence[str]) -> bool:
    first, last = cells[0].split(), cells[2].split()
    is_card = first and _NUMBER.fullmatch(first[0]) and int(first[0]) <= MAX_CARD
    return bool(is_card and last and _BUS_ID.fullmatch(last[0]))


def _row(upper: Sequence[str], lower: Sequence[str]) -> TableRow:
    index, *name = upper[0].split()
    bus_id, *ecc = upper[2].split()
    memory = _MEMORY.search(lower[1])
    mode, serial = _MEMORY.sub(" ", lower[1]).split(), lower[2].split()
    return TableRow(
        index=int(index),
        name=" ".join(name),
        firmware=upper[1],
        bus_id=bus_id,
        ecc=ecc[0] if ecc else "",
        memory=int(memory[1]) if memory else None,
        virt=mode[-1] if mode else "",
        serial=serial[-1] if len(serial) > 1 else "",
    )


def _profile(word: str) -> str:
    if not constants.PROFILE_NAME.fullmatch(word):
        raise ValueError(word)
    return word


def _checked(uuid: str) -> str:
    if not _UUID.fullmatch(uuid):
        raise ValueError(uuid)
    return uuid


def _int(word: str) -> int:
    if not _NUMBER.fullmatch(word):
        raise ValueError(word)
    return int(word)


def _index(word: str) -> int:
    if _int(word) > MAX_CARD:
        raise ValueError(word)
    return int(word)


def _of(card: int) -> tuple[str, str]:
    return "-i", _number(card, MAX_CARD)


def _number(value: object, most: int) -> str:
    """A number as an argument of the tool. Raises TypeError, so that a bug never reaches the tool."""
    if type(value) is not int or not 0 <= value <= most:
        raise TypeError(f"{value!r} is no number from 0 to {most}")
    return str(value)
