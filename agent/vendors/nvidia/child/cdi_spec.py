"""The CDI specs that let a container runtime give NVIDIA's devices to a container.

Kinds, names and content are those of NVIDIA's device plugin v0.20 (internal/cdi), which makes its specs with
nvidia-container-toolkit v1.20 (pkg/nvcdi). These specs name more devices: every advertised device, cards in
MIG mode as well, and in each class a device `all`.

Programs open a library of the driver by its SONAME, libcuda.so.1, or by its plain name. The file has the name
libcuda.so.<version>. Links cannot be mounted, so NVIDIA has a hook that makes them in the container. Without
a hook binary, or with `create-symlinks` disabled, the file is mounted at each of these names as well.

The loader in a container does not know the host's folders: Debian's loader does not search /usr/lib64, other
loaders do not search /usr/lib/x86_64-linux-gnu, and no loader searches a folder of the driver's own. NVIDIA
has a hook that writes the loader's cache. Without that hook the libraries are also mounted in the folders
that loaders search. So containers work without any program on the host.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from agent.vendor_api.backend import Device
from agent.vendors.nvidia.shared import constants
from agent.vendors.nvidia.shared.driver_root import Root

from . import cdi_hooks, driver_files
from .device_nodes import dev_root
from .driver_files import DriverFiles

#: The lowest CDI version with `hostPath` of device nodes, and with device names that begin with a digit.
VERSION = "0.5.0"
#: A valid device name (container-device-interface, pkg/parser, ValidateDeviceName). Runtimes refuse the whole
#: spec for one invalid name.
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
#: The kernel's names of a card's nodes below /dev/dri.
DRM = re.compile(r"(card|renderD)[0-9]{1,4}")

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
#: The folders that loaders of distributions search, by the kernel's name of the processor.
SEARCHED = {
    "x86_64": ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"),
    "aarch64": ("/usr/lib64", "/usr/lib/aarch64-linux-gnu"),
}
#: Keeps the legacy hook of NVIDIA's runtime from adding more devices.
VOID = "NVIDIA_VISIBLE_DEVICES=void"

#: Supported values of the setting cdiFeatureFlags. NVIDIA's other flags turn off what these specs never have:
#: its nvsandboxutils library, annotations on devices, Tegra's lists, and group IDs (a runtime gives the nodes
#: to the container's own user).
WITHOUT_SOCKETS, WITH_EXPLICIT = "disable-ipc-discoverer", "enable-explicit-driver-libraries"

#: The device nodes of each extra.
EXTRA_NODES = {
    constants.GDRCOPY: ("/dev/gdrdrv",),
    constants.GDS: ("/dev/nvidia-fs*",),
    constants.MOFED: ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
}

Settings = Mapping[str, Any]
Edits = dict[str, Any]


def specs(settings: Settings, devices: Sequence[Device]) -> dict[str, str]:
    """The CDI spec files: name (`k8s.device-plugin.nvidia.com-gpu.json`) to JSON text.

    Empty unless the setting deviceListStrategy names cdi-annotations or cdi-cri. A class without devices has
    no file. Missing files of the driver are no error; then the spec has no mounts for them.
    """
    if not _wanted(settings):
        return {}
    made = {
        constants.CDI_GPU: _gpu(settings, devices),
        constants.CDI_IMEX: _imex(settings, devices),
        **{name: _extra(settings, name) for name in _extras(settings)},
    }
    texts = {name: json.dumps(spec, indent=2) for name, spec in made.items() if spec["devices"]}
    return {f"{constants.CDI_VENDOR}-{name}.json": f"{text}\n" for name, text in texts.items()}


def attributes(settings: Settings) -> dict[str, str]:
    """The attribute with the extras that have a spec now. Empty if the settings want no extras.

    A container with a CDI name that no spec has does not start, so the agent half uses these names only.
    """
    wanted = _wanted(settings) and any(map(settings.get, constants.EXTRAS.values()))
    return {constants.CDI_EXTRAS: ",".join(_extras(settings))} if wanted else {}


def _wanted(settings: Settings) -> bool:
    return bool(constants.CDI_STRATEGIES & set(_texts(settings.get("deviceListStrategy"))))


def _extras(settings: Settings) -> list[str]:
    return [name for name in constants.EXTRAS if _extra_nodes(settings, name)]


def _gpu(settings: Settings, devices: Sequence[Device]) -> Edits:
    dev = dev_root(settings)
    named = _named(settings, devices)
    nodes = {name: (*device.paths, *_graphics(settings, dev, device)) for name, device in named.items()}
    # The node of a lost card may be gone, and a container with a missing node does not start.
    sick = {device.uuid for device in devices if device.fault}
    sound = (nodes[name] for name, device in named.items() if not sick & {device.uuid, device.parent})
    return _spec(
        constants.CDI_GPU,
        dev,
        {**nodes, constants.CDI_ALL: chain.from_iterable(sound)},
        _common(settings, dev, devices),
    )


def _named(settings: Settings, devices: Sequence[Device]) -> dict[str, Device]:
    """The devices that a container can ask for, by their CDI name: UUID or index."""
    by_index = settings.get("deviceIDStrategy") == "index"
    named: dict[str, Device] = {}
    for device in sorted(devices, key=lambda it: (it.index, -1 if it.slice is None else it.slice)):
        name = constants.index_of(device) if by_index else device.uuid
        if device.paths and NAME.fullmatch(name) and name != constants.CDI_ALL:
            named.setdefault(name, device)
    return named


def _graphics(settings: Settings, dev: Root, device: Device) -> list[str]:
    """The card's nodes for OpenGL, Vulkan and video. A slice has them only with a gfx profile."""
    if not device.pci or (device.parent and "gfx" not in device.attributes.get(constants.MIG_PROFILE, "")):
        return []
    drm = Path(settings.get("sysfs") or "/sys", "bus/pci/devices", device.pci, "drm")
    try:
        names = sorted(name for name in os.listdir(drm) if DRM.fullmatch(name))
    except OSError:
        return []
    return [path for name in names for path in dev.nodes(f"/dev/dri/{name}")]


def _imex(settings: Settings, devices: Sequence[Device]) -> Edits:
    channels = constants.list_of_node(devices, constants.IMEX_CHANNELS)
    paths = {channel: [constants.channel_node(channel)] for channel in channels}
    every = chain.from_iterable(paths.values())
    return _spec(constants.CDI_IMEX, dev_root(settings), {**paths, constants.CDI_ALL: every})


def _extra(settings: Settings, name: str) -> Edits:
    mounts = _gds_mounts(settings) if name == constants.GDS else []
    return _spec(
        name, dev_root(settings), {constants.CDI_ALL: _extra_nodes(settings, name)}, {"mounts": mounts}
    )


def _extra_nodes(settings: Settings, name: str) -> list[str]:
    if not settings.get(constants.EXTRAS[name]):
        return []
    dev = dev_root(settings)
    return [path for pattern in EXTRA_NODES[name] for path in dev.nodes(pattern)]


def _gds_mounts(settings: Settings) -> list[Edits]:
    """The mounts that cuFile needs to find disks: udev's database, and cuFile's configuration."""
    for root in _driver_roots(settings):
        found = {"/etc/cufile.json": root.file("/etc/cufile.json"), "/run/udev": root.folder("/run/udev")}
        mounts = [_mount(root, path, real, READ_ONLY) for path, real in found.items() if real]
        if mounts:
            return mounts
    return []


def _spec(kind: str, dev: Root, devices: Mapping[str, Iterable[str]], common: Edits | None = None) -> Edits:
    """A spec of devices: name to paths of nodes. CDI allows no device without nodes, so such are left out."""
    by_name = {name: [_node(dev, path) for path in dict.fromkeys(paths)] for name, paths in devices.items()}
    return {
        "cdiVersion": VERSION,
        "kind": f"{constants.CDI_VENDOR}/{kind}",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": nodes}}
            for name, nodes in by_name.items()
            if nodes
        ],
        "containerEdits": {"env": [VOID]} | {key: value for key, value in (common or {}).items() if value},
    }


def _node(dev: Root, path: str) -> Edits:
    host = dev.on_host(path)
    return {"path": path} if host == path else {"path": path, "hostPath": host}


def _mount(root: Root, path: str, real: str, options: Sequence[str]) -> Edits:
    return {"hostPath": root.on_host(real), "containerPath": path, "options": list(options)}


def _common(settings: Settings, dev: Root, devices: Sequence[Device]) -> Edits:
    """The edits of every container with one of the devices: driver files, control nodes and hooks."""
    version = constants.of_node(devices, constants.DRIVER_VERSION)
    root, files = _driver(settings, version)
    disabled = _texts(settings.get("cdiDisableHooks"))
    hooks = cdi_hooks.hooks(settings.get("nvidiaCDIHookPath") or "", disabled, files, version)
    if WITHOUT_SOCKETS in _texts(settings.get("cdiFeatureFlags")):
        files = replace(files, sockets={})
    return {
        "env": [VOID, *_library_folder(files, version)],
        "deviceNodes": [
            _node(dev, path) for path in constants.list_of_node(devices, constants.CONTROL_NODES)
        ],
        "hooks": list(hooks.values()),
        "mounts": _mounts(root, files, links=cdi_hooks.SYMLINKS not in hooks, cache=cdi_hooks.CACHE in hooks),
    }


def _mounts(root: Root, files: DriverFiles, *, links: bool, cache: bool) -> list[Edits]:
    """The mounts of the driver's files.

    `links`: the libraries are also mounted at their other names. Without `cache` they are also mounted where
    loaders search, because no hook writes the loader's cache.
    """
    ends = {link: files.libraries.get(end) or files.others[end] for link, end in files.links.items()}
    read = {**files.libraries, **files.others, **(ends if links else {})}
    if not cache:
        read = {**_searched(files, {**files.libraries, **ends}), **read}
    mounts = [_mount(root, path, real, READ_ONLY) for path, real in read.items()]
    mounts += [_mount(root, path, real, SOCKET) for path, real in files.sockets.items()]
    return sorted(mounts, key=lambda mount: str(mount["containerPath"]))


def _searched(files: DriverFiles, libraries: Mapping[str, str]) -> dict[str, str]:
    """Libraries and programs at the places that loaders and shells search: container path to real path.

    Libraries in the folder `vdpau` are left out, because loaders do not search there.
    """
    folders = {posixpath.dirname(path) for path in files.libraries}
    here = {path: real for path, real in libraries.items() if posixpath.dirname(path) in folders}
    plain = [path for path in here if posixpath.basename(posixpath.dirname(path)) != driver_files.VDPAU]
    places = SEARCHED.get(os.uname().machine, ())
    found = {
        posixpath.join(place, posixpath.basename(path)): here[path] for place in places for path in plain
    }
    for path, real in files.others.items():
        folder, name = posixpath.split(path)
        if name in driver_files.PROGRAMS and folder not in driver_files.PROGRAM_FOLDERS:
            found[f"/usr/bin/{name}"] = real
    return found


def _library_folder(files: DriverFiles, version: str) -> list[str]:
    """The variable with the folder of libcuda.so, as the toolkit sets it since v1.19."""
    folders = {posixpath.dirname(path) for path in files.libraries if path.endswith(f"/libcuda.so.{version}")}
    return [f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(sorted(folders))}"] if folders else []


def _driver(settings: Settings, version: str) -> tuple[Root, DriverFiles]:
    """The first root with the driver's libraries, and its files."""
    explicit = WITH_EXPLICIT in _texts(settings.get("cdiFeatureFlags"))
    roots = _driver_roots(settings)
    found = ((root, driver_files.find(root, version, explicit)) for root in roots)
    return next(((root, files) for root, files in found if files.libraries), (roots[0], DriverFiles()))


def _driver_roots(settings: Settings) -> list[Root]:
    """The roots that may have the driver: mounted in this container, or the host's own path without one."""
    host = settings.get("driverRoot") or "/"
    return [Root(seen, host) for seen in (settings.get("containerDriverRoot") or constants.DRIVER_ROOT, host)]


def _texts(value: Any) -> list[str]:
    """The texts of a setting that is one text or a list of texts."""
    return [value] if isinstance(value, str) else list(value or ())
