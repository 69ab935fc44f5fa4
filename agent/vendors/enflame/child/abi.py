"""The binary interface of libefml.so, in the agent's own declarations.

Sources: go-eflib 1.2.3.5 (EnflameTechnology/gcu-exporter), the header of 2019 and DeepEP's wrapper agree on
these facts. The library has two families of functions, each with its own codes and structures:

- `Efml...`, the index family: a card is an index from 0. Only this family has UUIDs, events, ECC, RMA and
  error records.
- `efml...`, the handle family: a card is a handle. Only this family tells that a card is lost or needs a
  reset.

Releases export different functions, so the backend looks for symbols and never compares versions.
White-label builds have the same functions under other prefixes (`Erml...`, `erml...` in liberml.so); this
module uses Enflame's names. Functions that change a card (resets, modes, clocks) are not declared, so nothing
can call them.

Structures follow the LP64 model. A bool has one byte, an enumeration four.
"""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_char, c_float, c_int, c_uint, c_uint32, c_uint64, c_ulonglong
from enum import IntEnum
from typing import Any

#: The prefixes of the functions in Enflame's builds and in white-label builds.
PREFIXES = ("Efml", "Erml")

#: Bytes that each `char *` must have room for if a function fills it.
TEXT_SIZE = 128
BUS_ID_SIZE = 32
UUID_SIZE = 16
MAX_DEVICES = 128
MAX_PROCESSES = 64
#: Value of DeviceMemoryV2.version: size of the structure, and its version in the top byte.
MEMORY_VERSION = 40 | 2 << 24


class Code(IntEnum):
    """Return codes of the index family."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    LIBRARY_NOT_FOUND = 4
    INVALID_ERROR_CODE = 5
    DRIVER_NOT_LOADED = 6
    LARE_PORT_NUMBER = 7
    INVALID_INPUT = 8
    FUNCTION_NOT_FOUND = 9
    OPEN_DRIVER_VERSION = 10
    DRIVER_NOT_COMPATIBLE = 11
    NO_DEVICE = 12
    DEPRECATION = 13
    TIMEOUT = 253
    FAIL = 254


class HandleCode(IntEnum):
    """Return codes of the handle family. The same numbers mean other things than in `Code`."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GCU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGCU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQUENCY_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GCU_NOT_FOUND = 28
    INVALID_STATE = 29
    UNKNOWN = 999


class EventType(IntEnum):
    UNKNOWN = 0
    SUSPEND = 3
    RESET_START = 10
    RESET_FINISH = 11
    EID = 20


class VirtMode(IntEnum):
    """The virtualisation mode of a device. EFML knows nothing of DRS, Enflame's slices."""

    HOST = 0
    VGCU = 1
    MDEV = 2
    SRIOV_PF = 3
    SRIOV_VF = 4


class ClockType(IntEnum):
    """Clocks of the handle family, in MHz; SIP are the compute units."""

    SIP = 1
    MEMORY = 2


class PowerMode(IntEnum):
    ACTIVE = 1
    SUSPEND = 5
    SLEEP = 7


class ResetType(IntEnum):
    NONE = 0
    HOT = 1
    FLR = 2
    BLR = 3
    QLR = 4


class ResetSource(IntEnum):
    """The cause of an error, as an error record tells it."""

    USER = 0
    INTERNAL = 1
    SIP = 2
    BUS = 3
    FIRMWARE = 4
    DTE = 5
    DRAM_HBM = 6
    PCIE = 7
    UNKNOWN = 999


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("name", c_char * TEXT_SIZE),
        ("vendorId", c_uint32),
        ("deviceId", c_uint32),
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("device", c_uint32),
        ("function", c_uint32),
        ("logicId", c_uint32),
    ]


class MemInfo(ctypes.Structure):
    """`total` in bytes, `used` in MiB (go-eflib's device.go multiplies it by 1048576)."""

    _fields_ = [("total", c_uint64), ("used", c_uint32)]


class Event(ctypes.Structure):
    _fields_ = [("id", c_uint32), ("type", c_int), ("message", c_char * TEXT_SIZE)]


class EccStatus(ctypes.Structure):
    _fields_ = [
        ("enabled", c_bool),
        ("pending", c_bool),
        ("blacklistPending", c_bool),
        ("singleBit", c_uint32),
        ("doubleBit", c_uint32),
    ]


class RmaStatus(ctypes.Structure):
    _fields_ = [("supported", c_bool), ("flag", c_bool)]


class RmaDetails(ctypes.Structure):
    _fields_ = [("supported", c_bool), ("flag", c_bool), ("doubleBit", c_uint32)]


class Power(ctypes.Structure):
    """Power of a card in watts, from EfmlGetDevPwr."""

    _fields_ = [("capability", c_float), ("current", c_float)]


class Thermal(ctypes.Structure):
    """Degrees Celsius. With EfmlGetDevTemp, the older function, `memory` and `board` are two HBM stacks."""

    _fields_ = [("asic", c_float), ("memory", c_float), ("board", c_float)]


class LinkInfo(ctypes.Structure):
    """A PCIe link or a LARE port: `speed` is the generation, `width` the number of lanes."""

    _fields_ = [("speed", c_int), ("maxSpeed", c_int), ("width", c_int), ("maxWidth", c_int)]


class LarePortInfo(ctypes.Structure):
    _fields_ = [
        ("connected", c_uint32),
        ("uuid", c_char * UUID_SIZE),
        ("vendorId", c_uint32),
        ("deviceId", c_uint32),
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("device", c_uint32),
        ("function", c_uint32),
        ("port", c_uint32),
        ("portType", c_int),
        ("remoteCard", c_uint32),
        ("remoteUuid", c_char * UUID_SIZE),
        ("remoteVendorId", c_uint32),
        ("remoteDeviceId", c_uint32),
        ("remoteDomain", c_uint32),
        ("remoteBus", c_uint32),
        ("remoteDevice", c_uint32),
        ("remoteFunction", c_uint32),
        ("remotePort", c_uint32),
        ("remotePortType", c_int),
    ]


class ProcessInfo(ctypes.Structure):
    """Memory of the device and of the system. The unit is unknown: go-eflib does not convert the numbers.

    The function fills an array of MAX_PROCESSES, and sets the count without reading it: go-eflib passes 0.
    """

    _fields_ = [("pid", c_uint32), ("deviceMemory", c_uint64), ("systemMemory", c_uint64)]


class ErrorRecord(ctypes.Structure):
    _fields_ = [
        ("eventId", c_ulonglong),
        ("resetType", c_int),
        ("source", c_int),
        ("time", c_ulonglong),
        ("bdf", c_uint),
    ]


class DeviceMemory(ctypes.Structure):
    """Memory of a card in bytes."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class DeviceMemoryV2(ctypes.Structure):
    """Memory of a card in bytes. The caller sets `version` to MEMORY_VERSION."""

    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
        ("reserved", c_ulonglong),
    ]


class PciInfo(ctypes.Structure):
    """`pciDeviceId` has PCI's device id in the upper 16 bits and the vendor id in the lower 16 bits."""

    _fields_ = [
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("function", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * BUS_ID_SIZE),
    ]


class Utilization(ctypes.Structure):
    """Load of a card in percent."""

    _fields_ = [("gcu", c_uint), ("memory", c_uint)]


class RunningProcess(ctypes.Structure):
    """A process of the handle family, with memory in bytes. The ids of instances are always 0xFFFFFFFF."""

    _fields_ = [
        ("pid", c_uint),
        ("usedMemory", c_ulonglong),
        ("gcuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class UtilizationSample(ctypes.Structure):
    """Load of a card by one process, in percent, at a time in microseconds. `sip` are the compute units."""

    _fields_ = [
        ("pid", c_uint),
        ("time", c_ulonglong),
        ("sip", c_uint),
        ("memory", c_uint),
        ("encoder", c_uint),
        ("decoder", c_uint),
    ]


#: A card's handle.
Handle = ctypes.c_void_p


def _out(kind: type[Any]) -> type[Any]:
    return ctypes.POINTER(kind)


_CARD = (c_uint32,)
_TEXT = (ctypes.c_char_p,)
_NUMBER = _out(c_uint32)
_SIGNED = _out(c_int)
_FLAG = _out(c_bool)
_PERCENT = _out(c_float)
_PORT = (c_uint32, c_uint32)
_HANDLE = (Handle,)

#: The arguments of each function that the backend calls, by Enflame's name of the function.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "EfmlInit": (c_bool,),
    "EfmlShutdown": (),
    "EfmlErrorString": (c_int, *_TEXT),
    "EfmlGetDriverVer": _TEXT,
    "EfmlGetLibVer": _TEXT,
    "EfmlGetDriverAccessPoint": _TEXT,
    "EfmlGetDevCount": (_NUMBER,),
    "EfmlGetDevInfo": (*_CARD, _out(DeviceInfo)),
    "EfmlGetDevUuid": (*_CARD, *_TEXT),
    "EfmlGetDevSn": (*_CARD, *_TEXT),
    "EfmlGetDevPn": (*_CARD, *_TEXT),
    "EfmlGetDevSKU": (*_CARD, *_TEXT),
    "EfmlGetDevSlotOamName": (*_CARD, *_TEXT),
    "EfmlGetFwVersion": (*_CARD, *_TEXT),
    "EfmlGetHwArchName": (*_CARD, *_TEXT),
    "EfmlGetDevLogicId": (*_CARD, _NUMBER),
    "EfmlGetNumaNode": (*_CARD, _SIGNED),
    "EfmlGetGcuVirtStatus": (*_CARD, _SIGNED),
    "EfmlGetDevMem": (*_CARD, _out(MemInfo)),
    "EfmlGetDevDtuUsage": (*_CARD, _PERCENT),
    "EfmlGetDevDtuUsageAsync": (*_CARD, _PERCENT),
    "EfmlGetProcessInfo": (*_CARD, _NUMBER, _out(ProcessInfo)),
    "EfmlGetDevPwr": (*_CARD, _out(Power)),
    "EfmlGetMemClk": (*_CARD, _NUMBER),
    "EfmlGetDevTempV2": (*_CARD, _out(Thermal)),
    "EfmlGetDevTemp": (*_CARD, _out(Thermal)),
    "EfmlGetPowerMode": (*_CARD, _SIGNED),
    "EfmlGetDevHealth": (*_CARD, _FLAG),
    "EfmlGetDevIsHealth": (*_CARD, _FLAG),
    "EfmlGetDevEccStatus": (*_CARD, _out(EccStatus)),
    "EfmlGetDevRmaStatus": (*_CARD, _out(RmaStatus)),
    "EfmlGetDevRmaDetails": (*_CARD, _out(RmaDetails)),
    "EfmlGetErrorRecords": (*_CARD, c_uint32, _out(ErrorRecord), _NUMBER),
    "EfmlGetPcieLinkInfo": (*_CARD, _out(LinkInfo)),
    "EfmlGetEvent": (c_int, _out(Event)),
    "EfmlGetEventV2": (*_CARD, _out(Event)),
    "EfmlGetGcuLarePortNum": (*_CARD, _NUMBER),
    "EfmlGetEslPortNum": (*_CARD, _NUMBER),
    "EfmlGetGcuLarePortInfo": (*_PORT, _out(LarePortInfo)),
    "EfmlGetEslPortInfo": (*_PORT, _out(LarePortInfo)),
    "efmlInit_v2": (),
    "efmlInit": (),
    "efmlShutdown": (),
    "efmlErrorString": (c_int,),
    "efmlDeviceGetCount_v2": (_NUMBER,),
    "efmlDeviceGetCount": (_NUMBER,),
    "efmlDeviceGetHandleByIndex_v2": (*_CARD, _out(Handle)),
    "efmlDeviceGetHandleByIndex": (*_CARD, _out(Handle)),
    "efmlDeviceGetHandleByPciBusId_v2": (ctypes.c_char_p, _out(Handle)),
    "efmlDeviceGetHandleByPciBusId": (ctypes.c_char_p, _out(Handle)),
    "efmlDeviceGetName": (*_HANDLE, ctypes.c_char_p, c_uint),
    "efmlDeviceGetPciInfo_v3": (*_HANDLE, _out(PciInfo)),
    "efmlDeviceGetMemoryInfo_v2": (*_HANDLE, _out(DeviceMemoryV2)),
    "efmlDeviceGetMemoryInfo": (*_HANDLE, _out(DeviceMemory)),
    "efmlDeviceGetUtilizationRates": (*_HANDLE, _out(Utilization)),
    "efmlDeviceGetTemperature": (*_HANDLE, c_int, _SIGNED),
    "efmlDeviceGetPowerUsage": (*_HANDLE, _NUMBER),
    "efmlDeviceGetEnforcedPowerLimit": (*_HANDLE, _NUMBER),
    "efmlDeviceGetClockInfo": (*_HANDLE, c_int, _NUMBER),
    "efmlDeviceGetComputeRunningProcesses_v3": (*_HANDLE, _NUMBER, _out(RunningProcess)),
    "efmlDeviceGetProcessUtilization": (*_HANDLE, _out(UtilizationSample), _NUMBER, c_ulonglong),
    "efmlDeviceGetCurrPcieLinkWidth": (*_HANDLE, _NUMBER),
    "efmlDeviceGetMaxPcieLinkWidth": (*_HANDLE, _NUMBER),
}
#: The result types of functions that return no code.
RESULTS: dict[str, Any] = {"EfmlShutdown": None, "efmlErrorString": ctypes.c_char_p}


def named(symbol: str, prefix: str) -> str:
    """The symbol of a function in a build with this prefix: with Erml, efmlInit is ermlInit."""
    own = prefix if symbol[0].isupper() else prefix[0].lower() + prefix[1:]
    return own + symbol[len(PREFIXES[0]) :]


def by_index(symbol: str) -> bool:
    """Whether a function belongs to the index family, and not to the handle family."""
    return symbol[0].isupper()
