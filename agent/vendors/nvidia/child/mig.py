"""Reads the MIG devices of a card, with their profiles and device nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Device, Fault
from agent.vendors.common.device_fields import completed
from agent.vendors.common.host import beginning
from agent.vendors.nvidia.shared import constants

from . import faults
from .cards import NvidiaCard, NvidiaReading

#: Limit of MIG devices on a card, more than any card has.
LIMIT = 64
#: Instance ID of an event that belongs to no GPU instance, or to no compute instance.
NOWHERE = 0xFFFFFFFF

#: Attributes of a MIG device that are the same as those of its card.
SHARED = (
    constants.DRIVER_VERSION,
    constants.CUDA_VERSION,
    constants.COMPUTE_CAPABILITY,
    constants.CONTROL_NODES,
    constants.IMEX_CHANNELS,
    constants.CDI_EXTRAS,
)
#: Attributes of a MIG device, and the fields of nvmlDeviceAttributes_t that have their values.
COUNTS: Mapping[str, str] = {
    constants.MULTIPROCESSORS: "multiprocessorCount",
    constants.SLICES_GI: "gpuInstanceSliceCount",
    constants.SLICES_CI: "computeInstanceSliceCount",
    constants.ENGINES_COPY: "sharedCopyEngineCount",
    constants.ENGINES_DECODER: "sharedDecoderCount",
    constants.ENGINES_ENCODER: "sharedEncoderCount",
    constants.ENGINES_JPEG: "sharedJpegCount",
    constants.ENGINES_OFA: "sharedOfaCount",
}
#: The ending of a profile's name, by NVML's number of the GPU instance profile (NVML_GPU_INSTANCE_PROFILE_*).
#: NVIDIA's go-nvlib 0.12 does not know the last number, and fails on a card that offers it.
SUFFIXES: Mapping[int, str] = {
    **dict.fromkeys((0x07, 0x08), "+me"),
    **dict.fromkeys((0x0D, 0x0E), "-me"),
    **dict.fromkeys((0x0F, 0x10), "+me.all"),
    **dict.fromkeys((0x0A, 0x0B, 0x0C, 0x11), "+gfx"),
}
#: The name of a MIG device ends with its profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me".
NAMED = re.compile(r" MIG (?:\d+c\.)?\d+g\.\d+gb(?P<suffix>[+-][a-z.]+)?$", re.ASCII)

#: File below procfs with the minor number of each capability's device node (NVIDIA MIG user guide, "Device
#: Nodes"), and the bytes of it that are read.
MINORS, MINORS_SIZE = "driver/nvidia-caps/mig-minors", 4 << 20
ACCESS = re.compile(rb"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$", re.MULTILINE)

Place = tuple[int, int, int | None]


class MigReader:
    """Reads MIG devices within one NVML session.

    A MIG device without a fault is read once: its fields stay the same as long as its UUID does. Handles are
    read each time, because NVML can use a handle for another device (nvml.h,
    nvmlDeviceGetMigDeviceHandleByIndex).
    """

    def __init__(self, nvml: Any, procfs: Path) -> None:
        self._nvml = nvml
        self._file = procfs / MINORS
        self._minors: Mapping[Place, int] = {}
        #: Ending of the profile's name by the card's UUID and the profile's ID.
        self._suffixes: dict[tuple[str, int], str] = {}
        #: Places of MIG devices without a UUID that were logged.
        self._left_out: set[str] = set()

    def slices(self, card: NvidiaCard) -> tuple[Device, ...]:
        """Read the card's MIG devices, in the order of their numbers. `card.slices` are those read before.

        If the card cannot be read, it keeps those. A card without MIG mode has none.
        """
        if not constants.in_mig_mode(card.device):
            return ()
        devices = self._read_all(card)
        if devices is None:
            return card.slices
        found = {device.uuid: device for device in devices if device.uuid}
        for device in devices:
            named = None if device.uuid else self._named(card, device, found)
            if named is not None:
                found[named.uuid] = named
        return tuple(sorted(found.values(), key=lambda device: device.slice or 0))

    def _read_all(self, card: NvidiaCard) -> list[Device] | None:
        """The MIG devices by the card's numbers, some perhaps without a UUID; None if the card is lost."""
        try:
            count = 0 if card.handle is None else self._nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)
        except self._nvml.NVMLError:
            count = 0
        if not count:  # wrong for a card in MIG mode
            return None
        numbers = range(min(count, LIMIT))
        devices = [device for number in numbers if (device := self._read_number(card, number))]
        return None if any(device.fault is faults.LOST for device in devices) else devices

    def _read_number(self, card: NvidiaCard, number: int) -> Device | None:
        """The MIG device with this number on the card; None if there is none."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, number)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                return None
            return _placed(card, number, Device("", 0, fault=faults.reading(nvml, error)))
        reading = NvidiaReading(nvml, handle)
        uuid: str = reading.get("nvmlDeviceGetUUID", "")
        before = next((device for device in card.slices if device.uuid == uuid), None)
        if before and before.fault is None and before.paths[:1] == card.device.paths:
            return _placed(card, number, before)
        device = _placed(card, number, self._read(card, uuid, reading))
        return completed(device, before) if before and device.fault else device

    def _named(self, card: NvidiaCard, device: Device, found: Mapping[str, Device]) -> Device | None:
        """Complete a MIG device without a readable UUID from the one that had its number before.

        None, with a log line, if there was none.
        """
        for before in card.slices:
            if before.slice == device.slice and before.uuid not in found:
                return completed(device, before)
        place = f"{card.uuid}:{device.slice}"
        if place not in self._left_out:
            self._left_out.add(place)
            why = device.fault.message if device.fault else "it has none"
            text = f"MIG device {device.index}:{device.slice} is left out, its UUID was never read: {why}"
            sys.stderr.write(f"nvidia: {text}\n")
        return None

    def _read(self, card: NvidiaCard, uuid: str, reading: NvidiaReading) -> Device:
        """Read all fields of a MIG device that its card does not have."""
        gi: int | None = reading.get("nvmlDeviceGetGpuInstanceId", None)
        ci: int | None = reading.get("nvmlDeviceGetComputeInstanceId", None)
        has = reading.get("nvmlDeviceGetAttributes_v2", None)
        own: dict[str, object] = {constants.GI: gi, constants.CI: ci}
        if has and gi is not None:
            suffix: str = reading.attempt(lambda: self._suffix(card, reading.handle, gi), "")
            counts = {name: getattr(has, field) for name, field in COUNTS.items()}
            own |= {constants.MIG_PROFILE: profile(has, card.device.memory, suffix), **counts}
        paths, missing = self._paths(card, gi, ci)
        return Device(
            uuid,
            card.device.index,
            memory=has.memorySizeMB << 20 if has else 0,
            paths=paths,
            attributes={name: str(value) for name, value in own.items() if value is not None},
            fault=reading.fault or missing,
        )

    def _suffix(self, card: NvidiaCard, handle: Any, gi: int) -> str:
        """The ending of the profile's name.

        Only privileged processes can read the profile of a GPU instance. Every process can read the name of
        the MIG device, which ends with the profile.
        """
        nvml = self._nvml
        try:
            known = nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(card.handle, gi)).profileId
        except (nvml.NVMLError_NoPermission, nvml.NVMLError_NotSupported):
            found = NAMED.search(nvml.nvmlDeviceGetName(handle))
            return (found["suffix"] or "") if found else ""
        if (card.uuid, known) not in self._suffixes:
            self._suffixes[card.uuid, known] = self._suffix_of(card, known)
        return self._suffixes[card.uuid, known]

    def _suffix_of(self, card: NvidiaCard, known: int) -> str:
        nvml = self._nvml
        for number, suffix in SUFFIXES.items():
            try:
                offered = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card.handle, number, version=1).id
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
            if offered == known:
                return suffix
        return ""

    def _paths(
        self, card: NvidiaCard, gi: int | None, ci: int | None
    ) -> tuple[tuple[str, ...], Fault | None]:
        """The device nodes of the card and of both instances; none, and the fault, if one is missing."""
        minor = card.device.minor
        if minor is None or gi is None or ci is None:
            return (), None
        nodes = {"GPU": (f"gi{gi}", (minor, gi, None)), "compute": (f"gi{gi}/ci{ci}", (minor, gi, ci))}
        paths = list(card.device.paths)
        for kind, (below, place) in nodes.items():
            number = self._minor(place)
            if number is None:
                path = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/{below}/access"
                text = f"missing MIG {kind} instance capability path: {path}"  # NVIDIA's words
                return (), Fault("capability-missing", f"{text}; {self._file} does not list it")
            paths.append(f"/dev/nvidia-caps/nvidia-cap{number}")
        return tuple(paths), None

    def _minor(self, place: Place) -> int | None:
        if place not in self._minors:
            self._minors = _minors(self._file)
        return self._minors.get(place)


def _minors(file: Path) -> dict[Place, int]:
    """Minor numbers of capabilities by the card's minor number, GPU instance and compute instance."""
    try:
        lines = ACCESS.findall(beginning(file, MINORS_SIZE))
    except OSError:
        return {}
    return {(int(gpu), int(gi), int(ci) if ci else None): int(minor) for gpu, gi, ci, minor in lines}


def _placed(card: NvidiaCard, number: int, device: Device) -> Device:
    """The MIG device with its number on the card, and with the fields that it has from the card now."""
    of_card, own = card.device, {name: it for name, it in device.attributes.items() if name not in SHARED}
    shared = {name: it for name, it in of_card.attributes.items() if name in SHARED}
    return replace(
        device,
        index=of_card.index,
        pci=of_card.pci,
        numa=of_card.numa,
        model=of_card.model,
        attributes={**shared, **own},
        parent=of_card.uuid,
        slice=number,
    )


def profile(has: Any, total: int, suffix: str) -> str:
    """The profile as NVIDIA writes it: [<c>c.]<g>g.<gb>gb and the suffix (go-nvlib 0.12, mig_profile.go).

    `has` are NVML's attributes of the MIG device. `total` is the card's memory in bytes. The gigabytes of a
    profile are eighths of that.
    """
    eighths = -(-(has.memorySizeMB << 20) * 8 // total) if total else 0
    gigabytes = (eighths * -(-total >> 30) + 4) // 8 if total else (has.memorySizeMB + 512) >> 10
    g, c = has.gpuInstanceSliceCount, has.computeInstanceSliceCount
    return f"{g}g.{gigabytes}gb{suffix}" if c == g else f"{c}c.{g}g.{gigabytes}gb{suffix}"


def handles(nvml: Any, card: NvidiaCard) -> list[tuple[Device, Any]]:
    """The card's MIG devices that can be reached now, each with a handle.

    Since the last discovery, another MIG device can have got the number of one that is gone.
    """
    found = []
    for device in card.slices if card.handle is not None else ():
        with suppress(nvml.NVMLError, UnicodeDecodeError):
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, device.slice)
            if nvml.nvmlDeviceGetUUID(handle) == device.uuid:
                found.append((device, handle))
    return found


def at_instance(slices: Sequence[Device], gi: int, ci: int) -> tuple[str, ...]:
    """The UUIDs of the MIG devices that an event with these instance IDs is about."""
    of_gi = [device for device in slices if device.attributes.get(constants.GI) == str(gi)]
    return tuple(it.uuid for it in of_gi if ci == NOWHERE or it.attributes.get(constants.CI) == str(ci))
