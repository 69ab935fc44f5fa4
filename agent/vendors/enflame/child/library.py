"""Finds and starts EFML, and reads cards, their health, events and ports through its functions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import BackendUnavailable
from agent.vendors.common import shared_library
from agent.vendors.common.shared_library import NotLoaded
from agent.vendors.enflame.shared import library_places

from . import abi, signal_dispositions
from .abi import Code, HandleCode
from .calls import TEXT_ROOM, EfmlCalls, string
from .library_errors import EfmlError, unavailable
from .values import (
    CardPower,
    CardStanding,
    Ecc,
    EfmlErrorRecord,
    EfmlEvent,
    EfmlIdentity,
    EfmlMemory,
    LarePort,
    PcieLink,
    Process,
    ProcessLoad,
    Rma,
    Temperature,
)

REMEDY = "install Enflame's driver, or let 'library' name the file, its name or a directory that holds it"

MIB = 1 << 20
MHZ = 1_000_000
#: Events that one call of `events` takes. The next call takes the rest.
MAX_EVENTS = 64
MAX_RECORDS = 64
MAX_PORTS = 64
#: Processes of one card: those that a first call has room for, and the most that are listed. The index family
#: writes up to abi.MAX_PROCESSES, so this leaves a reserve.
PROCESS_ROOM, MAX_PROCESSES = 4 * abi.MAX_PROCESSES, 65536


def start(settings: Mapping[str, Any]) -> Efml:
    """Load EFML from the setting `library` or from the usual places, and let it enumerate the cards.

    Raises:
        BackendUnavailable: There is no library, or it does not start; the message names the places searched.
    """
    with signal_dispositions.kept():
        efml = Efml(load(settings), settings.get("symbolPrefix") or "")
    try:
        efml.init()
    except EfmlError as error:
        raise unavailable(error) from error
    return efml


def load(settings: Mapping[str, Any]) -> ctypes.CDLL:
    """Load the library file that the setting `library` names, or else the first one in the usual places."""
    names = library_places.searched(settings)
    try:
        return shared_library.load(names, _opened)
    except NotLoaded as error:
        raise _not_loaded(settings, names, error) from None


def _not_loaded(settings: Mapping[str, Any], names: Sequence[str], error: NotLoaded) -> BackendUnavailable:
    refused = list(error.refused)
    if "/" not in names[0]:
        del refused[1 : len(library_places.VERSIONS)]  # the loader has the same text for every name
    refused += [
        f"{link} leads to {target}, which is not here" for link, target in library_places.dangling(settings)
    ]
    if error.empty:
        refused.append(f"no {library_places.soname(settings)} in {' or '.join(error.empty)}")
    return BackendUnavailable(error.reason, "; ".join([*refused, REMEDY]))


def _opened(name: str) -> ctypes.CDLL:
    """Load the library with RTLD_GLOBAL and RTLD_LAZY, as Enflame's binding does.

    `ctypes.CDLL` alone would resolve every symbol at once.
    """
    libc = ctypes.CDLL(None)
    libc.dlopen.argtypes, libc.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    libc.dlerror.restype = ctypes.c_char_p
    handle = libc.dlopen(os.fsencode(name), os.RTLD_LAZY | os.RTLD_GLOBAL)
    if not handle:
        raise OSError(string(libc.dlerror() or b""))
    return ctypes.CDLL(name, handle=handle)


class Efml(EfmlCalls):
    """Reads cards through one loaded library. `card` is the card's index, which can change.

    Every method raises EfmlError. The error is `unsupported` if the card or this build of the library has no
    answer. If both families have a function, the index family is asked first, and the handle family if the
    index family has no answer.

    The binding has each published reading of a card, also the readings that the agent does not ask yet. The
    tests call every method against a library that plays EFML, which finds a wrong structure.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str = "") -> None:
        super().__init__(library, prefix)
        self._addresses: dict[int, str] = {}

    # The library

    def close(self) -> None:
        """Shut down both families. `init` starts them again."""
        with self._turn:
            super().close()
            self._addresses.clear()

    def driver_version(self) -> str:
        return self._text("EfmlGetDriverVer")

    def library_version(self) -> str:
        return self._text("EfmlGetLibVer")

    def access_point(self) -> str:
        """The directory, with a slash at its end, that has a folder for each card's PCI address."""
        return self._text("EfmlGetDriverAccessPoint")

    # Cards

    def count(self) -> int:
        """The number of cards. Their indices begin at 0."""
        count = self._alternatives(
            lambda: self._number("EfmlGetDevCount"),
            lambda: self._number(self._first("efmlDeviceGetCount_v2", "efmlDeviceGetCount")),
        )
        return min(count, abi.MAX_DEVICES)

    def identity(self, card: int) -> EfmlIdentity:
        identity = self._alternatives(lambda: self._identity(card), lambda: self._identity_by_handle(card))
        self._addresses[card] = identity.bdf
        return identity

    def _identity(self, card: int) -> EfmlIdentity:
        info = self._struct("EfmlGetDevInfo", abi.DeviceInfo, card)
        bdf = _bdf(info.domain, info.bus, info.device, info.function)
        return EfmlIdentity(card, string(info.name), bdf, info.vendorId, info.deviceId, info.logicId)

    def _identity_by_handle(self, card: int) -> EfmlIdentity:
        handle = self._handle(card)
        pci = self._struct("efmlDeviceGetPciInfo_v3", abi.PciInfo, handle)
        name = ctypes.create_string_buffer(TEXT_ROOM)
        self._call("efmlDeviceGetName", handle, name, abi.TEXT_SIZE)
        bdf = _bdf(pci.domain, pci.bus, pci.device, pci.function)
        return EfmlIdentity(card, string(name.value), bdf, pci.pciDeviceId & 0xFFFF, pci.pciDeviceId >> 16)

    def uuid(self, card: int) -> str:
        """The uuid as the library writes it. Enflame's exporter puts "GCU-" before it."""
        return self._text("EfmlGetDevUuid", card)

    def serial(self, card: int) -> str:
        return self._text("EfmlGetDevSn", card)

    def part_number(self, card: int) -> str:
        return self._text("EfmlGetDevPn", card)

    def sku(self, card: int) -> str:
        """The product, such as S60."""
        return self._text("EfmlGetDevSKU", card)

    def slot(self, card: int) -> str:
        return self._text("EfmlGetDevSlotOamName", card)

    def firmware_version(self, card: int) -> str:
        return self._text("EfmlGetFwVersion", card)

    def arch(self, card: int) -> str:
        """The name of the architecture."""
        return self._text("EfmlGetHwArchName", card)

    def numa_node(self, card: int) -> int | None:
        """The NUMA node. Assumption: a negative number means that it is unknown; then this is None."""
        node = self._number("EfmlGetNumaNode", card, kind=ctypes.c_int)
        return node if node >= 0 else None

    def virt_mode(self, card: int) -> int:
        """The virtualisation mode, an abi.VirtMode. Only GCU300 and later support this call."""
        return self._number("EfmlGetGcuVirtStatus", card, kind=ctypes.c_int)

    def memory(self, card: int) -> EfmlMemory:
        return self._alternatives(lambda: self._memory(card), lambda: self._memory_by_handle(card))

    def _memory(self, card: int) -> EfmlMemory:
        memory = self._struct("EfmlGetDevMem", abi.MemInfo, card)
        return EfmlMemory(memory.total, memory.used * MIB)

    def _memory_by_handle(self, card: int) -> EfmlMemory:
        handle = self._handle(card)
        memory = self._alternatives(
            lambda: self._filled(
                "efmlDeviceGetMemoryInfo_v2", abi.DeviceMemoryV2(abi.MEMORY_VERSION), handle
            ),
            lambda: self._struct("efmlDeviceGetMemoryInfo", abi.DeviceMemory, handle),
        )
        return EfmlMemory(memory.total, memory.used)

    def utilization(self, card: int) -> float:
        """Percent of the compute engine, first from the call that reads what the library's thread sampled."""
        return self._alternatives(
            lambda: self._percent("EfmlGetDevDtuUsageAsync", card),
            lambda: self._percent("EfmlGetDevDtuUsage", card),
            lambda: float(
                self._struct("efmlDeviceGetUtilizationRates", abi.Utilization, self._handle(card)).gcu
            ),
        )

    def memory_utilization(self, card: int) -> float:
        """Percent of the time in which the card's memory was read or written."""
        rates = self._struct("efmlDeviceGetUtilizationRates", abi.Utilization, self._handle(card))
        return float(rates.memory)

    def clock(self, card: int) -> float:
        """Hertz of the compute units. EfmlGetDevClk is not asked: its unit is not published."""
        return self._clock_by_handle(card, abi.ClockType.SIP)

    def memory_clock(self, card: int) -> float:
        """Hertz of the memory."""
        return self._alternatives(
            lambda: self._number("EfmlGetMemClk", card) * MHZ,
            lambda: self._clock_by_handle(card, abi.ClockType.MEMORY),
        )

    def _clock_by_handle(self, card: int, kind: int) -> float:
        return self._number("efmlDeviceGetClockInfo", self._handle(card), kind) * MHZ

    def processes(self, card: int) -> tuple[Process, ...]:
        """The processes on the card, first from the family that counts their memory in bytes.

        The index family has room for abi.MAX_PROCESSES.
        """
        return self._alternatives(lambda: self._processes_by_handle(card), lambda: self._processes(card))

    def _processes_by_handle(self, card: int) -> tuple[Process, ...]:
        name = "efmlDeviceGetComputeRunningProcesses_v3"
        found = self._whole_list(name, abi.RunningProcess, card, lambda array, count: (count, array))
        return tuple(Process(it.pid, it.usedMemory, True) for it in found if it.pid)

    def _processes(self, card: int) -> tuple[Process, ...]:
        count = ctypes.c_uint32(abi.MAX_PROCESSES)
        infos = (abi.ProcessInfo * PROCESS_ROOM)()
        self._call("EfmlGetProcessInfo", card, ctypes.byref(count), infos)
        found = infos[: min(count.value, PROCESS_ROOM)]
        return tuple(Process(it.pid, it.deviceMemory, False) for it in found if it.pid)

    def process_loads(self, card: int) -> tuple[ProcessLoad, ...]:
        """The samples of processes that the library keeps, maybe several of one process."""
        name = "efmlDeviceGetProcessUtilization"
        found = self._whole_list(name, abi.UtilizationSample, card, lambda array, count: (array, count, 0))
        return tuple(ProcessLoad(it.pid, it.time, it.sip) for it in found if it.pid)

    def _whole_list(
        self,
        name: str,
        kind: type[ctypes.Structure],
        card: int,
        arguments: Callable[[Any, Any], tuple[Any, ...]],
    ) -> list[Any]:
        """Everything that a function of the handle family lists of a card, at most MAX_PROCESSES.

        `arguments` makes the arguments after the handle, for an array and a count.
        """
        room = PROCESS_ROOM
        while True:
            count, array = ctypes.c_uint32(room), (kind * room)()
            try:
                self._call(name, self._handle(card), *arguments(array, ctypes.byref(count)))
            except EfmlError as error:
                if error.code != HandleCode.INSUFFICIENT_SIZE or room == MAX_PROCESSES:
                    raise
                room = min(max(2 * room, count.value), MAX_PROCESSES)
            else:
                return list(array[: min(count.value, room)])

    def power(self, card: int) -> CardPower:
        return self._alternatives(lambda: self._power(card), lambda: self._power_by_handle(card))

    def _power(self, card: int) -> CardPower:
        power = self._struct("EfmlGetDevPwr", abi.Power, card)
        return CardPower(power.capability, power.current)

    def _power_by_handle(self, card: int) -> CardPower:
        handle = self._handle(card)
        limit = self._number("efmlDeviceGetEnforcedPowerLimit", handle)
        return CardPower(limit / 1000, self._number("efmlDeviceGetPowerUsage", handle) / 1000)

    # Health

    def standing(self, card: int) -> CardStanding:
        """Whether the card is lost or needs a reset. Only functions with a handle (see abi) report this.

        Raises:
            EfmlError: The function fails for another reason.
        """
        if not self.handles:
            return CardStanding.UNKNOWN
        try:
            self._memory_by_handle(card)
        except EfmlError as error:
            if error.gone:
                return CardStanding.LOST
            if error.reset_required:
                return CardStanding.RESET_REQUIRED
            if not error.unsupported:
                raise
        return CardStanding.HERE

    def healthy(self, card: int) -> bool:
        """Whether the library regards the card as healthy."""
        return self._alternatives(
            lambda: self._flag("EfmlGetDevIsHealth", card), lambda: self._flag("EfmlGetDevHealth", card)
        )

    def ecc(self, card: int) -> Ecc:
        """The ECC state. Since when the errors are counted is not published.

        A card without this call may count double-bit errors in `rma`.
        """
        ecc = self._struct("EfmlGetDevEccStatus", abi.EccStatus, card)
        return Ecc(ecc.enabled, ecc.pending, ecc.blacklistPending, ecc.singleBit, ecc.doubleBit)

    def rma(self, card: int) -> Rma:
        return self._alternatives(lambda: self._rma_details(card), lambda: self._rma_status(card))

    def _rma_details(self, card: int) -> Rma:
        details = self._struct("EfmlGetDevRmaDetails", abi.RmaDetails, card)
        return Rma(details.supported, details.flag, details.doubleBit)

    def _rma_status(self, card: int) -> Rma:
        status = self._struct("EfmlGetDevRmaStatus", abi.RmaStatus, card)
        return Rma(status.supported, status.flag, None)

    def link(self, card: int) -> PcieLink:
        return self._alternatives(lambda: self._link(card), lambda: self._link_by_handle(card))

    def _link(self, card: int) -> PcieLink:
        link = self._struct("EfmlGetPcieLinkInfo", abi.LinkInfo, card)
        return PcieLink(link.speed, link.maxSpeed, link.width, link.maxWidth)

    def _link_by_handle(self, card: int) -> PcieLink:
        handle = self._handle(card)
        width = self._number("efmlDeviceGetCurrPcieLinkWidth", handle)
        return PcieLink(None, None, width, self._number("efmlDeviceGetMaxPcieLinkWidth", handle))

    def temperature(self, card: int) -> Temperature:
        return self._alternatives(
            lambda: self._temperature(card),
            lambda: self._temperature_of_two_stacks(card),
            lambda: self._temperature_by_handle(card),
        )

    def _temperature(self, card: int) -> Temperature:
        thermal = self._struct("EfmlGetDevTempV2", abi.Thermal, card)
        return Temperature(thermal.asic, thermal.memory, thermal.board)

    def _temperature_of_two_stacks(self, card: int) -> Temperature:
        thermal = self._struct("EfmlGetDevTemp", abi.Thermal, card)
        return Temperature(thermal.asic, max(thermal.memory, thermal.board), None)

    def _temperature_by_handle(self, card: int) -> Temperature:
        degrees = self._number("efmlDeviceGetTemperature", self._handle(card), 0, kind=ctypes.c_int)
        return Temperature(degrees, None, None)

    def power_mode(self, card: int) -> int:
        """The power mode, an abi.PowerMode. A sleeping card has no fault."""
        return self._number("EfmlGetPowerMode", card, kind=ctypes.c_int)

    def error_records(self, card: int) -> tuple[EfmlErrorRecord, ...]:
        """At most MAX_RECORDS error records. Whether these are the newest or the oldest is not published."""
        total = ctypes.c_uint32()
        records = (abi.ErrorRecord * MAX_RECORDS)()
        self._call("EfmlGetErrorRecords", card, MAX_RECORDS, records, ctypes.byref(total))
        found = records[: min(total.value, MAX_RECORDS)]
        return tuple(EfmlErrorRecord(it.eventId, it.resetType, it.source, it.time) for it in found)

    # Events

    def events(self, card: int) -> tuple[EfmlEvent, ...]:
        """The events of the card since the last call, oldest first, without a wait.

        Assumptions: TIMEOUT means that there are no more events, as for EfmlGetEvent; an empty event without
        a type means the same; a call of EfmlStartListenEvent, which is deprecated, is not needed. Enflame's
        exporter does not make that call.
        """
        return self._drained("EfmlGetEventV2", card, card)

    def events_of_any_card(self) -> tuple[EfmlEvent, ...]:
        """As `events`, for builds without EfmlGetEventV2, which do not tell the card of an event."""
        return self._drained("EfmlGetEvent", None, 0)

    def _drained(self, name: str, card: int | None, argument: int) -> tuple[EfmlEvent, ...]:
        found: list[EfmlEvent] = []
        while len(found) < MAX_EVENTS:
            try:
                event = self._struct(name, abi.Event, argument)
            except EfmlError as error:
                if error.code == Code.TIMEOUT:
                    break
                raise
            if not (event.type or event.id or event.message):
                break
            found.append(EfmlEvent(card, event.type, event.id, string(event.message)))
        return tuple(found)

    # Topology

    def ports(self, card: int) -> tuple[LarePort, ...]:
        """The card's LARE ports, none if it has no such ports. Older builds call them ESL."""
        try:
            count = self._alternatives(
                lambda: self._number("EfmlGetGcuLarePortNum", card),
                lambda: self._number("EfmlGetEslPortNum", card),
            )
        except EfmlError as error:
            if error.unsupported:
                return ()
            raise
        return tuple(self._port(card, number) for number in range(min(count, MAX_PORTS)))

    def _port(self, card: int, number: int) -> LarePort:
        port = self._alternatives(
            lambda: self._struct("EfmlGetGcuLarePortInfo", abi.LarePortInfo, card, number),
            lambda: self._struct("EfmlGetEslPortInfo", abi.LarePortInfo, card, number),
        )
        remote = _bdf(port.remoteDomain, port.remoteBus, port.remoteDevice, port.remoteFunction)
        return LarePort(number, remote if port.connected else None, port.remotePort)

    def _handle(self, card: int) -> int:
        """The handle of a card, by its PCI address if that is known, or else by its index.

        The address is safer: nothing says that both families count cards alike. A handle is not kept, because
        its meaning after a reset is not published.
        """
        handle = abi.Handle()
        bdf = self._addresses.get(card)
        by_address = self._first("efmlDeviceGetHandleByPciBusId_v2", "efmlDeviceGetHandleByPciBusId")
        if bdf and self.has(by_address):
            self._call(by_address, bdf.encode(), ctypes.byref(handle))
        else:
            by_index = self._first("efmlDeviceGetHandleByIndex_v2", "efmlDeviceGetHandleByIndex")
            self._call(by_index, card, ctypes.byref(handle))
        return handle.value or 0


def _bdf(domain: int, bus: int, device: int, function: int) -> str:
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
