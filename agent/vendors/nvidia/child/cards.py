"""Reads one card through NVML and sysfs."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent.vendor_api.backend import Device, Fault
from agent.vendors.nvidia.shared import constants

from . import faults
from . import sysfs as pci

T = TypeVar("T")

BUS_ID = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)


@dataclass(frozen=True, slots=True)
class NvidiaCard:
    """A device, and NVML's handle of it."""

    device: Device
    handle: Any
    #: Its MIG devices.
    slices: tuple[Device, ...] = ()

    @property
    def uuid(self) -> str:
        return self.device.uuid

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of the card and of its MIG devices."""
        return (self.uuid, *(device.uuid for device in self.slices))

    @property
    def address(self) -> int | None:
        """The address in NVML's handle, which events have, too. It stays the same within one session."""
        return address(self.handle)


def address(handle: Any) -> int | None:
    """The address behind a handle of NVML, by which two handles of one card are equal."""
    return ctypes.cast(handle, ctypes.c_void_p).value


@dataclass(slots=True)
class NvidiaReading:
    """One reading of a card by several calls. The first real error becomes the fault; the calls go on."""

    nvml: Any
    handle: Any
    fault: Fault | None = None
    _unsupported: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        nvml = self.nvml
        self._unsupported = frozenset(
            {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION}
        )

    def get(self, name: str, default: T, *arguments: Any) -> Any | T:
        """The result of one of NVML's getters, or `default` if the call fails."""
        return self.attempt(lambda: getattr(self.nvml, name)(self.handle, *arguments), default)

    def attempt(self, call: Callable[[], Any], default: T) -> Any | T:
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value not in self._unsupported:
                self.fault = self.fault or faults.reading(self.nvml, error)
        except UnicodeDecodeError as error:  # a broken card may have bytes that are no text
            self.fault = self.fault or faults.unreadable(error)
        return default


def read(nvml: Any, handle: Any, index: int, sysfs: Path, node: Mapping[str, str], *, advice: bool) -> Device:
    """Read a card. If the UUID is not readable, the device has an empty `uuid`.

    `node` are attributes of all cards. With `advice` a recovery action of the driver is a fault.
    """
    reading = NvidiaReading(nvml, handle)
    uuid: str = reading.get("nvmlDeviceGetUUID", "")
    info = reading.get("nvmlDeviceGetPciInfo", None)
    address = bdf(info) if info else None
    minor: int | None = reading.get("nvmlDeviceGetMinorNumber", None)
    memory = reading.get("nvmlDeviceGetMemoryInfo", None)
    own = _capability(reading)
    action = reading.attempt(lambda: faults.recovery_action(nvml, handle), None)
    own |= _bus(info, address, sysfs) | _mig(reading) | _fabric(nvml, handle)
    return Device(
        uuid=uuid,
        index=index,
        minor=minor,
        pci=address,
        numa=pci.numa_node(sysfs, address) if address else None,
        memory=int(memory.total) if memory else 0,
        model=reading.get("nvmlDeviceGetName", ""),
        paths=() if minor is None else (f"/dev/nvidia{minor}",),
        attributes={**node, **own},
        counters=_counters(reading),
        recovery_due=faults.recovery_due(reading.fault, action),
        fault=reading.fault or (faults.recovery(action) if action and advice else None),
    )


def _counters(reading: NvidiaReading) -> dict[str, int]:
    """The energy in mJ since the driver was loaded (nvml.h; cards since Volta)."""
    energy = reading.get("nvmlDeviceGetTotalEnergyConsumption", None)
    return {} if energy is None else {"energy-mj": int(energy)}


def _capability(reading: NvidiaReading) -> dict[str, str]:
    version = reading.get("nvmlDeviceGetCudaComputeCapability", None)
    return {constants.COMPUTE_CAPABILITY: "{}.{}".format(*version)} if version else {}


def _bus(info: Any, address: str | None, sysfs: Path) -> dict[str, str]:
    """Attributes of the PCI device: its id from NVML, and the others from sysfs."""
    found = {constants.PCI_DEVICE_ID: f"0x{info.pciDeviceId:08x}"} if info else {}
    return (found | pci.attributes(sysfs, address)) if address else found


def _mig(reading: NvidiaReading) -> dict[str, str]:
    """Whether the card supports MIG, and has MIG mode on. Empty if the card cannot be read."""
    mode = reading.get("nvmlDeviceGetMigMode", None)
    if mode is None:
        return {} if reading.fault else {constants.MIG_CAPABLE: constants.NO}
    enabled = mode[0] == reading.nvml.NVML_DEVICE_MIG_ENABLE
    return {
        constants.MIG_CAPABLE: constants.YES,
        constants.MIG_MODE: constants.MIG_ON if enabled else constants.MIG_OFF,
    }


def _fabric(nvml: Any, handle: Any) -> dict[str, str]:
    """The GPU fabric of the card, as cluster UUID and clique. Empty without a fabric, which is no fault."""
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
    """Call the versioned function, or the older one for drivers before R550."""
    try:
        info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except nvml.NVMLError_FunctionNotFound:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return info


def driver_attributes(nvml: Any) -> dict[str, str]:
    """Attributes that are the same for all cards: versions of driver and CUDA."""
    found = {}
    with suppress(nvml.NVMLError):  # no version is no fault of a card
        found[constants.DRIVER_VERSION] = nvml.nvmlSystemGetDriverVersion()
    with suppress(nvml.NVMLError):
        cuda = _cuda_version(nvml)
        found[constants.CUDA_VERSION] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    return found


def _cuda_version(nvml: Any) -> int:
    """The CUDA version of libcuda if NVML can load that, or else the one that NVML itself knows.

    NVML cannot load libcuda in a container that has the driver's root mounted, but no driver files in the
    loader's folders.
    """
    try:
        return int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return int(nvml.nvmlSystemGetCudaDriverVersion())


def bdf(info: Any) -> str | None:
    """NVML's bus id as the kernel writes it: 0000:3b:00.0 for 00000000:3B:00.0. None if it is not valid.

    The address becomes a part of paths. A card with an invalid one must not hide the other cards.
    """
    try:
        found = BUS_ID.fullmatch(info.busId.lower())
    except UnicodeDecodeError:  # pynvml decodes at each access
        return None
    return f"{int(found['domain'], 16):04x}:{found['rest']}" if found else None
