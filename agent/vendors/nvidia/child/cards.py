"""Reads one card through NVML."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent.vendor_api.backend import Device, Fault
from agent.vendors.nvidia import constants

from . import faults
from . import sysfs as pci

T = TypeVar("T")

BUS_ID = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)


@dataclass(frozen=True, slots=True)
class NvidiaCard:
    """A device and the handle that NVML knows it by."""

    device: Device
    handle: Any
    #: Its MIG devices.
    slices: tuple[Device, ...] = ()

    @property
    def uuid(self) -> str:
        return self.device.uuid

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its own, and those of its MIG devices."""
        return (self.uuid, *(device.uuid for device in self.slices))

    @property
    def address(self) -> int | None:
        """What NVML's events carry; equal for equal cards within one session."""
        return address(self.handle)


def address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


@dataclass(slots=True)
class NvidiaReading:
    """One look at a card. The first error that means something is kept; the rest is read all the same."""

    nvml: Any
    handle: Any
    fault: Fault | None = None
    _says_nothing: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        nvml = self.nvml
        self._says_nothing = frozenset(
            {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION}
        )

    def get(self, name: str, default: T) -> Any | T:
        """Call one of NVML's getters; `default` where it has no answer."""
        return self.attempt(lambda: getattr(self.nvml, name)(self.handle), default)

    def attempt(self, call: Callable[[], Any], default: T) -> Any | T:
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value not in self._says_nothing:
                self.fault = self.fault or faults.reading(self.nvml, error)
        except UnicodeDecodeError as error:  # what a broken card calls itself need not be text
            self.fault = self.fault or faults.unreadable(error)
        return default


def read(nvml: Any, handle: Any, index: int, sysfs: Path, node: Mapping[str, str], *, advice: bool) -> Device:
    """Read a card. Without a readable UUID the device's `uuid` is empty.

    `node` are attributes that all cards have. With `advice` a recovery action that the driver asks for is a
    fault.
    """
    look = NvidiaReading(nvml, handle)
    uuid: str = look.get("nvmlDeviceGetUUID", "")
    info = look.get("nvmlDeviceGetPciInfo", None)
    address = bdf(info) if info else None
    minor: int | None = look.get("nvmlDeviceGetMinorNumber", None)
    memory = look.get("nvmlDeviceGetMemoryInfo", None)
    own = _capability(look)
    action = look.attempt(lambda: faults.recovery_action(nvml, handle), None)
    own |= _bus(info, address, sysfs) | _mig(look) | _fabric(nvml, handle)
    return Device(
        uuid=uuid,
        index=index,
        minor=minor,
        pci=address,
        numa=pci.numa_node(sysfs, address) if address else None,
        memory=int(memory.total) if memory else 0,
        model=look.get("nvmlDeviceGetName", ""),
        paths=() if minor is None else (f"/dev/nvidia{minor}",),
        attributes={**node, **own},
        counters=_counters(look),
        recovery_due=faults.recovery_due(look.fault, action),
        fault=look.fault or (faults.recovery(action) if action and advice else None),
    )


def _counters(look: NvidiaReading) -> dict[str, int]:
    """The energy since the driver was loaded, in mJ (nvml.h; cards since Volta)."""
    energy = look.get("nvmlDeviceGetTotalEnergyConsumption", None)
    return {} if energy is None else {"energy-mj": int(energy)}


def _capability(look: NvidiaReading) -> dict[str, str]:
    version = look.get("nvmlDeviceGetCudaComputeCapability", None)
    return {constants.COMPUTE_CAPABILITY: "{}.{}".format(*version)} if version else {}


def _bus(info: Any, address: str | None, sysfs: Path) -> dict[str, str]:
    """What the card is on the PCI bus: what NVML says of it, and what sysfs has at its address."""
    found = {constants.PCI_DEVICE_ID: f"0x{info.pciDeviceId:08x}"} if info else {}
    return (found | pci.attributes(sysfs, address)) if address else found


def _mig(look: NvidiaReading) -> dict[str, str]:
    """Whether the card can be in MIG mode, and is; nothing where it cannot be read."""
    mode = look.get("nvmlDeviceGetMigMode", None)
    if mode is None:
        return {} if look.fault else {constants.MIG_CAPABLE: constants.NO}
    enabled = mode[0] == look.nvml.NVML_DEVICE_MIG_ENABLE
    return {
        constants.MIG_CAPABLE: constants.YES,
        constants.MIG_MODE: constants.MIG_ON if enabled else constants.MIG_OFF,
    }


def _fabric(nvml: Any, handle: Any) -> dict[str, str]:
    """The GPU fabric that the card is attached to; that nothing tells of one is no fault."""
    try:
        info = _fabric_info(nvml, handle)
    except nvml.NVMLError:
        return {}
    cluster = bytes(info.clusterUuid).hex()
    if info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status or not cluster.strip("0"):
        return {}
    uuid = "-".join((cluster[:8], cluster[8:12], cluster[12:16], cluster[16:20], cluster[20:]))
    return {constants.FABRIC: f"{uuid}.{info.cliqueId}"}


def _fabric_info(nvml: Any, handle: Any) -> Any:
    """Ask as drivers before R550 are asked only where the other way is missing."""
    try:
        info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except nvml.NVMLError_FunctionNotFound:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return info


def driver_attributes(nvml: Any) -> dict[str, str]:
    """What is the same for all cards of the session."""
    found = {}
    with suppress(nvml.NVMLError):  # says nothing of the cards
        found[constants.DRIVER_VERSION] = nvml.nvmlSystemGetDriverVersion()
    with suppress(nvml.NVMLError):
        cuda = _cuda_version(nvml)
        found[constants.CUDA_VERSION] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return found


def _cuda_version(nvml: Any) -> int:
    """Of the driver's libcuda, where the loader finds it; else what NVML's own driver serves.

    In a container that has the driver's root mounted, and nothing of it where loaders look, it finds none.
    """
    try:
        return int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return int(nvml.nvmlSystemGetCudaDriverVersion())


def bdf(info: Any) -> str | None:
    """The kernel's spelling of NVML's bus id: 00000000:3B:00.0 is 0000:3b:00.0.

    None where it is none: it becomes part of a path, and one card's nonsense must not hide the others.
    """
    try:
        found = BUS_ID.fullmatch(info.busId.lower())
    except UnicodeDecodeError:  # of pynvml, which decodes with each access
        return None
    return f"{int(found['domain'], 16):04x}:{found['rest']}" if found else None
