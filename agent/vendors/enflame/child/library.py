"""Finds and starts EFML, and asks it: what a card is, has and tells."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import BackendUnavailable
from agent.vendors.common import shared_library
from agent.vendors.common.shared_library import NotLoaded
from agent.vendors.enflame import library_places

from . import abi, signal_dispositions
from .abi import Code
from .calls import TEXT_ROOM, EfmlCalls, string
from .library_errors import EfmlError, unavailable
from .values import (
    CardStanding,
    Ecc,
    EfmlEvent,
    EfmlIdentity,
    EfmlMemory,
    ErrorRecord,
    LarePort,
    PcieLink,
    Power,
    Process,
    Rma,
    Temperature,
)

REMEDY = "install Enflame's driver, or let 'library' name the file, its name or a directory that holds it"

MIB = 1 << 20
#: More than come between two looks; what is left is taken at the next.
MAX_EVENTS = 64
MAX_RECORDS = 64
MAX_PORTS = 64


def start(settings: Mapping[str, Any]) -> Efml:
    """Load EFML from where the settings say, or from the usual places, and let it look for the cards.

    Raises:
        BackendUnavailable: There is no library, or it refuses; says where it was looked for.
    """
    with signal_dispositions.kept():
        efml = Efml(load(settings), settings.get("symbolPrefix") or "")
    try:
        efml.init()
    except EfmlError as error:
        raise unavailable(error) from error
    return efml


def load(settings: Mapping[str, Any]) -> ctypes.CDLL:
    """Load the library itself: what `library` names alone, else the first that the usual places have."""
    names = library_places.searched(settings)
    try:
        return shared_library.load(names, _opened)
    except NotLoaded as error:
        raise _not_loaded(settings, names, error) from None


def _not_loaded(settings: Mapping[str, Any], names: Sequence[str], error: NotLoaded) -> BackendUnavailable:
    refused = list(error.refused)
    if "/" not in names[0]:
        del refused[1 : len(library_places.VERSIONS)]  # the loader says the same of every name
    refused += [
        f"{link} leads to {target}, which is not here" for link, target in library_places.dangling(settings)
    ]
    if error.empty:
        refused.append(f"no {library_places.soname(settings)} in {' or '.join(error.empty)}")
    return BackendUnavailable(error.reason, "; ".join([*refused, REMEDY]))


def _opened(name: str) -> ctypes.CDLL:
    """Global and lazy, as Enflame's binding opens it; ctypes by itself asks for every symbol at once."""
    libc = ctypes.CDLL(None)
    libc.dlopen.argtypes, libc.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    libc.dlerror.restype = ctypes.c_char_p
    handle = libc.dlopen(os.fsencode(name), os.RTLD_LAZY | os.RTLD_GLOBAL)
    if not handle:
        raise OSError(string(libc.dlerror() or b""))
    return ctypes.CDLL(name, handle=handle)


class Efml(EfmlCalls):
    """What one loaded library tells. `card` is its index, which is no identity.

    Every method raises EfmlError; `unsupported` where the card or this build of the library cannot tell.
    Where both families know something the index family is asked first, and the other one where it cannot
    tell.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str = "") -> None:
        super().__init__(library, prefix)
        self._addresses: dict[int, str] = {}

    # The library

    def close(self) -> None:
        """End both families; `init` starts them again."""
        with self._turn:
            super().close()
            self._addresses.clear()

    def driver_version(self) -> str:
        return self._text("EfmlGetDriverVer")

    def library_version(self) -> str:
        return self._text("EfmlGetLibVer")

    def access_point(self) -> str:
        """The directory, with a slash at its end, below which cards lie by their PCI address."""
        return self._text("EfmlGetDriverAccessPoint")

    # Cards

    def count(self) -> int:
        """How many cards there are, indices from 0."""
        count = self._alternatives(
            lambda: self._number("EfmlGetDevCount"),
            lambda: self._number(self._first("efmlDeviceGetCount_v2", "efmlDeviceGetCount")),
        )
        return min(count, abi.MAX_DEVICES)

    def identity(self, card: int) -> EfmlIdentity:
        it = self._alternatives(lambda: self._identity(card), lambda: self._identity_by_handle(card))
        self._addresses[card] = it.bdf
        return it

    def _identity(self, card: int) -> EfmlIdentity:
        it = self._struct("EfmlGetDevInfo", abi.DeviceInfo, card)
        bdf = _bdf(it.domain, it.bus, it.device, it.function)
        return EfmlIdentity(card, string(it.name), bdf, it.vendorId, it.deviceId, it.logicId)

    def _identity_by_handle(self, card: int) -> EfmlIdentity:
        handle = self._handle(card)
        it = self._struct("efmlDeviceGetPciInfo_v3", abi.PciInfo, handle)
        name = ctypes.create_string_buffer(TEXT_ROOM)
        self._call("efmlDeviceGetName", handle, name, abi.TEXT_SIZE)
        bdf = _bdf(it.domain, it.bus, it.device, it.function)
        return EfmlIdentity(card, string(name.value), bdf, it.pciDeviceId & 0xFFFF, it.pciDeviceId >> 16)

    def uuid(self, card: int) -> str:
        """As the library writes it; Enflame's exporter puts "GCU-" before it."""
        return self._text("EfmlGetDevUuid", card)

    def serial(self, card: int) -> str:
        return self._text("EfmlGetDevSn", card)

    def part_number(self, card: int) -> str:
        return self._text("EfmlGetDevPn", card)

    def sku(self, card: int) -> str:
        """The product: S60."""
        return self._text("EfmlGetDevSKU", card)

    def slot(self, card: int) -> str:
        return self._text("EfmlGetDevSlotOamName", card)

    def firmware_version(self, card: int) -> str:
        return self._text("EfmlGetFwVersion", card)

    def arch(self, card: int) -> str:
        """The architecture's name."""
        return self._text("EfmlGetHwArchName", card)

    def numa_node(self, card: int) -> int | None:
        """None where the library knows none, which a negative number is taken for."""
        node = self._number("EfmlGetNumaNode", card, kind=ctypes.c_int)
        return node if node >= 0 else None

    def virt_mode(self, card: int) -> int:
        """What the card is to virtual machines, as abi.VirtMode. Only GCU300 and later can tell."""
        return self._number("EfmlGetGcuVirtStatus", card, kind=ctypes.c_int)

    def memory(self, card: int) -> EfmlMemory:
        return self._alternatives(lambda: self._memory(card), lambda: self._memory_by_handle(card))

    def _memory(self, card: int) -> EfmlMemory:
        it = self._struct("EfmlGetDevMem", abi.MemInfo, card)
        return EfmlMemory(it.total, it.used * MIB)

    def _memory_by_handle(self, card: int) -> EfmlMemory:
        handle = self._handle(card)
        it = self._alternatives(
            lambda: self._filled(
                "efmlDeviceGetMemoryInfo_v2", abi.DeviceMemoryV2(abi.MEMORY_VERSION), handle
            ),
            lambda: self._struct("efmlDeviceGetMemoryInfo", abi.DeviceMemory, handle),
        )
        return EfmlMemory(it.total, it.used)

    def utilization(self, card: int) -> float:
        """Percent of the compute engine; what a thread of the library's samples comes first."""
        return self._alternatives(
            lambda: self._percent("EfmlGetDevDtuUsageAsync", card),
            lambda: self._percent("EfmlGetDevDtuUsage", card),
            lambda: float(
                self._struct("efmlDeviceGetUtilizationRates", abi.Utilization, self._handle(card)).gcu
            ),
        )

    def processes(self, card: int) -> tuple[Process, ...]:
        """At most abi.MAX_PROCESSES, which is all that the library has room for."""
        count = ctypes.c_uint32(abi.MAX_PROCESSES)
        items = (abi.ProcessInfo * abi.MAX_PROCESSES)()
        self._call("EfmlGetProcessInfo", card, ctypes.byref(count), items)
        return tuple(Process(it.pid, it.deviceMemory) for it in items[: min(count.value, abi.MAX_PROCESSES)])

    def power(self, card: int) -> Power:
        it = self._struct("EfmlGetDevPwr", abi.Power, card)
        return Power(it.capability, it.current)

    # Health

    def standing(self, card: int) -> CardStanding:
        """Whether the card is lost or needs a reset, of which the index family says nothing.

        Raises EfmlError for whatever else the handle family answers.
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
        """What the library itself takes the card for."""
        return self._alternatives(
            lambda: self._flag("EfmlGetDevIsHealth", card), lambda: self._flag("EfmlGetDevHealth", card)
        )

    def ecc(self, card: int) -> Ecc:
        """Since when, nothing public tells; where the card cannot say, `rma` may count those of two bits."""
        it = self._struct("EfmlGetDevEccStatus", abi.EccStatus, card)
        return Ecc(it.enabled, it.pending, it.blacklistPending, it.singleBit, it.doubleBit)

    def rma(self, card: int) -> Rma:
        return self._alternatives(lambda: self._rma_details(card), lambda: self._rma_status(card))

    def _rma_details(self, card: int) -> Rma:
        it = self._struct("EfmlGetDevRmaDetails", abi.RmaDetails, card)
        return Rma(it.supported, it.flag, it.doubleBit)

    def _rma_status(self, card: int) -> Rma:
        it = self._struct("EfmlGetDevRmaStatus", abi.RmaStatus, card)
        return Rma(it.supported, it.flag, None)

    def link(self, card: int) -> PcieLink:
        return self._alternatives(lambda: self._link(card), lambda: self._link_by_handle(card))

    def _link(self, card: int) -> PcieLink:
        it = self._struct("EfmlGetPcieLinkInfo", abi.LinkInfo, card)
        return PcieLink(it.speed, it.maxSpeed, it.width, it.maxWidth)

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
        it = self._struct("EfmlGetDevTempV2", abi.Thermal, card)
        return Temperature(it.asic, it.memory, it.board)

    def _temperature_of_two_stacks(self, card: int) -> Temperature:
        it = self._struct("EfmlGetDevTemp", abi.Thermal, card)
        return Temperature(it.asic, max(it.memory, it.board), None)

    def _temperature_by_handle(self, card: int) -> Temperature:
        it = self._number("efmlDeviceGetTemperature", self._handle(card), 0, kind=ctypes.c_int)
        return Temperature(it, None, None)

    def power_mode(self, card: int) -> int:
        """As abi.PowerMode; a card that sleeps is no fault."""
        return self._number("EfmlGetPowerMode", card, kind=ctypes.c_int)

    def error_records(self, card: int) -> tuple[ErrorRecord, ...]:
        """At most MAX_RECORDS; whether the newest or the oldest, nothing public tells."""
        total = ctypes.c_uint32()
        items = (abi.ErrorRecord * MAX_RECORDS)()
        self._call("EfmlGetErrorRecords", card, MAX_RECORDS, items, ctypes.byref(total))
        found = items[: min(total.value, MAX_RECORDS)]
        return tuple(ErrorRecord(it.eventId, it.resetType, it.source, it.time) for it in found)

    # Events

    def events(self, card: int) -> tuple[EfmlEvent, ...]:
        """What the card told since the last time, without waiting; the oldest first.

        That TIMEOUT says that there is nothing more is our assumption, made from EfmlGetEvent; an empty event
        of no type is taken to mean the same. So is that nobody has to call EfmlStartListenEvent, which is
        deprecated: Enflame's exporter does not.
        """
        return self._drained("EfmlGetEventV2", card, card)

    def events_of_any_card(self) -> tuple[EfmlEvent, ...]:
        """As `events`, for builds without EfmlGetEventV2: which card tells it the library does not say."""
        return self._drained("EfmlGetEvent", None, 0)

    def _drained(self, name: str, card: int | None, argument: int) -> tuple[EfmlEvent, ...]:
        found: list[EfmlEvent] = []
        while len(found) < MAX_EVENTS:
            try:
                it = self._struct(name, abi.Event, argument)
            except EfmlError as error:
                if error.code == Code.TIMEOUT:
                    break
                raise
            if not (it.type or it.id or it.message):
                break
            found.append(EfmlEvent(card, it.type, it.id, string(it.message)))
        return tuple(found)

    # Topology

    def ports(self, card: int) -> tuple[LarePort, ...]:
        """The card's LARE ports; none where it has none. Older builds call them ESL."""
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
        it = self._alternatives(
            lambda: self._struct("EfmlGetGcuLarePortInfo", abi.LarePortInfo, card, number),
            lambda: self._struct("EfmlGetEslPortInfo", abi.LarePortInfo, card, number),
        )
        remote = _bdf(it.remoteDomain, it.remoteBus, it.remoteDevice, it.remoteFunction)
        return LarePort(number, remote if it.connected else None, it.remotePort)

    def _handle(self, card: int) -> int:
        """By the address, once known: that both families count alike is nowhere promised.

        A handle is not kept: what one means after a reset nothing public tells.
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
