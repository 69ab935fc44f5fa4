"""Finds and starts MXSML, says why it does not start, and calls its functions."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import DRIVER_NOT_LOADED, BackendUnavailable
from agent.vendors.common import host, shared_library
from agent.vendors.common.shared_library import NotLoaded
from agent.vendors.metax.shared import library_places, sysfs

from . import abi
from .abi import Code
from .values import (
    EccErrors,
    LinkEnd,
    MxsmlEvent,
    MxsmlIdentity,
    MxsmlMemory,
    MxsmlProcess,
    PciEvent,
    Sgpu,
    SgpuMemory,
    SgpuQuota,
    UnavailableReason,
)

REMEDY = "install the MetaX driver, or let 'library' name the file or a directory that holds it"
#: Codes of Init if MXSML finds no driver.
NO_DRIVER = (Code.LOAD_DLL_FAILURE, Code.NO_DEVICE)
#: Codes of a call that this card, or this build of the library, never supports.
UNSUPPORTED = (Code.OPERATION_NOT_SUPPORT, Code.FUNCTION_NOT_FOUND)
#: Limit of bytes for a text, and of elements for an array, that the library may ask for.
MAX_TEXT = 65536
#: Processes of one card: those that a first call has room for, and the most that are listed (60 MB at once).
PROCESS_ROOM, MAX_PROCESSES = 128, 16384
#: The functions that list processes, newest first. The older ones know nothing of slices.
PROCESS_LISTS: tuple[tuple[str, type[ctypes.Structure]], ...] = (
    ("GetSingleGpuProcess_v3", abi.ProcessInfoV3),
    ("GetSingleGpuProcess_v2", abi.ProcessInfoV2),
    ("GetSingleGpuProcess", abi.ProcessInfo),
)


class MxsmlError(Exception):
    """Raised when a call of MXSML fails. `code` is an abi.Code or an unknown number.

    `errno` is the system's error number if sysfs was the cause (SYSFS_ERROR, SYSFS_WRITE_ERROR), else 0.
    `numbers` are the integer arguments of the call: card, slice, quotas.
    """

    def __init__(
        self, call: str, code: int, text: str = "", number: int = 0, numbers: Sequence[int] = ()
    ) -> None:
        cause = f": {os.strerror(number)}" if number else ""
        arguments = ", ".join(map(str, numbers))
        super().__init__(f"{call}({arguments}) answers {code}, {text or 'no text'}{cause}")
        self.call, self.code, self.text, self.errno = call, code, text, number

    @property
    def unsupported(self) -> bool:
        """Whether this card, or this build of the library, does not support the call."""
        return self.code in UNSUPPORTED

    @property
    def gone(self) -> bool:
        """Whether the code says that the card is gone."""
        return self.code in (Code.INVALID_DEVICE_ID, Code.NO_DEVICE)

    @property
    def read_only(self) -> bool:
        """Whether sysfs is mounted read-only in this container."""
        return self.code == Code.SYSFS_WRITE_ERROR and self.errno == errno.EROFS


def start(settings: Mapping[str, Any]) -> Mxsml:
    """Load MXSML from the setting `library` or from the usual places, and let it enumerate the cards.

    Raises:
        BackendUnavailable: There is no library, or it does not start; the message names the places searched.
    """
    mxsml = Mxsml(load(settings))
    try:
        mxsml.init()
    except MxsmlError as error:
        loaded = sysfs.driver_loaded(host.sysfs(settings))
        raise unavailable(error, driver_loaded=loaded) from error
    return mxsml


def load(settings: Mapping[str, Any]) -> ctypes.CDLL:
    """Load the library file that the setting `library` names, or else the first one in the usual places."""
    try:
        return shared_library.load(library_places.searched(settings), _opened)
    except NotLoaded as error:
        empty = [f"no {library_places.SONAME} in {' or '.join(error.empty)}"] if error.empty else []
        raise BackendUnavailable(error.reason, "; ".join([*error.refused, *empty, REMEDY])) from None


def _opened(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(name, use_errno=True)


def unavailable(error: MxsmlError, *, driver_loaded: bool) -> BackendUnavailable:
    """The error for the agent when MXSML does not start. `driver_loaded`: the kernel has the driver loaded.

    MXSML has the same code for a missing driver and for missing files of its own. The reason
    DRIVER_NOT_LOADED would prove that faults ended with the driver, so the kernel decides.
    """
    if error.code in NO_DRIVER and not driver_loaded:
        return BackendUnavailable(DRIVER_NOT_LOADED, "MXSML is there, the kernel driver is not: load it")
    if error.code in (Code.PERMISSION_DENIED, Code.OPEN_DEVICE_FILE_FAILURE):
        return BackendUnavailable(
            "no-permission", f"MXSML may not open /dev/mxcd: allow the device ({error})"
        )
    return BackendUnavailable("mxsml-init", f"MXSML answers: {error}")


class Mxsml:
    """Calls the functions of one loaded library. `card` is the library's index, which can change.

    Every method raises MxsmlError, with these codes: FUNCTION_NOT_FOUND if this build does not export the
    function; INVALID_DEVICE_ID or NO_DEVICE if the card is gone; OPERATION_NOT_SUPPORT if the card does not
    support the call, or if the slice does not exist.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._functions: dict[str, Callable[..., Any] | None] = {}
        self._first_room: dict[type[ctypes.Structure], Any] = {}

    # The library

    def has(self, name: str) -> bool:
        """Whether this build exports a function, by its name without the prefix, such as "EventSetWait"."""
        return self._find(name) is not None

    def init(self) -> None:
        """Enumerate the cards, the first time or again. The library keeps its list until the next init."""
        if self.has("InitWithFlags"):
            self._call("InitWithFlags", abi.REINIT)
        else:
            self._call("Init")

    def error_text(self, code: int) -> str:
        """The library's text for a code, or else the one in abi.TEXTS."""
        function = self._find("GetErrorString")
        words = function(code) if function and code != Code.FUNCTION_NOT_FOUND else None
        return words.decode(errors="replace") if words else abi.TEXTS.get(code, "")

    def maca_version(self) -> str:
        return self._text("GetMacaVersion")

    # Cards

    def device_count(self) -> int:
        """The number of cards and virtual functions, with indices from 0. Also 0 after a failed init."""
        return int(self._function("GetDeviceCount")())

    def pf_device_count(self) -> int:
        """The number of physical functions of a virtualised host, with indices from abi.FIRST_PF."""
        return int(self._function("GetPfDeviceCount")()) if self.has("GetPfDeviceCount") else 0

    def devices(self) -> tuple[int, ...]:
        """All indices: cards and virtual functions first, then physical functions."""
        pfs = range(abi.FIRST_PF, abi.FIRST_PF + self.pf_device_count())
        return (*range(self.device_count()), *pfs)

    def identity(self, card: int) -> MxsmlIdentity:
        return _identity(card, self._struct("GetDeviceInfo", abi.DeviceInfo, card))

    def virtual_devices(self, card: int) -> tuple[int, ...]:
        """The indices of the virtual functions of a physical function."""
        return _ids(self._struct("GetVirtualDevicesByPhysicalId", abi.DeviceIds, card))

    def limited_devices(self) -> tuple[int, ...]:
        """The indices of cards that can be used in part only."""
        return _ids(self._struct("GetAllLimitedDevices", abi.DeviceIds))

    def limited_identity(self, card: int) -> MxsmlIdentity:
        return _identity(card, self._struct("GetLimitedDeviceInfo", abi.DeviceInfo, card))

    def die_count(self, card: int) -> int:
        """The number of dies; 1 for a library without dies."""
        return self._number("GetDeviceDieCount", card) if self.has("GetDeviceDieCount") else 1

    def version(self, card: int, unit: int = abi.VersionUnit.DRIVER) -> str:
        return self._text("GetDeviceVersion", card, unit)

    def memory(self, card: int, die: int | None = None) -> MxsmlMemory:
        """The memory of the card, or of one die, in KiB."""
        name, *where = _of("MemoryInfo", card, die)
        memory = self._struct(f"Get{name}", abi.MemoryInfo, *where)
        return MxsmlMemory(memory.vramTotal, memory.vramUse)

    def utilization(self, card: int, die: int | None = None, engine: int = abi.UsageIp.XCORE) -> int:
        """Percent of an engine of the card, or of one die."""
        where = ("GetDeviceIpUsage", card) if die is None else ("GetDieIpUsage", card, die)
        return self._number(*where, engine, kind=ctypes.c_int)

    def temperature(
        self, card: int, die: int | None = None, sensor: int = abi.TemperatureSensor.HOTSPOT
    ) -> float:
        """Degrees Celsius of the card, or of one die."""
        name, *where = _of("TemperatureInfo", card, die)
        return self._number(f"Get{name}", *where, sensor, kind=ctypes.c_int) / 100

    def power(self, card: int) -> float:
        """Watts that the card gets, by all ways together."""
        count = ctypes.c_uint(abi.POWER_WAYS)
        ways = self._array("GetBoardPowerInfo", abi.BoardPower, count, lambda it: (card, count, it))
        return float(sum(way.power for way in ways)) / 1000

    def clock(self, card: int, engine: int = abi.ClockIp.XCORE) -> float:
        """Hertz of an engine, the first one of several."""
        count = ctypes.c_uint(abi.CLOCKS)
        clocks = self._array("GetClocks", ctypes.c_uint, count, lambda it: (card, engine, count, it))
        if not clocks:
            raise self._error("GetClocks", Code.FAILURE, numbers=[card, engine])
        return float(clocks[0]) * 1e6

    def processes(self, card: int, bdf: str = "") -> tuple[MxsmlProcess, ...]:
        """What processes use of the card, each slice by itself. Without the newest function: no slices.

        `bdf` is the card's PCI address; empty: unknown. The pids are the host's, as GPUStack found.
        """
        return tuple(use for info in self._process_list(card) for use in _uses(info, card, bdf))

    def _emptied(self, kind: type[ctypes.Structure]) -> Any:
        """The array for first calls, emptied: a new one of this size for each card would cost more."""
        if kind not in self._first_room:
            self._first_room[kind] = (kind * PROCESS_ROOM)()
        array = self._first_room[kind]
        ctypes.memset(array, 0, ctypes.sizeof(array))
        return array

    def _process_list(self, card: int) -> list[Any]:
        """The processes on the card, by the newest function that this build and this card support."""
        for name, kind in PROCESS_LISTS[:-1]:
            try:
                return self._whole_list(name, kind, card)
            except MxsmlError as error:
                if not error.unsupported:
                    raise
        return self._whole_list(*PROCESS_LISTS[-1], card)

    def _whole_list(self, name: str, kind: type[ctypes.Structure], card: int) -> list[Any]:
        """Everything that a function lists of a card, at most MAX_PROCESSES.

        The header names no code for an array that is too small: a full array may lack some.
        """
        room = PROCESS_ROOM
        while True:
            count = ctypes.c_uint(room)
            array = self._emptied(kind) if room == PROCESS_ROOM else (kind * room)()
            try:
                self._call(name, card, count, array)
            except MxsmlError as error:
                if error.code != Code.INSUFFICIENT_SIZE or room == MAX_PROCESSES:
                    raise
            else:
                if count.value < room or room == MAX_PROCESSES:
                    return list(array[: min(count.value, room)])
            room = min(max(4 * room, count.value + 1), MAX_PROCESSES)

    # Health

    def state(self, card: int) -> bool:
        """Whether the card is available."""
        return self._number("GetDeviceState", card, kind=ctypes.c_int) == 1

    def unavailable(self, card: int, die: int | None = None) -> UnavailableReason:
        """Why a card, or a die, cannot be used. Code 0: it can be used."""
        call = "GetDeviceUnavailableReason" if die is None else "GetDieUnavailableReason"
        where = (card,) if die is None else (card, die)
        reason = self._struct(call, abi.UnavailableReasonInfo, *where)
        return UnavailableReason(reason.unavailableCode, _string(reason.unavailableReason))

    def ecc(self, card: int, die: int | None = None) -> EccErrors:
        name, *where = _of("TotalEccErrors", card, die)
        ecc = self._struct(f"Get{name}", abi.EccErrorCount, *where)
        return EccErrors(ecc.sramCE, ecc.sramUE, ecc.dramCE, ecc.dramUE, ecc.retiredPage)

    def pci_events(self, card: int, kind: int) -> tuple[PciEvent, ...]:
        """The errors of one abi.PciEventType since the driver was loaded."""
        count = ctypes.c_uint(abi.MAX_PCI_EVENTS)
        found = self._array("GetPciEventInfo", abi.PciEventInfo, count, lambda it: (card, kind, it, count))
        return tuple(
            PciEvent(event.bitNumber, event.count, _string(event.firstTime), _string(event.name))
            for event in found
        )

    def mmio_state(self, card: int) -> int:
        """The state of the card's registers, a number that MetaX has not published. Assumption: 1 is good."""
        return self._number("GetPciMmioState", card)

    # Topology

    def topology(self, card: int, other: int) -> int:
        """The path between two cards, an abi.TopologyLevel."""
        return self._number("GetDeviceTopology", card, other)

    def metaxlink_remote(self, card: int, link: int, die: int | None = None) -> LinkEnd | None:
        """The other end of a MetaXLink (0 to abi.METAX_LINKS - 1); None if the link is not connected."""
        try:
            if die is None:
                remote = self._struct("GetMetaXLinkRemoteInfo", abi.MetaXLinkRemoteInfo, card, link)
                return LinkEnd(remote.deviceId, _string(remote.bdfId))
            remote = self._struct("GetDieMetaXLinkRemoteInfo", abi.DieMetaXLinkRemoteInfo, card, die, link)
            return LinkEnd(remote.deviceId, _string(remote.bdfId), remote.dieId)
        except MxsmlError as error:
            if error.code == Code.NO_DEVICE:
                return None
            raise

    # Slices

    def sgpu_enabled(self, card: int) -> bool:
        return self._number("GetSgpuToggle", card) == 1

    def set_sgpu_enabled(self, card: int, enabled: bool) -> None:
        self._call("SetSgpuToggle", card, int(enabled))

    def create_sgpu(self, card: int, vram: int, compute: int) -> int:
        """Make a slice of `vram` MiB (a multiple of abi.VRAM_STEP), `compute` percent; return its number."""
        return self._number("CreateSgpu", card, vram, compute)

    def remove_sgpu(self, card: int, sgpu: int) -> None:
        """Remove a slice. Raises MxsmlError with BUSY_DEVICE while the slice is in use."""
        self._call("RemoveSgpu", card, sgpu)

    def sgpu_count(self, card: int) -> int:
        """The number of slices on the card. Also 0 after an error, which another call has to show."""
        return int(self._function("GetSgpuCount")(card))

    def sgpu(self, card: int, sgpu: int) -> Sgpu:
        info = self._struct("GetSgpuInfo", abi.SgpuInfo, card, sgpu)
        uuid = _string(info.uuid)
        return Sgpu(info.parentDeviceId, info.sgpuId, uuid, info.minor, info.vramQuota, info.computeQuota)

    def sgpus(self, card: int) -> tuple[Sgpu, ...]:
        """All slices of a card, as many as the library counts.

        The numbers of slices have gaps, and libraries answer differently for a number without a slice. So
        this asks for every number.

        Raises:
            MxsmlError: A call fails, or fewer slices answer than the library counts.
        """
        found: list[Sgpu] = []
        count, missing = self.sgpu_count(card), None
        if not count:
            self.sgpu_enabled(card)  # raises if the count is 0 because of an error
        for number in range(abi.MAX_SLICES + 1):
            if len(found) == count:
                return tuple(found)
            try:
                found.append(self.sgpu(card, number))
            except MxsmlError as error:
                missing = error
        raise missing or self._error("GetSgpuCount", Code.FAILURE, numbers=[card])

    def sgpu_quota(self, card: int) -> SgpuQuota:
        quota = self._struct("GetSgpuAvailableQuota", abi.SgpuAvailableQuota, card)
        return SgpuQuota(quota.totalVramQuota, quota.vramQuota, quota.computeQuota)

    def sched_class(self, card: int) -> int:
        """How the card's slices share its compute, an abi.SchedClass."""
        return self._number("GetDeviceSchedClass", card)

    def set_sched_class(self, card: int, sched_class: int) -> None:
        self._call("SetDeviceSchedClass", card, sched_class)

    def sgpu_alias(self, card: int, sgpu: int) -> str:
        return self._text("GetSgpuAlias", card, sgpu)

    def set_sgpu_alias(self, card: int, sgpu: int, alias: str) -> None:
        """Set the alias, at most abi.ALIAS_SIZE - 1 bytes."""
        self._call("SetSgpuAlias", card, sgpu, alias.encode())

    def sgpu_annotations_id(self, card: int, sgpu: int) -> str:
        """The text that MetaX's own plugin wrote on the slice, or empty. No published function writes it."""
        return self._text("GetSgpuAnnotationsId", card, sgpu)

    def sgpu_utilization(self, card: int, sgpu: int) -> float:
        """Percent of the card's compute that the slice uses; the library counts ten-thousandths."""
        return self._number("GetSgpuUsage", card, sgpu, kind=ctypes.c_int) / 100

    def sgpu_memory(self, card: int, sgpu: int) -> SgpuMemory:
        memory = self._struct("GetSgpuMemory", abi.SgpuMemoryInfo, card, sgpu)
        return SgpuMemory(memory.total, memory.used)

    # Events

    def create_event_set(self) -> int:
        """Make an empty event set, and return its handle."""
        handle = abi.EventSet()
        self._call("EventSetCreate", ctypes.byref(handle))
        return handle.value or 0

    def register_events(self, card: int, events: int, types: int = abi.EVENT_EID) -> None:
        """Register a card at a set. A set takes one card: for a second one the code is INVALID_INPUT."""
        self._call("DeviceRegisterEvents", card, types, events)

    def wait_for_event(self, events: int) -> MxsmlEvent:
        """Wait for an event without a timeout, and without the interpreter's lock.

        The calling thread can be left behind.
        """
        event = abi.Event()
        self._call("EventSetWait", events, ctypes.byref(event))
        return MxsmlEvent(event.deviceId, event.type, _string(event.eventData))

    def free_event_set(self, events: int) -> None:
        self._call("EventSetFree", events)

    # Calls

    def _find(self, name: str) -> Callable[..., Any] | None:
        if name not in self._functions:
            function = getattr(self._library, abi.PREFIX + name, None)
            if function is not None:
                function.argtypes = abi.ARGUMENTS[name]
                function.restype = abi.RESULTS.get(name, ctypes.c_uint)
            self._functions[name] = function
        return self._functions[name]

    def _function(self, name: str) -> Callable[..., Any]:
        function = self._find(name)
        if function is None:
            raise self._error(name, Code.FUNCTION_NOT_FOUND)
        return function

    def _error(self, name: str, code: int, number: int = 0, numbers: Sequence[int] = ()) -> MxsmlError:
        return MxsmlError(abi.PREFIX + name, code, self.error_text(code), number, numbers)

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._function(name)
        ctypes.set_errno(0)
        code = function(*arguments)
        if code != Code.SUCCESS:
            number = ctypes.get_errno() if code in (Code.SYSFS_ERROR, Code.SYSFS_WRITE_ERROR) else 0
            numbers = [int(value) for value in arguments if isinstance(value, int)]
            raise self._error(name, code, number, numbers)

    def _number(self, name: str, *arguments: Any, kind: type[Any] = ctypes.c_uint) -> int:
        number = kind()
        self._call(name, *arguments, ctypes.byref(number))
        return int(number.value)

    def _struct(self, name: str, kind: type[ctypes.Structure], *arguments: Any) -> Any:
        struct = kind()
        self._call(name, *arguments, ctypes.byref(struct))
        return struct

    def _text(self, name: str, *arguments: Any) -> str:
        size = ctypes.c_uint(abi.UUID_SIZE)
        while True:
            room = size.value
            buffer = ctypes.create_string_buffer(room)
            try:
                self._call(name, *arguments, buffer, ctypes.byref(size))
            except MxsmlError as error:
                if error.code != Code.INSUFFICIENT_SIZE or not room < size.value <= MAX_TEXT:
                    raise
            else:
                return _string(buffer.value)

    def _array(
        self,
        name: str,
        kind: type[Any],
        count: ctypes.c_uint,
        arguments: Callable[[Any], Sequence[Any]],
    ) -> list[Any]:
        """Let the function fill an array of `count` structures, or a larger one if the library asks for it.

        `arguments` makes the arguments of the call for an array.
        """
        while True:
            room = count.value
            array = (kind * room)()
            try:
                self._call(name, *arguments(array))
            except MxsmlError as error:
                if error.code != Code.INSUFFICIENT_SIZE or not room < count.value <= MAX_TEXT:
                    raise
            else:
                return list(array[: min(count.value, room)])


def _of(name: str, card: int, die: int | None) -> tuple[Any, ...]:
    """Name of the function, without "Get", and its first arguments, for a card or for one of its dies."""
    return (name, card) if die is None else (f"Die{name}", card, die)


def _uses(info: Any, card: int, bdf: str) -> Iterator[MxsmlProcess]:
    """What a process uses of the card, by slice. `info` may have other cards, too, and tells dies apart."""
    gpus, uses = info.gpus, dict[int | None, int]()
    for place in range(min(info.gpuNumber, abi.PROCESS_GPUS)):
        gpu = gpus[place]
        if _is_of(gpu, card, bdf):
            sgpu = getattr(gpu, "sgpuId", abi.NO_SLICE)
            slice_number = sgpu if sgpu >= 0 else None
            uses[slice_number] = uses.get(slice_number, 0) + gpu.gpuMemoryUsage
    if not uses:
        yield MxsmlProcess(info.processId, None)
    for slice_number, memory in uses.items():
        yield MxsmlProcess(info.processId, memory, slice_number)


def _is_of(gpu: Any, card: int, bdf: str) -> bool:
    """Whether this is the card, by its address, or else by its number, which may count other cards."""
    address = gpu.bdfId
    if not (bdf and address):
        return bool(gpu.gpuId == card)
    return bool(address == bdf.encode()) or sysfs.bdf(_string(address)) == bdf


def _string(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _ids(ids: Any) -> tuple[int, ...]:
    return tuple(ids.deviceId[: max(0, min(ids.number, abi.VIRTUAL_DEVICES))])


def _identity(card: int, info: Any) -> MxsmlIdentity:
    name, bdf, uuid = _string(info.deviceName), _string(info.bdfId), _string(info.uuid)
    return MxsmlIdentity(card, bdf, uuid, name, info.brand, info.mode, info.nodeId)
