"""Finds and starts MXSML, words what keeps it from starting, and calls it."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.vendor_api.backend import DRIVER_NOT_LOADED, BackendUnavailable
from agent.vendors.common import host, shared_library
from agent.vendors.common.shared_library import NotLoaded
from agent.vendors.metax import library_places, sysfs

from . import abi
from .abi import Code
from .values import (
    EccErrors,
    LinkEnd,
    MxsmlEvent,
    MxsmlIdentity,
    MxsmlMemory,
    PciEvent,
    Sgpu,
    SgpuQuota,
    Unavailable,
)

REMEDY = "install the MetaX driver, or let 'library' name the file or a directory that holds it"
#: Codes of Init where there is no driver, or none that MXSML can find.
NO_DRIVER = (Code.LOAD_DLL_FAILURE, Code.NO_DEVICE)
#: More than any call needs; a library that asks for more text is not believed.
MAX_TEXT = 65536


class MxsmlError(Exception):
    """Raised when a call of MXSML fails. `code` is abi.Code's, or one that we do not know.

    `errno` is the system's number where sysfs was the cause (SYSFS_ERROR, SYSFS_WRITE_ERROR), else 0.
    `numbers` are those that the call was made with: card, slice, quotas.
    """

    def __init__(
        self, call: str, code: int, text: str = "", number: int = 0, numbers: Sequence[int] = ()
    ) -> None:
        cause = f": {os.strerror(number)}" if number else ""
        asked = ", ".join(map(str, numbers))
        super().__init__(f"{call}({asked}) answers {code}, {text or 'no text'}{cause}")
        self.call, self.code, self.text, self.errno = call, code, text, number

    @property
    def gone(self) -> bool:
        """Whether it says that the card is not there."""
        return self.code in (Code.INVALID_DEVICE_ID, Code.NO_DEVICE)

    @property
    def read_only(self) -> bool:
        """Whether sysfs cannot be written here, which needs a container that may."""
        return self.code == Code.SYSFS_WRITE_ERROR and self.errno == errno.EROFS


def start(settings: Mapping[str, Any]) -> Mxsml:
    """Load MXSML from where the settings say, or from the usual places, and let it look for the cards.

    Raises:
        BackendUnavailable: There is no library, or it refuses; says where it was looked for.
    """
    mxsml = Mxsml(load(settings))
    try:
        mxsml.init()
    except MxsmlError as error:
        loaded = sysfs.driver_loaded(host.sysfs(settings))
        raise unavailable(error, driver_loaded=loaded) from error
    return mxsml


def load(settings: Mapping[str, Any]) -> ctypes.CDLL:
    """Load the library itself: what `library` names alone, else the first that the usual places have."""
    try:
        return shared_library.load(library_places.searched(settings), _opened)
    except NotLoaded as error:
        empty = [f"no {library_places.SONAME} in {' or '.join(error.empty)}"] if error.empty else []
        raise BackendUnavailable(error.reason, "; ".join([*error.refused, *empty, REMEDY])) from None


def _opened(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(name, use_errno=True)


def unavailable(error: MxsmlError, *, driver_loaded: bool) -> BackendUnavailable:
    """Why MXSML as a whole does not answer. `driver_loaded` is the kernel's word for it.

    MXSML says the same where only its own files are away, and a driver that stays has forgotten nothing.
    """
    if error.code in NO_DRIVER and not driver_loaded:
        return BackendUnavailable(DRIVER_NOT_LOADED, "MXSML is there, the kernel driver is not: load it")
    if error.code in (Code.PERMISSION_DENIED, Code.OPEN_DEVICE_FILE_FAILURE):
        return BackendUnavailable(
            "no-permission", f"MXSML may not open /dev/mxcd: allow the device ({error})"
        )
    return BackendUnavailable("mxsml-init", f"MXSML answers: {error}")


class Mxsml:
    """The functions of one loaded library. `card` is the library's index, which is no identity.

    Every method raises MxsmlError: with FUNCTION_NOT_FOUND where this build lacks the function, and with
    INVALID_DEVICE_ID or NO_DEVICE where the card is gone. What a card cannot do is OPERATION_NOT_SUPPORT,
    and so is a slice that is not there.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._functions: dict[str, Callable[..., Any] | None] = {}

    # The library

    def has(self, name: str) -> bool:
        """Whether this build exports a function, named without its prefix: "EventSetWait"."""
        return self._find(name) is not None

    def init(self) -> None:
        """Look for the cards, also where that was done before: lists are fixed until the next time."""
        if self.has("InitWithFlags"):
            self._call("InitWithFlags", abi.REINIT)
        else:
            self._call("Init")

    def error_text(self, code: int) -> str:
        """The library's words for a code, or ours where it has none."""
        function = self._find("GetErrorString")
        words = function(code) if function and code != Code.FUNCTION_NOT_FOUND else None
        return words.decode(errors="replace") if words else abi.TEXTS.get(code, "")

    def maca_version(self) -> str:
        return self._text("GetMacaVersion")

    # Cards

    def device_count(self) -> int:
        """How many cards and virtual functions there are, indices from 0; 0 also where init failed."""
        return int(self._function("GetDeviceCount")())

    def pf_device_count(self) -> int:
        """How many physical functions a virtualised host has, indices from abi.FIRST_PF."""
        return int(self._function("GetPfDeviceCount")()) if self.has("GetPfDeviceCount") else 0

    def devices(self) -> tuple[int, ...]:
        """All indices: of cards and virtual functions, then of physical functions."""
        pfs = range(abi.FIRST_PF, abi.FIRST_PF + self.pf_device_count())
        return (*range(self.device_count()), *pfs)

    def identity(self, card: int) -> MxsmlIdentity:
        return _identity(card, self._struct("GetDeviceInfo", abi.DeviceInfo, card))

    def virtual_devices(self, card: int) -> tuple[int, ...]:
        """The indices of the virtual functions of a physical one."""
        return _ids(self._struct("GetVirtualDevicesByPhysicalId", abi.DeviceIds, card))

    def limited_devices(self) -> tuple[int, ...]:
        """The indices of cards that work in part only."""
        return _ids(self._struct("GetAllLimitedDevices", abi.DeviceIds))

    def limited_identity(self, card: int) -> MxsmlIdentity:
        return _identity(card, self._struct("GetLimitedDeviceInfo", abi.DeviceInfo, card))

    def die_count(self, card: int) -> int:
        """1 where the library knows no dies."""
        return self._number("GetDeviceDieCount", card) if self.has("GetDeviceDieCount") else 1

    def version(self, card: int, unit: int = abi.VersionUnit.DRIVER) -> str:
        return self._text("GetDeviceVersion", card, unit)

    def memory(self, card: int, die: int | None = None) -> MxsmlMemory:
        """KiB; of one die where it is named."""
        name, *where = _of("MemoryInfo", card, die)
        it = self._struct(f"Get{name}", abi.MemoryInfo, *where)
        return MxsmlMemory(it.vramTotal, it.vramUse)

    def utilization(self, card: int) -> int:
        """Percent of the compute engine."""
        return self._number("GetDeviceIpUsage", card, abi.UsageIp.XCORE, kind=ctypes.c_int)

    # Health

    def state(self, card: int) -> bool:
        """Whether the card is available."""
        return self._number("GetDeviceState", card, kind=ctypes.c_int) == 1

    def unavailable(self, card: int, die: int | None = None) -> Unavailable:
        """Why a card, or a die, cannot be used; code 0 where it can."""
        call = "GetDeviceUnavailableReason" if die is None else "GetDieUnavailableReason"
        where = (card,) if die is None else (card, die)
        it = self._struct(call, abi.UnavailableReasonInfo, *where)
        return Unavailable(it.unavailableCode, _string(it.unavailableReason))

    def ecc(self, card: int, die: int | None = None) -> EccErrors:
        name, *where = _of("TotalEccErrors", card, die)
        it = self._struct(f"Get{name}", abi.EccErrorCount, *where)
        return EccErrors(it.sramCE, it.sramUE, it.dramCE, it.dramUE, it.retiredPage)

    def pci_events(self, card: int, kind: int) -> tuple[PciEvent, ...]:
        """The errors of one abi.PciEventType that the card ever had."""
        count = ctypes.c_uint(abi.MAX_PCI_EVENTS)
        found = self._array("GetPciEventInfo", abi.PciEventInfo, count, lambda it: (card, kind, it, count))
        return tuple(
            PciEvent(it.bitNumber, it.count, _string(it.firstTime), _string(it.name)) for it in found
        )

    def mmio_state(self, card: int) -> int:
        """Whether the card's registers answer. MetaX has not published the numbers; 1 is taken for yes."""
        return self._number("GetPciMmioState", card)

    # Topology

    def topology(self, card: int, other: int) -> int:
        """The path between two cards, as abi.TopologyLevel."""
        return self._number("GetDeviceTopology", card, other)

    def metaxlink_remote(self, card: int, link: int, die: int | None = None) -> LinkEnd | None:
        """Who is at the other end of a MetaXLink (0 to abi.METAX_LINKS - 1); None where nobody is."""
        try:
            if die is None:
                it = self._struct("GetMetaXLinkRemoteInfo", abi.MetaXLinkRemoteInfo, card, link)
                return LinkEnd(it.deviceId, _string(it.bdfId))
            it = self._struct("GetDieMetaXLinkRemoteInfo", abi.DieMetaXLinkRemoteInfo, card, die, link)
            return LinkEnd(it.deviceId, _string(it.bdfId), it.dieId)
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
        """Make a slice of so many MiB (a multiple of abi.VRAM_STEP) and percent; returns its number."""
        return self._number("CreateSgpu", card, vram, compute)

    def remove_sgpu(self, card: int, sgpu: int) -> None:
        """Raises MxsmlError BUSY_DEVICE while something uses the slice."""
        self._call("RemoveSgpu", card, sgpu)

    def sgpu_count(self, card: int) -> int:
        """How many slices lie on the card; 0 also where it cannot tell, which another call has to say."""
        return int(self._function("GetSgpuCount")(card))

    def sgpu(self, card: int, sgpu: int) -> Sgpu:
        it = self._struct("GetSgpuInfo", abi.SgpuInfo, card, sgpu)
        return Sgpu(it.parentDeviceId, it.sgpuId, _string(it.uuid), it.minor, it.vramQuota, it.computeQuota)

    def sgpus(self, card: int) -> tuple[Sgpu, ...]:
        """All slices of a card, which are as many as the library counts.

        Numbers have gaps, and what a number without a slice answers differs; so each one is asked for.
        Raises MxsmlError also when fewer answer than are counted.
        """
        found: list[Sgpu] = []
        count, missing = self.sgpu_count(card), None
        if not count:
            self.sgpu_enabled(card)  # which tells an error from none
        for number in range(abi.MAX_SLICES + 1):
            if len(found) == count:
                return tuple(found)
            try:
                found.append(self.sgpu(card, number))
            except MxsmlError as error:
                missing = error
        raise missing or self._error("GetSgpuCount", Code.FAILURE, numbers=[card])

    def sgpu_quota(self, card: int) -> SgpuQuota:
        it = self._struct("GetSgpuAvailableQuota", abi.SgpuAvailableQuota, card)
        return SgpuQuota(it.totalVramQuota, it.vramQuota, it.computeQuota)

    def sched_class(self, card: int) -> int:
        """How the card's slices share its compute, as abi.SchedClass."""
        return self._number("GetDeviceSchedClass", card)

    def set_sched_class(self, card: int, sched_class: int) -> None:
        self._call("SetDeviceSchedClass", card, sched_class)

    def sgpu_alias(self, card: int, sgpu: int) -> str:
        return self._text("GetSgpuAlias", card, sgpu)

    def set_sgpu_alias(self, card: int, sgpu: int, alias: str) -> None:
        """At most abi.ALIAS_SIZE - 1 bytes."""
        self._call("SetSgpuAlias", card, sgpu, alias.encode())

    def sgpu_annotations_id(self, card: int, sgpu: int) -> str:
        """What MetaX's own plugin wrote there; empty where nobody did, and nothing public writes it."""
        return self._text("GetSgpuAnnotationsId", card, sgpu)

    # Events

    def create_event_set(self) -> int:
        """An empty set, named by its handle."""
        handle = abi.EventSet()
        self._call("EventSetCreate", ctypes.byref(handle))
        return handle.value or 0

    def register_events(self, card: int, events: int, types: int = abi.EVENT_EID) -> None:
        """A set takes one card: a second one is INVALID_INPUT."""
        self._call("DeviceRegisterEvents", card, types, events)

    def wait_for_event(self, events: int) -> MxsmlEvent:
        """Wait for ever, without the interpreter's lock: in a thread that may be left behind."""
        it = abi.Event()
        self._call("EventSetWait", events, ctypes.byref(it))
        return MxsmlEvent(it.deviceId, it.type, _string(it.eventData))

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
            raise self._error(name, code, number, [int(it) for it in arguments if isinstance(it, int)])

    def _number(self, name: str, *arguments: Any, kind: type[Any] = ctypes.c_uint) -> int:
        number = kind()
        self._call(name, *arguments, ctypes.byref(number))
        return int(number.value)

    def _struct(self, name: str, kind: type[ctypes.Structure], *arguments: Any) -> Any:
        it = kind()
        self._call(name, *arguments, ctypes.byref(it))
        return it

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
        kind: type[ctypes.Structure],
        count: ctypes.c_uint,
        arguments: Callable[[Any], Sequence[Any]],
    ) -> list[Any]:
        """Fill an array of `count` items; once more with as many as the library asks for."""
        while True:
            room = count.value
            items = (kind * room)()
            try:
                self._call(name, *arguments(items))
            except MxsmlError as error:
                if error.code != Code.INSUFFICIENT_SIZE or not room < count.value <= MAX_TEXT:
                    raise
            else:
                return list(items[: min(count.value, room)])


def _of(name: str, card: int, die: int | None) -> tuple[Any, ...]:
    return (name, card) if die is None else (f"Die{name}", card, die)


def _string(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _ids(it: Any) -> tuple[int, ...]:
    return tuple(it.deviceId[: max(0, min(it.number, abi.VIRTUAL_DEVICES))])


def _identity(card: int, it: Any) -> MxsmlIdentity:
    name = _string(it.deviceName)
    return MxsmlIdentity(card, _string(it.bdfId), _string(it.uuid), name, it.brand, it.mode, it.nodeId)
