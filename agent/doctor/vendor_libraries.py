"""Checks the vendors' libraries and drivers, from the list of a process for each vendor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agent.daemon.vendor_plugins import VendorPlugin
from agent.doctor import library_files
from agent.doctor.surroundings import Surroundings
from agent.host import files
from agent.scheduler_api.findings import Finding, FindingKind, Severity, not_made, well
from agent.scheduler_api.node_checks import Observed
from agent.vendor_api.agent import LIBRARY_NOT_FOUND, LIBRARY_UNUSABLE, NO_LIBRARY, Device, State

LIBRARY = "vendor-library"
DRIVER = "driver"

MISSING = FindingKind(
    LIBRARY,
    "library-missing",
    Severity.STOPS,
    "a vendor that the config enables by name has no library here",
    "The agent sees cards only through the library of their vendor.",
    "install the driver of {vendor}; if the library is at another path set vendors.{vendor}.library to "
    "the file or to the driver's root; in a container mount the host's library directory read-only "
    "(with the chart vendors.{vendor}.libraries)",
)
NO_VENDOR = FindingKind(
    LIBRARY,
    "no-vendor",
    Severity.STOPS,
    "no vendor has cards here",
    "An agent without a working vendor serves nothing and is not ready.",
    "install the driver of this node's cards, or keep the agent off this node with a nodeSelector",
)
DANGLING = FindingKind(
    LIBRARY,
    "library-dangling",
    Severity.STOPS,
    "the library is a link to a file that does not exist",
    "The loader finds the link and no file. A driver was removed in part, or a container has the "
    "directory of the link and not the directory of the file.",
    "install the driver again, or run ldconfig; in a container mount the directory of {target} "
    "read-only at the same path; the chart mounts the directories in vendors.{vendor}.libraries, which "
    "are named without /driver-root",
)
FOREIGN = FindingKind(
    LIBRARY,
    "library-foreign",
    Severity.STOPS,
    "the library is not for this machine",
    "The loader skips a library of another architecture. Its error says only that there is no library.",
    "install the driver for this machine, and remove {path}",
)
UNUSABLE = FindingKind(
    LIBRARY,
    "library-unusable",
    Severity.STOPS,
    "the library exists and cannot be used",
    "The error of the loader names the reason: a part of the file is missing, the file is for another "
    "architecture, the agent may not read the file, or a library that the file needs is missing. Or the "
    "file is another library, without the vendor's functions.",
    "install the driver again; in a container mount also the libraries that the file needs, on a file "
    "system without noexec",
)
BYPASSED = FindingKind(
    LIBRARY,
    "library-bypassed",
    Severity.STOPS,
    "the driver is loaded, and the vendor's library is not here",
    "The agent knows the cards only from the kernel. The agent gives these cards to pods and cannot "
    "watch their health, so a broken card is still offered. The agent is not ready. With the library "
    "the cards have other names.",
    "before pods use such cards set vendors.{vendor}.library to the library or to the driver's root; in "
    "a container mount the host's library directory read-only (with the chart "
    "vendors.{vendor}.libraries)",
)
BROKEN = FindingKind(
    LIBRARY,
    "vendor-left-out",
    Severity.STOPS,
    "a vendor's part of the agent cannot be used or is not installed",
    "The agent does not serve the vendor's cards. The agent serves the other vendors, and is not ready.",
    "see the vendors and the reason: xpu-agent plugins; install the vendor's package in the version "
    "that fits this agent and restart the agent, or correct the name in the configuration",
)
NOT_LOADED = FindingKind(
    DRIVER,
    "driver-not-loaded",
    Severity.STOPS,
    "the library exists, and the kernel driver is not loaded",
    "The library reaches the cards through the driver. After an update of the kernel the driver may "
    "have to be built again.",
    "modprobe {vendor}; dmesg | grep -i {vendor}; if modprobe finds no such module install the driver "
    "for this kernel (uname -r)",
)
MISMATCH = FindingKind(
    DRIVER,
    "driver-mismatch",
    Severity.STOPS,
    "library and kernel driver are of different versions",
    "The library refuses every call. Either an update replaced the library while the old driver stayed "
    "loaded, or the container has the library of another driver.",
    "drain the node and reboot the node, or load the driver again (rmmod, modprobe {vendor}); in a "
    "container mount the host's library, and install no library",
)
DENIED = FindingKind(
    DRIVER,
    "driver-denied",
    Severity.STOPS,
    "the agent may not open the driver's device nodes",
    "The library needs the device nodes for every call.",
    "run the agent as root; in a container mount the nodes below /dev and allow the container to use "
    "the nodes: with the vendor's container runtime, or with privileged: true",
)
FAILING = FindingKind(
    DRIVER,
    "driver-failing",
    Severity.STOPS,
    "the vendor's library fails",
    "The library crashed, hung or refused when the doctor asked for the cards. In the agent the "
    "vendor's devices have an unknown state.",
    "look for errors of the card with dmesg; try the vendor's own tool; find the "
    "failing call: xpu-agent conformance {vendor}",
)
SICK = FindingKind(
    DRIVER,
    "device-sick",
    Severity.WARNS,
    "a device cannot be read",
    "The agent lists the device as unhealthy, and no pod gets the device.",
    "see what ends the fault: xpu-agent health list; reset or replace the card",
)
UNWATCHED = FindingKind(
    DRIVER,
    "device-unwatched",
    Severity.WARNS,
    "the health of a device is not known",
    "The agent offers the device like a healthy device, because a missing watch is no fault of the "
    "device. The agent also offers a device that breaks.",
    "correct what the finding names; keep pods from a device that you do not trust: xpu-agent health cordon",
)

#: The reason at the beginning of a vendor's error to the finding, for errors of the driver. The error has no
#: other field for the reason.
_REASONS = {
    "driver-not-loaded": NOT_LOADED,
    "driver-library-mismatch": MISMATCH,
    "no-permission": DENIED,
}
#: The reasons at the beginning of the error of a vendor without a usable library.
_WITHOUT = (LIBRARY_NOT_FOUND, LIBRARY_UNUSABLE)
#: Attributes with versions that a vendor may give its devices.
_VERSIONS = ("driver-version", "cuda-version", "driver", "firmware")
_LONGEST_VERSION = 400


def libraries(around: Surroundings) -> Iterator[Finding]:
    """Whether each vendor's process found a library, and defects of the library's files."""
    found = [it for plugin in around.configuration.plugins for it in _library(around, plugin)]
    yield from found
    stopped = any(it.severity is Severity.STOPS for it in found)
    if not stopped and all(it.why.startswith(LIBRARY_NOT_FOUND) for it in around.vendors.values()):
        tried = "; ".join(f"{name}: {it.why}" for name, it in around.vendors.items())
        yield NO_VENDOR.found(tried or "no vendor is enabled")


def _library(around: Surroundings, plugin: VendorPlugin) -> Iterator[Finding]:
    if plugin.vendor is None:
        if plugin.broken:
            yield BROKEN.found(f"{plugin.name}: {plugin.reason}")
        return
    look = around.vendors.get(plugin.name)
    if look is None:
        yield not_made(LIBRARY, f"{plugin.name} was not asked")
    elif blind := [it.fault.message for it in look.value or () if it.fault and _is_bypassed(it)]:
        yield from _defective(around, plugin)
        yield BYPASSED.found(f"{plugin.name}: {len(blind)} cards: {blind[0]}", vendor=plugin.name)
    elif not look.why.startswith(_WITHOUT):
        found = library_files.existing_paths(_names(plugin)) or ("found",)
        yield well(LIBRARY, f"{plugin.name}: {found[0]}")
    else:
        yield from _absent(around, plugin, look)


def _is_bypassed(device: Device) -> bool:
    return device.fault is not None and device.fault.reason == NO_LIBRARY


def _names(plugin: VendorPlugin | None) -> Sequence[str]:
    """The files that the vendor uses as its library, existing or not."""
    libraries = plugin.vendor.host.libraries if plugin and plugin.vendor else None
    return libraries() if libraries else ()


def _defective(around: Surroundings, plugin: VendorPlugin) -> Iterator[Finding]:
    for defect in library_files.defects(_names(plugin)):
        if defect.kind == "dangling":
            what = f"{plugin.name}: {defect.path} leads to {defect.detail}"
            finding = DANGLING.found(what, target=defect.detail, vendor=plugin.name)
        elif defect.kind == "broken":
            finding = UNUSABLE.found(f"{plugin.name}: {defect.path} is {defect.detail}")
        else:
            what = f"{plugin.name}: {defect.path} is for {defect.detail}"
            finding = FOREIGN.found(what, path=defect.path)
        yield weaker_without_cards(around, plugin.name, finding)


def _absent(
    around: Surroundings, plugin: VendorPlugin, look: Observed[tuple[Device, ...]]
) -> Iterator[Finding]:
    if defective := list(_defective(around, plugin)):
        yield from defective
    elif look.why.startswith(LIBRARY_UNUSABLE):
        yield weaker_without_cards(around, plugin.name, UNUSABLE.found(f"{plugin.name}: {look.why}"))
    elif around.config.vendor(plugin.name).enabled is True:
        yield MISSING.found(f"{plugin.name}: {look.why}", vendor=plugin.name)
    else:
        yield well(LIBRARY, f"{plugin.name}: no library, and the config does not enable the vendor by name")


def drivers(around: Surroundings) -> Iterator[Finding]:
    """The devices and versions that each vendor's library reports, or its error."""
    for name, look in around.vendors.items():
        if look.value is not None:
            yield from _devices(name, look.value)
        elif not look.why.startswith(_WITHOUT):
            kind = _REASONS.get(look.why.partition(":")[0], FAILING)
            what = f"{name}: {look.why}{_versions(around, name)}"
            yield weaker_without_cards(around, name, kind.found(what, vendor=name))


def weaker_without_cards(around: Surroundings, name: str, finding: Finding) -> Finding:
    """The finding as a warning, where the vendor has no cards here and another vendor has.

    A vendor that the config does not enable by name may have a library and no cards.
    """
    is_minor = any(it.value for it in around.vendors.values()) and not around.has_cards(name)
    return replace(finding, severity=Severity.WARNS) if is_minor else finding


def _devices(name: str, devices: Sequence[Device]) -> Iterator[Finding]:
    for device in devices:
        if device.fault is not None and not _is_bypassed(device):
            kind = UNWATCHED if device.fault.state is State.UNKNOWN else SICK
            yield kind.found(f"{name} {device.uuid}: {device.fault.reason}: {device.fault.message}")
    found = {key: it.attributes[key] for it in devices for key in _VERSIONS if it.attributes.get(key)}
    versions = "".join(f", {key} {value}" for key, value in found.items())
    yield well(DRIVER, f"{name}: {len(devices)} devices{versions}")


def _versions(around: Surroundings, name: str) -> str:
    """The versions of the driver and the library, as far as files show them."""
    plugin = next((it for it in around.configuration.plugins if it.name == name), None)
    found = [f"library {path}" for path in library_files.existing_paths(_names(plugin))[:1]]
    try:
        text = files.read(Path(f"/proc/driver/{name}/version"), _LONGEST_VERSION).decode(errors="replace")
        found += [f"driver {line.strip()}" for line in text.splitlines()[:1]]
    except OSError:
        found.append(f"no /proc/driver/{name}/version")
    return "".join(f"; {it}" for it in found)
