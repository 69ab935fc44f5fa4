"""Reads the MIG devices of a card: what the hardware made of it, and how a container reaches each."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Device, Fault
from agent.vendors.common.device_fields import completed
from agent.vendors.common.host import beginning
from agent.vendors.nvidia import constants

from . import faults
from .cards import NvidiaCard, NvidiaReading

#: More than any card has; the library is asked for each.
LIMIT = 64
#: The place of an event that is no GPU instance's, or of a GPU instance's that is no compute instance's.
NOWHERE = 0xFFFFFFFF

#: Attributes of a MIG device that are the card's and the node's.
SHARED = (
    constants.DRIVER_VERSION,
    constants.CUDA_VERSION,
    constants.COMPUTE_CAPABILITY,
    constants.CONTROL_NODES,
    constants.IMEX_CHANNELS,
    constants.CDI_EXTRAS,
)
#: Its own, by the fields of nvmlDeviceAttributes_t.
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
#: How the name of a profile ends, by NVML's number of the GPU instance profile (NVML_GPU_INSTANCE_PROFILE_*).
#: NVIDIA's go-nvlib 0.12 does not know the last and fails on a card that offers it.
SUFFIXES: Mapping[int, str] = {
    **dict.fromkeys((0x07, 0x08), "+me"),
    **dict.fromkeys((0x0D, 0x0E), "-me"),
    **dict.fromkeys((0x0F, 0x10), "+me.all"),
    **dict.fromkeys((0x0A, 0x0B, 0x0C, 0x11), "+gfx"),
}
#: The name of a MIG device ends with its profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me".
NAMED = re.compile(r" MIG (?:\d+c\.)?\d+g\.\d+gb(?P<suffix>[+-][a-z.]+)?$", re.ASCII)

#: Below procfs: the minor number of each capability's device node (NVIDIA MIG user guide, "Device Nodes").
MINORS, MINORS_SIZE = "driver/nvidia-caps/mig-minors", 4 << 20
ACCESS = re.compile(rb"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$", re.MULTILINE)

Place = tuple[int, int, int | None]


class MigReader:
    """Reads MIG devices within one NVML session.

    A sound one is read once: it is what it is while it has its UUID. Handles are asked for each time: NVML
    may give them to another (nvml.h, nvmlDeviceGetMigDeviceHandleByIndex).
    """

    def __init__(self, nvml: Any, procfs: Path) -> None:
        self._nvml = nvml
        self._file = procfs / MINORS
        self._minors: Mapping[Place, int] = {}
        self._suffixes: dict[tuple[str, int], str] = {}
        self._left_out: set[str] = set()

    def slices(self, card: NvidiaCard) -> tuple[Device, ...]:
        """The card's MIG devices in the order of their numbers; `card.slices` are those of before.

        They stay as they are while the card does not tell; without MIG mode there are none.
        """
        if not constants.in_mig_mode(card.device):
            return ()
        looks = self._looks(card)
        if looks is None:
            return card.slices
        found = {look.uuid: look for look in looks if look.uuid}
        for look in looks:
            named = None if look.uuid else self._named(card, look, found)
            if named is not None:
                found[named.uuid] = named
        return tuple(sorted(found.values(), key=lambda device: device.slice or 0))

    def _looks(self, card: NvidiaCard) -> list[Device] | None:
        """What each number of the card has, without a UUID where it tells none; None if the card is lost."""
        try:
            count = 0 if card.handle is None else self._nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)
        except self._nvml.NVMLError:
            count = 0
        if not count:  # of a card in MIG mode
            return None
        looks = [look for number in range(min(count, LIMIT)) if (look := self._look(card, number))]
        return None if any(look.fault is faults.LOST for look in looks) else looks

    def _look(self, card: NvidiaCard, number: int) -> Device | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, number)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                return None  # there is nothing
            return _placed(card, number, Device("", 0, fault=faults.reading(nvml, error)))
        look = NvidiaReading(nvml, handle)
        uuid: str = look.get("nvmlDeviceGetUUID", "")
        before = next((device for device in card.slices if device.uuid == uuid), None)
        if before and before.fault is None and before.paths[:1] == card.device.paths:
            return _placed(card, number, before)
        device = _placed(card, number, self._read(card, uuid, look))
        return completed(device, before) if before and device.fault else device

    def _named(self, card: NvidiaCard, look: Device, found: Mapping[str, Device]) -> Device | None:
        """Name a MIG device that does not tell its UUID, by its number; None if none fits."""
        for before in card.slices:
            if before.slice == look.slice and before.uuid not in found:
                return completed(look, before)
        place = f"{card.uuid}:{look.slice}"
        if place not in self._left_out:
            self._left_out.add(place)
            why = look.fault.message if look.fault else "it has none"
            text = f"MIG device {look.index}:{look.slice} is left out, its UUID was never read: {why}"
            sys.stderr.write(f"nvidia: {text}\n")
        return None

    def _read(self, card: NvidiaCard, uuid: str, look: NvidiaReading) -> Device:
        """What a MIG device tells of itself."""
        gi: int | None = look.get("nvmlDeviceGetGpuInstanceId", None)
        ci: int | None = look.get("nvmlDeviceGetComputeInstanceId", None)
        has = look.get("nvmlDeviceGetAttributes_v2", None)
        own: dict[str, object] = {constants.GI: gi, constants.CI: ci}
        if has and gi is not None:
            suffix: str = look.attempt(lambda: self._suffix(card, look.handle, gi), "")
            counts = {name: getattr(has, field) for name, field in COUNTS.items()}
            own |= {constants.MIG_PROFILE: profile(has, card.device.memory, suffix), **counts}
        paths, missing = self._paths(card, gi, ci)
        return Device(
            uuid,
            card.device.index,
            memory=has.memorySizeMB << 20 if has else 0,
            paths=paths,
            attributes={name: str(value) for name, value in own.items() if value is not None},
            fault=look.fault or missing,
        )

    def _suffix(self, card: NvidiaCard, handle: Any, gi: int) -> str:
        """How the profile's name ends.

        NVML tells a GPU instance's profile to the privileged alone; its devices' names tell it to everybody.
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
        """The device nodes of the card and of both instances; none, and why, where one is missing."""
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
    """Minor numbers by the card's minor number, the GPU instance and the compute instance."""
    try:
        lines = ACCESS.findall(beginning(file, MINORS_SIZE))
    except OSError:
        return {}
    return {(int(gpu), int(gi), int(ci) if ci else None): int(minor) for gpu, gi, ci, minor in lines}


def _placed(card: NvidiaCard, number: int, device: Device) -> Device:
    """The MIG device where the card has it; what is the card's or the node's is as it is now."""
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

    `has` are the device's attributes as NVML tells them, `total` is the card's memory in bytes: the gigabytes
    are eighths of it.
    """
    eighths = -(-(has.memorySizeMB << 20) * 8 // total) if total else 0
    gigabytes = (eighths * -(-total >> 30) + 4) // 8 if total else (has.memorySizeMB + 512) >> 10
    g, c = has.gpuInstanceSliceCount, has.computeInstanceSliceCount
    return f"{g}g.{gigabytes}gb{suffix}" if c == g else f"{c}c.{g}g.{gigabytes}gb{suffix}"


def hit(slices: Sequence[Device], gi: int, ci: int) -> tuple[str, ...]:
    """The MIG devices that an event in this place speaks of; none where none is known."""
    of_gi = [device for device in slices if device.attributes.get(constants.GI) == str(gi)]
    return tuple(it.uuid for it in of_gi if ci == NOWHERE or it.attributes.get(constants.CI) == str(ci))
