"""The binary interface of libmxsml.so, in the agent's own declarations.

Sources: independent ports of MXSML 2.3.1 agree on these facts (ghangz/go-mxsml, youyousi/go-mxsml,
ccfos/huatuo, gpustack/runtime). The licence of the vendor's header forbids to copy it. Libraries of the same
version export different functions, so the backend looks for symbols and never compares versions.

Structures follow the LP64 model. Units are the library's: memory in KiB, quotas of slices in MiB, memory of
processes and of slices in bytes.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int, c_long, c_uint, c_ulong, c_ulonglong
from enum import IntEnum
from typing import Any

PREFIX = "mxSml"

BDF_SIZE = 32
UUID_SIZE = 96
DEVICE_NAME_SIZE = 32
VIRTUAL_DEVICES = 128
METAX_LINKS = 7
MAX_SLICES = 16
ALIAS_SIZE = 32
ANNOTATIONS_ID_SIZE = 96
REASON_SIZE = 64
VERSION_SIZE = 64
MAX_PCI_EVENTS = 32
EVENT_TIME_SIZE = 20
EVENT_NAME_SIZE = 64
EVENT_DATA_SIZE = 1024
MAX_DIES = 2
PROCESS_NAME_SIZE = 64
#: Entries of a process for the cards and dies that the process uses.
PROCESS_GPUS = 64
#: The header's limit of clocks of one engine; a card of C-class has three ways of power.
CLOCKS, POWER_WAYS = 9, 3
#: `sgpuId` of a process that uses no slice.
NO_SLICE = -1

#: Index of the first physical function on a virtualised host. Other devices count from 0.
FIRST_PF = 100
#: Flag of InitWithFlags: enumerate the devices again.
REINIT = 1
#: Type of DeviceRegisterEvents: an error with a number (EID) of the driver.
EVENT_EID = 0x1
#: The memory of a slice is a multiple of this, in MiB.
VRAM_STEP = 128


class Code(IntEnum):
    """Return codes of MXSML's functions."""

    SUCCESS = 0
    FAILURE = 1
    NO_DEVICE = 2
    OPERATION_NOT_SUPPORT = 3
    SYSFS_ERROR = 4
    SYSFS_WRITE_ERROR = 5
    INVALID_DEVICE_ID = 6
    INVALID_DIE_ID = 7
    PERMISSION_DENIED = 8
    INVALID_INPUT = 9
    INSUFFICIENT_SIZE = 10
    IO_CONTROL_FAILURE = 12
    MMAP_FAILURE = 13
    UNMMAP_FAILURE = 14
    INVALID_INPUT_FOR_MMAP = 15
    TARGET_VF_NOT_FOUND = 18
    INVALID_FREQUENCY = 19
    FLR_NOT_READY = 20
    OPEN_DEVICE_FILE_FAILURE = 21
    CLOSE_DEVICE_FILE_FAILURE = 22
    BUSY_DEVICE = 23
    MMIO_NOT_ENOUGH = 24
    GET_PCI_BRIDGE_FAILURE = 25
    LOAD_DLL_FAILURE = 26
    #: Not a code of the library: this build does not export the function.
    FUNCTION_NOT_FOUND = 999


#: Texts of codes, for builds of the library without texts.
TEXTS: dict[int, str] = {
    Code.FAILURE: "failure",
    Code.NO_DEVICE: "no device",
    Code.OPERATION_NOT_SUPPORT: "operation not supported",
    Code.SYSFS_ERROR: "sysfs cannot be read",
    Code.SYSFS_WRITE_ERROR: "sysfs cannot be written",
    Code.INVALID_DEVICE_ID: "no card has this index",
    Code.INVALID_DIE_ID: "the card has no such die",
    Code.PERMISSION_DENIED: "permission denied",
    Code.INVALID_INPUT: "invalid input",
    Code.INSUFFICIENT_SIZE: "the answer does not fit",
    Code.TARGET_VF_NOT_FOUND: "no such virtual function",
    Code.OPEN_DEVICE_FILE_FAILURE: "the device's file cannot be opened",
    Code.BUSY_DEVICE: "busy",
    Code.LOAD_DLL_FAILURE: "a library of the driver cannot be loaded",
    Code.FUNCTION_NOT_FOUND: "this library has no such function",
}


class Brand(IntEnum):
    UNKNOWN = 0
    N = 1
    C = 2
    G = 3


class VirtMode(IntEnum):
    """What a device is: a card on bare metal, a physical function of a virtualised card, or a virtual one."""

    NONE = 0
    PF = 1
    VF = 2


class TopologyLevel(IntEnum):
    """The path between two cards. In older libraries UNDEFINED is 7."""

    INTERNAL = 0
    SINGLE = 1
    MULTIPLE = 2
    HOST_BRIDGE = 3
    NODE = 4
    METAX_LINK = 5
    SYSTEM = 6
    ETH = 7
    UNDEFINED = 8


class PciEventType(IntEnum):
    AER_UE = 0
    AER_CE = 1
    SYNFLD = 2
    DBE = 3
    MMIO = 4


class SchedClass(IntEnum):
    """How the slices of a card share its compute: no limit, a hard limit, or a guaranteed part."""

    BEST_EFFORT = 0
    FIXED_SHARE = 1
    BURST_SHARE = 2


class UsageIp(IntEnum):
    DLA = 0
    VPUE = 1
    VPUD = 2
    G2D = 3
    XCORE = 4


class ClockIp(IntEnum):
    """Engines with a clock, in cards of C-class."""

    MC0 = 3
    XCORE = 11


class TemperatureSensor(IntEnum):
    """Sensors of the chip; HBM is valid for some cards only."""

    HOTSPOT = 0
    HBM = 15


class VersionUnit(IntEnum):
    BIOS = 0
    DRIVER = 1


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("deviceId", c_uint),
        ("type", c_uint),
        ("bdfId", c_char * BDF_SIZE),
        ("gpuId", c_uint),
        ("nodeId", c_uint),
        ("uuid", c_char * UUID_SIZE),
        ("brand", c_uint),
        ("mode", c_uint),
        ("deviceName", c_char * DEVICE_NAME_SIZE),
    ]


class DeviceIds(ctypes.Structure):
    """The result of GetVirtualDevicesByPhysicalId and of GetAllLimitedDevices."""

    _fields_ = [("number", c_int), ("deviceId", c_int * VIRTUAL_DEVICES)]


class MemoryInfo(ctypes.Structure):
    """Memory of a card in KiB, from GetMemoryInfo."""

    _fields_ = [
        ("visVramTotal", c_long),
        ("visVramUse", c_long),
        ("vramTotal", c_long),
        ("vramUse", c_long),
        ("xttTotal", c_long),
        ("xttUse", c_long),
    ]


class UnavailableReasonInfo(ctypes.Structure):
    _fields_ = [("unavailableCode", c_int), ("unavailableReason", c_char * REASON_SIZE)]


class EccErrorCount(ctypes.Structure):
    _fields_ = [
        ("sramCE", c_uint),
        ("sramUE", c_uint),
        ("dramCE", c_uint),
        ("dramUE", c_uint),
        ("retiredPage", c_uint),
    ]


class PciEventInfo(ctypes.Structure):
    _fields_ = [
        ("bitNumber", c_int),
        ("count", c_int),
        ("firstTime", c_char * EVENT_TIME_SIZE),
        ("name", c_char * EVENT_NAME_SIZE),
    ]


class MetaXLinkRemoteInfo(ctypes.Structure):
    _fields_ = [("deviceId", c_int), ("bdfId", c_char * BDF_SIZE)]


class DieMetaXLinkRemoteInfo(ctypes.Structure):
    _fields_ = [("deviceId", c_int), ("bdfId", c_char * BDF_SIZE), ("dieId", c_uint)]


class SgpuInfo(ctypes.Structure):
    """The amounts of a slice: `vramQuota` in MiB, `computeQuota` in percent."""

    _fields_ = [
        ("parentDeviceId", c_uint),
        ("sgpuId", c_uint),
        ("vramQuota", c_uint),
        ("swQueuePriority", c_uint),
        ("computeQuota", c_uint),
        ("minor", c_uint),
        ("deviceQueuePriority", c_uint),
        ("uuid", c_char * UUID_SIZE),
    ]


class SgpuAvailableQuota(ctypes.Structure):
    """Memory for slices of a card in MiB, and what is free: memory in MiB, compute in percent."""

    _fields_ = [("totalVramQuota", c_uint), ("vramQuota", c_uint), ("computeQuota", c_uint)]


class SgpuMemoryInfo(ctypes.Structure):
    """Memory of a slice in bytes."""

    _fields_ = [("total", c_long), ("used", c_long), ("free", c_long)]


class BoardPower(ctypes.Structure):
    """One way by which a board gets power, in mV, mA and mW. The card's power is that of all ways."""

    _fields_ = [("voltage", c_uint), ("current", c_uint), ("power", c_uint)]


class ProcessGpu(ctypes.Structure):
    """What a process uses of one card, `gpuMemoryUsage` in bytes."""

    _fields_ = [("bdfId", c_char * BDF_SIZE), ("gpuId", c_uint), ("gpuMemoryUsage", c_ulong)]


class ProcessGpuV2(ctypes.Structure):
    """As ProcessGpu, of one die."""

    _fields_ = [*ProcessGpu._fields_, ("dieId", c_uint)]


class ProcessGpuV3(ctypes.Structure):
    """As ProcessGpuV2, with the number of the slice; NO_SLICE without one."""

    _fields_ = [*ProcessGpuV2._fields_, ("sgpuId", c_int)]


def _process(gpu: type[ctypes.Structure]) -> list[Any]:
    name = c_char * PROCESS_NAME_SIZE
    return [("processId", c_uint), ("processName", name), ("gpuNumber", c_uint), ("gpus", gpu * PROCESS_GPUS)]


class ProcessInfo(ctypes.Structure):
    """A process, and the cards that it uses: the first `gpuNumber` of `gpus`."""

    _fields_ = _process(ProcessGpu)


class ProcessInfoV2(ctypes.Structure):
    _fields_ = _process(ProcessGpuV2)


class ProcessInfoV3(ctypes.Structure):
    _fields_ = _process(ProcessGpuV3)


class Event(ctypes.Structure):
    _fields_ = [("deviceId", c_int), ("type", c_int), ("eventData", c_char * EVENT_DATA_SIZE)]


#: An event set's handle.
EventSet = ctypes.c_void_p


def _out(kind: type[Any]) -> type[Any]:
    return ctypes.POINTER(kind)


_CARD = (c_uint,)
_NUMBER = _out(c_uint)
_SIGNED = _out(c_int)
_TEXT = (ctypes.c_char_p, _NUMBER)
_SLICE = (c_uint, c_uint)

#: The arguments of each function that the backend calls, by the function's name without the prefix.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Init": (),
    "InitWithFlags": (c_uint,),
    "GetErrorString": (c_uint,),
    "GetDeviceCount": (),
    "GetPfDeviceCount": (),
    "GetDeviceInfo": (*_CARD, _out(DeviceInfo)),
    "GetVirtualDevicesByPhysicalId": (*_CARD, _out(DeviceIds)),
    "GetAllLimitedDevices": (_out(DeviceIds),),
    "GetLimitedDeviceInfo": (*_CARD, _out(DeviceInfo)),
    "GetDeviceDieCount": (*_CARD, _NUMBER),
    "GetMacaVersion": _TEXT,
    "GetDeviceVersion": (*_CARD, c_uint, *_TEXT),
    "GetMemoryInfo": (*_CARD, _out(MemoryInfo)),
    "GetDieMemoryInfo": (*_CARD, c_uint, _out(MemoryInfo)),
    "GetDeviceIpUsage": (*_CARD, c_uint, _SIGNED),
    "GetDieIpUsage": (*_CARD, c_uint, c_uint, _SIGNED),
    "GetTemperatureInfo": (*_CARD, c_uint, _SIGNED),
    "GetDieTemperatureInfo": (*_CARD, c_uint, c_uint, _SIGNED),
    "GetBoardPowerInfo": (*_CARD, _NUMBER, _out(BoardPower)),
    "GetClocks": (*_CARD, c_uint, _NUMBER, _NUMBER),
    "GetSingleGpuProcess": (*_CARD, _NUMBER, _out(ProcessInfo)),
    "GetSingleGpuProcess_v2": (*_CARD, _NUMBER, _out(ProcessInfoV2)),
    "GetSingleGpuProcess_v3": (*_CARD, _NUMBER, _out(ProcessInfoV3)),
    "GetDeviceState": (*_CARD, _SIGNED),
    "GetDeviceUnavailableReason": (*_CARD, _out(UnavailableReasonInfo)),
    "GetDieUnavailableReason": (*_CARD, c_uint, _out(UnavailableReasonInfo)),
    "GetTotalEccErrors": (*_CARD, _out(EccErrorCount)),
    "GetDieTotalEccErrors": (*_CARD, c_uint, _out(EccErrorCount)),
    "GetPciMmioState": (*_CARD, _NUMBER),
    "GetPciEventInfo": (*_CARD, c_uint, _out(PciEventInfo), _NUMBER),
    "GetDeviceTopology": (c_uint, c_uint, _NUMBER),
    "GetMetaXLinkRemoteInfo": (*_CARD, c_uint, _out(MetaXLinkRemoteInfo)),
    "GetDieMetaXLinkRemoteInfo": (*_CARD, c_uint, c_uint, _out(DieMetaXLinkRemoteInfo)),
    "GetSgpuToggle": (*_CARD, _NUMBER),
    "SetSgpuToggle": (*_CARD, c_uint),
    "CreateSgpu": (*_CARD, c_uint, c_uint, _NUMBER),
    "RemoveSgpu": _SLICE,
    "GetSgpuCount": _CARD,
    "GetSgpuInfo": (*_SLICE, _out(SgpuInfo)),
    "GetSgpuAvailableQuota": (*_CARD, _out(SgpuAvailableQuota)),
    "GetDeviceSchedClass": (*_CARD, _NUMBER),
    "SetDeviceSchedClass": (*_CARD, c_uint),
    "GetSgpuAlias": (*_SLICE, *_TEXT),
    "SetSgpuAlias": (*_SLICE, ctypes.c_char_p),
    "GetSgpuAnnotationsId": (*_SLICE, *_TEXT),
    "GetSgpuUsage": (*_SLICE, _SIGNED),
    "GetSgpuMemory": (*_SLICE, _out(SgpuMemoryInfo)),
    "EventSetCreate": (_out(EventSet),),
    "DeviceRegisterEvents": (*_CARD, c_ulonglong, EventSet),
    "EventSetWait": (EventSet, _out(Event)),
    "EventSetFree": (EventSet,),
}
#: The result types of functions that return no code.
RESULTS: dict[str, Any] = {"GetErrorString": ctypes.c_char_p}
