"""Which resource each device belongs to, before devices are shared: NVIDIA's device map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.vendor_api.agent import Device
from agent.vendor_api.text import shorten
from agent.vendors.nvidia.shared import constants

from .names import GPU, full_name
from .options import Options, Pattern

#: The attributes that make the type of a MIG device: the profile, and NVML's device attributes.
_TYPE = (
    constants.MIG_PROFILE,
    constants.MULTIPROCESSORS,
    constants.SLICES_GI,
    constants.SLICES_CI,
    *constants.ENGINES,
)
#: A profile that takes less than its GPU instance, such as 1c.2g.20gb, has no name of its own.
_PARTIAL = re.compile(r"[0-9]+c\.")
_LITERAL = str.maketrans({"?": "[?]", "[": "[[]"})


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """Resource name to devices in the order of their indices.

    A name of the settings without devices has an empty tuple. `refused` says why no device has a name.
    """

    resources: Mapping[str, tuple[Device, ...]]
    refused: str = ""
    complaints: tuple[str, ...] = ()


def device_map(options: Options, devices: Iterable[Device]) -> DeviceMap:
    """Name the devices as NVIDIA's plugin does (k8s-device-plugin v0.20, internal/rm/device_map.go).

    NVIDIA's plugin exits on errors. Here a device without a name is left out and hides no other, and a layout
    that the strategy `single` refuses leaves no device to offer until the layout changes.
    """
    found = sorted(devices, key=lambda it: (it.index, it.slice or 0, it.uuid))
    gpus = [it for it in found if it.parent is None]
    if options.mig_strategy == "none":
        return _named(options, gpus, [])
    slices = [it for it in found if it.parent is not None]
    parents = {it.parent for it in slices}
    # A GPU with MIG devices is never served whole, whatever its MIG mode reads as.
    sliced = [it for it in gpus if constants.in_mig_mode(it) or it.uuid in parents]
    whole = [it for it in gpus if it not in sliced]
    if options.mig_strategy == "mixed":
        return _named(options, whole, slices)
    if slices:
        whole = [it for it in whole if not _is_unread(it)]
    refused = _not_uniform(sliced, whole, slices)
    return nothing(options, refused) if refused else _named(options, whole, slices)


def nothing(options: Options, refused: str) -> DeviceMap:
    """The map of a node with devices that cannot be offered, for the reason `refused`."""
    return DeviceMap(_named(options, [], []).resources, refused)


def _is_unread(gpu: Device) -> bool:
    """Whether the MIG mode of a GPU could never be read: the GPU may be a whole one, or not."""
    attributes = gpu.attributes
    return (
        gpu.fault is not None
        and constants.MIG_MODE not in attributes
        and attributes.get(constants.MIG_CAPABLE) != constants.NO
    )


def _not_uniform(sliced: Sequence[Device], whole: Sequence[Device], slices: Sequence[Device]) -> str:
    """Why the strategy `single` refuses the layout, or nothing. Unreadable devices do not count."""
    parents = {it.parent for it in slices}
    empty = next((it for it in sliced if it.uuid not in parents and it.fault is None), None)
    if empty is not None:
        return (
            "invalid MIG configuration: at least one device with migEnabled=true was not configured "
            f"correctly: device {empty.index} has no MIG devices configured"
        )
    types = {tuple(map(it.attributes.get, _TYPE)) for it in slices if it.fault is None}
    if len(types) > 1:
        return "invalid MIG configuration: more than one MIG device type present on node"
    if whole and slices:
        return "all devices on the node must be configured with the same migEnabled value"
    return ""


def known_names(options: Options) -> tuple[str, ...]:
    """The names that devices may have with these settings, without those made of MIG profiles."""
    mig = options.patterns.mig if options.mig_strategy != "none" else ()
    return (*(it.resource for it in options.patterns.gpus), GPU, *(it.resource for it in mig))


def _named(options: Options, whole: Iterable[Device], slices: Iterable[Device]) -> DeviceMap:
    resources: dict[str, list[Device]] = {name: [] for name in known_names(options)}
    complaints: dict[str, None] = {}
    for gpu in whole:
        resources[_matching(options.patterns.gpus, gpu.model) or GPU].append(gpu)
    for device in slices:
        try:
            resources.setdefault(_slice_name(options, device), []).append(device)
        except ValueError as error:
            complaints[str(error)] = None
    named = {name: tuple(devices) for name, devices in resources.items()}
    return DeviceMap(named, complaints=tuple(complaints))


def _slice_name(options: Options, device: Device) -> str:
    """The resource of a MIG device.

    Raises:
        ValueError: Neither a pattern nor a default names it; in NVIDIA's words.
    """
    profile = device.attributes.get(constants.MIG_PROFILE, "")
    name = _matching(options.patterns.mig, profile)
    if name or options.mig_strategy == "single":
        return name or GPU
    if not profile:
        place = f"({device.index}, {device.slice})"
        raise ValueError(f"error getting MIG profile for MIG device at index '{place}'")
    if _PARTIAL.match(profile):
        raise ValueError(f"MIG profile '{shorten(profile)}' does not match any resource patterns")
    return full_name(f"mig-{profile.replace('+', '.')}")


def _matching(patterns: Iterable[Pattern], text: str) -> str | None:
    """The name of the first pattern that matches the whole text; only `*` is special."""
    return next((it.resource for it in patterns if fnmatchcase(text, it.pattern.translate(_LITERAL))), None)
