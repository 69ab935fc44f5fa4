"""Enflame's tool efsmi, for what the library has no function for: DRS, the hardware's own slices.

Commands and rows are those that gcushare-device-plugin runs and reads (pkg/smi/smi.go at ee04a65; of
`--list-instance` at 778c4fb), tables those that are published of 1.2.0.301, 1.4, 1.6.3.12 and 1.7.2.14. What
`-L` prints of cards is published, too; that instances stand there as well GCUShare takes for granted. The
tool is run by its arguments, never by a shell, always with `-i`: without it a command changes every card.

Our assumptions: a command that did not work ends with another status than 0; the tool counts cards as the
library does; it lists profiles of a card only while DRS is on there (GCUShare turns it on to look).
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

from agent.vendors.enflame import constants

T = TypeVar("T")

NAME, FOLDERS = constants.EFSMI, constants.EFSMI_FOLDERS
#: Seconds that a command may take, and how much it may say; a table of 128 cards is a tenth of that.
TIMEOUT = 30.0
MAX_OUTPUT = 1 << 20
#: How many rows that are not understood are told of, and how much of one.
MAX_REMARKS, REMARK = 20, 120

#: What the last column of a card's memory says: others are known for some cards, as SRIOV.
DISABLED, DRS = "Disable", "DRS"

MAX_CARD, MAX_NUMBER = 127, 999_999_999
_BUS_ID = re.compile(r"(?:[0-9a-f]{2,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII | re.IGNORECASE)
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_MEMORY = re.compile(r"([0-9]{1,9})\s*MiB", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_UUID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}", re.ASCII)


class EfsmiError(Exception):
    """Raised when efsmi cannot be run, does not end in time, says too much or ends with an error.

    A command may have taken effect nevertheless. `status` is the tool's, negative the signal that killed it,
    and None where it did not end by itself.
    """

    def __init__(self, argv: Sequence[str], said: str, status: int | None = None) -> None:
        super().__init__(f"{' '.join(argv)}: {said}")
        self.argv, self.status = tuple(argv), status


@dataclass(frozen=True, slots=True)
class Row:
    """A card in the table. `memory` in MiB; `virt` is DISABLED, DRS or another word (SRIOV)."""

    index: int
    name: str
    firmware: str
    bus_id: str
    ecc: str
    memory: int | None
    virt: str
    serial: str

    def is_at(self, bdf: str) -> bool:
        """Whether this is the card with the address: the table has a domain's last two digits alone."""
        return bdf.lower().endswith(self.bus_id.lower())


@dataclass(frozen=True, slots=True)
class Card:
    """A card as `-L` lists it; `uuid` is the library's."""

    index: int
    serial: str
    bdf: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of instance: `count` of them a card can have; memory and SIPs as the tool writes them."""

    card: int
    name: str
    id: int
    count: int
    memory: str
    sip: str

    @property
    def slices(self) -> int:
        """How many of the card's slices one takes: 3 of 3g.20gb."""
        return constants.slices(self.name)

    @property
    def gigabytes(self) -> int:
        return constants.gigabytes(self.name)


@dataclass(frozen=True, slots=True)
class Instance:
    """A slice of a card. `id` is free again once it is destroyed; `uuid` is empty where none is listed."""

    card: int
    profile: str
    id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What was understood, and of what was not, the beginning of each row."""

    rows: tuple[T, ...]
    remarks: tuple[str, ...] = ()


class Efsmi:
    """The tool at a path. `card` is its index. Every method raises EfsmiError; calls come one by one."""

    def __init__(self, path: str, timeout: float = TIMEOUT) -> None:
        self.path, self.timeout = path, timeout
        #: Open files that the tool keeps open for as long as it runs.
        self.inherited: Sequence[int] = ()
        self._turn = threading.Lock()

    def table(self) -> Listing[Row]:
        return table(self._run())

    def cards(self) -> Listing[Card]:
        return cards(self._run("-L"))

    def profiles(self, card: int) -> Listing[Profile]:
        """What instances the card could have if it had none; needs DRS on."""
        return profiles(self._run(*_of(card), "--drs", "--list-profile"))

    def instances(self, card: int | None = None) -> Listing[Instance]:
        """Those of a card, or of all."""
        return instances(self._run(*(_of(card) if card is not None else ()), "-L"))

    def listed_instances(self, card: int) -> Listing[Instance]:
        """The same as releases before `-L` say it, without UUIDs."""
        return instances_without_uuid(self._run(*_of(card), "--drs", "--list-instance"))

    def set_drs(self, card: int, on: bool) -> None:
        """Let the card be sliced, or be one again; off needs that nothing is on it."""
        self._run(*_of(card), "--drs", "on" if on else "off")

    def create(self, card: int, profile: int) -> None:
        """Make an instance of a profile's number. The tool does not say which; `made` finds it."""
        self._run(*_of(card), "--drs", "--create-instance", _number(profile, MAX_NUMBER))

    def destroy(self, card: int, instance: int) -> None:
        self._run(*_of(card), "--drs", "--destroy-instance", _number(instance, MAX_NUMBER))

    def _run(self, *arguments: str) -> str:
        """The tool is in the group of this process, as all that dies with the agent: one that hangs, too."""
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
                said = _output(tool, argv, self.timeout)
            finally:
                _end(tool)
        if tool.returncode:
            raise EfsmiError(argv, f"ends with {tool.returncode}: {_complaint(said)}", tool.returncode)
        return said


def _output(tool: subprocess.Popen[bytes], argv: Sequence[str], timeout: float) -> str:
    """What the tool says until it ends, which it has to do in time."""
    assert tool.stdout is not None
    said, deadline = bytearray(), time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(tool.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise EfsmiError(argv, f"does not end within {timeout:g} s")
            chunk = os.read(tool.stdout.fileno(), 65536)
            if not chunk:
                break
            said += chunk
            if len(said) > MAX_OUTPUT:
                raise EfsmiError(argv, f"says more than {MAX_OUTPUT} bytes")
    try:
        tool.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise EfsmiError(argv, f"does not end within {timeout:g} s") from error
    return said.decode(errors="replace")


def _end(tool: subprocess.Popen[bytes]) -> None:
    """Kill what still runs, with what it started; a process that the driver holds is left behind."""
    assert tool.stdout is not None
    tool.stdout.close()
    if tool.poll() is None:
        for pid in _family(tool.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            tool.wait(1)


def _family(pid: int) -> list[int]:
    """The process and what it started, as Linux lists it where its kernel does."""
    found = [pid]
    for it in found:
        with suppress(OSError):
            found += map(int, Path(f"/proc/{it}/task/{it}/children").read_text().split())
    return found


def _complaint(said: str) -> str:
    """The line that looks like an error, else the last one; the tool prints a banner first."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    bad = (line for line in lines if "error" in line.lower() or "fail" in line.lower())
    return next(bad, lines[-1] if lines else "no word")[:REMARK]


def find(settings: Mapping[str, Any], root: str = "") -> str | None:
    """Where the tool is: what `efsmi` names, else on PATH, else in FOLDERS here or below the host's root."""
    named = settings.get("efsmi") or ""
    if named:
        return named if _is_program(named) else None
    folders = [above + folder for above in dict.fromkeys(["", root]) for folder in FOLDERS]
    places = (os.path.join(folder, NAME) for folder in (*os.get_exec_path(), *folders))
    return next(filter(_is_program, places), None)


def _is_program(path: str) -> bool:
    """As shutil.which decides, which loads three compression libraries into the vendor's process."""
    return os.access(path, os.X_OK) and not os.path.isdir(path)


# Reading


def table(text: str) -> Listing[Row]:
    """The cards of the table that efsmi without arguments prints.

    A card is two lines of three columns: index and name, firmware, address and ECC; then temperature and
    power, memory and mode, use and serial number. Words within a column come and go between releases.
    """
    rows: list[Row] = []
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


def cards(text: str) -> Listing[Card]:
    """Rows of index, serial number, slot, PCI's numbers, address, CPUs and UUID, as `-L` prints them."""

    def read(words: Sequence[str]) -> Card:
        index, serial, *_, uuid = words
        bdf = next(word.lower() for word in words if _BDF.fullmatch(word.lower()))
        return Card(_index(index), serial, bdf, _checked(uuid))

    return _listed(text, read, _BDF)


def profiles(text: str) -> Listing[Profile]:
    """Rows of index, name, number, count, memory and SIPs."""

    def read(words: Sequence[str]) -> Profile:
        card, name, number, count, memory, sip = words[:6]
        return Profile(_index(card), _profile(name), _int(number), _int(count), memory, sip)

    return _listed(text, read)


def instances(text: str) -> Listing[Instance]:
    """Rows of index, profile, number and UUID, as `-L` prints them."""

    def read(words: Sequence[str]) -> Instance:
        card, profile, number, uuid = words[:4]
        return Instance(_index(card), _profile(profile), _int(number), _checked(uuid))

    return _listed(text, read)


def instances_without_uuid(text: str) -> Listing[Instance]:
    """Rows of index, profile, its number, the instance's number and placement, as of `--list-instance`."""

    def read(words: Sequence[str]) -> Instance:
        card, profile, _, number, _ = words[:5]
        return Instance(_index(card), _profile(profile), _int(number), "")

    return _listed(text, read)


def made(before: Sequence[Instance], after: Sequence[Instance], profile: str) -> list[Instance]:
    """The instances of a profile that came between two listings; several where others make some, too."""
    known = {it.uuid for it in before}
    return [it for it in after if it.profile == profile and it.uuid not in known]


def _listed(
    text: str, read: Callable[[Sequence[str]], T], sign: re.Pattern[str] = constants.PROFILE_NAME
) -> Listing[T]:
    """What a listing has in its rows, which are the lines with a word that is the sign of one."""
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


def _listing(rows: Sequence[T], remarks: Sequence[str]) -> Listing[T]:
    return Listing(tuple(rows), tuple(it[:REMARK] for it in remarks[:MAX_REMARKS]))


def _cells(line: str) -> list[str]:
    line = line.strip()
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def _is_upper(cells: Sequence[str]) -> bool:
    first, last = cells[0].split(), cells[2].split()
    is_card = first and _NUMBER.fullmatch(first[0]) and int(first[0]) <= MAX_CARD
    return bool(is_card and last and _BUS_ID.fullmatch(last[0]))


def _row(upper: Sequence[str], lower: Sequence[str]) -> Row:
    index, *name = upper[0].split()
    bus_id, *ecc = upper[2].split()
    memory = _MEMORY.search(lower[1])
    mode, serial = _MEMORY.sub(" ", lower[1]).split(), lower[2].split()
    return Row(
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
    """An argument of the tool. What is no number comes from a defect of ours, and must not reach the tool."""
    if type(value) is not int or not 0 <= value <= most:
        raise TypeError(f"{value!r} is no number from 0 to {most}")
    return str(value)
