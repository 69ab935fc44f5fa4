"""The CDI specs that a container runtime needs to give NVIDIA's devices to a container.

Kinds, names and content are those of NVIDIA's device plugin v0.20 (internal/cdi), which makes its specs with
nvidia-container-toolkit v1.20 (pkg/nvcdi). Ours name more: every device that is advertised, a card in MIG
mode too, and in each class a device `all`.

A driver's library is opened by its SONAME, libcuda.so.1, and by its plain name; the file is called
libcuda.so.<version>. Links cannot be mounted, so NVIDIA has a hook make them in the container. Where no hook
binary is configured, or `create-symlinks` is disabled, the file is mounted at each of these names as well.
Nor does a container's loader know the host's folders: those of Debian's kind search no /usr/lib64, others no
/usr/lib/x86_64-linux-gnu, and none an own folder of the driver's. NVIDIA has a hook write the loader's cache.
Without that one the libraries are mounted in the folders that loaders search as well: then containers work
without any program on the host.
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
from agent.vendors.nvidia import constants
from agent.vendors.nvidia.driver_root import Root

from . import cdi_hooks, driver_files
from .device_nodes import dev_root
from .driver_files import DriverFiles

#: The lowest version that has a node's hostPath, and device names that begin with a digit.
VERSION = "0.5.0"
#: Of a device (container-device-interface, pkg/parser, ValidateDeviceName). One wrong name spoils the spec.
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
#: How the kernel names a card's nodes below /dev/dri.
DRM = re.compile(r"(card|renderD)[0-9]{1,4}")

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
#: Where the loaders of distributions look, by the kernel's name of the processor.
SEARCHED = {
    "x86_64": ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"),
    "aarch64": ("/usr/lib64", "/usr/lib/aarch64-linux-gnu"),
}
#: Keeps the legacy hook of NVIDIA's runtime from adding devices of its own.
VOID = "NVIDIA_VISIBLE_DEVICES=void"

#: Of the setting cdiFeatureFlags. NVIDIA's others are about what we never do: its nvsandboxutils library,
#: annotations on devices, Tegra's lists, and group IDs: a runtime gives nodes to the container's own user.
WITHOUT_SOCKETS, WITH_EXPLICIT = "disable-ipc-discoverer", "enable-explicit-driver-libraries"

#: The device nodes that make up an extra.
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
    no file. Never raises for what the host lacks: no files of the driver, no mounts.
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
    """Which extras have a spec now; nothing where none is wanted.

    The agent looks here, since a name without a spec keeps a container from starting.
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
    # The node of a lost card may be gone, and a container that asks for it does not start.
    sick = {device.uuid for device in devices if device.fault}
    sound = (nodes[name] for name, device in named.items() if not sick & {device.uuid, device.parent})
    return _spec(
        constants.CDI_GPU,
        dev,
        {**nodes, constants.CDI_ALL: chain.from_iterable(sound)},
        _common(settings, dev, devices),
    )


def _named(settings: Settings, devices: Sequence[Device]) -> dict[str, Device]:
    """The devices that a container can ask for, by the name that the kubelet hands on for them."""
    by_index = settings.get("deviceIDStrategy") == "index"
    named: dict[str, Device] = {}
    for device in sorted(devices, key=lambda each: (each.index, -1 if each.slice is None else each.slice)):
        name = constants.index_of(device) if by_index else device.uuid
        if device.paths and NAME.fullmatch(name) and name != constants.CDI_ALL:
            named.setdefault(name, device)
    return named


def _graphics(settings: Settings, dev: Root, device: Device) -> list[str]:
    """The card's nodes for OpenGL, Vulkan and video; a slice has them where its profile says gfx."""
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
    """What cuFile reads to find the disks: udev's database, and its own configuration."""
    for root in _driver_roots(settings):
        found = {"/etc/cufile.json": root.file("/etc/cufile.json"), "/run/udev": root.folder("/run/udev")}
        mounts = [_mount(root, path, real, READ_ONLY) for path, real in found.items() if real]
        if mounts:
            return mounts
    return []


def _spec(kind: str, dev: Root, devices: Mapping[str, Iterable[str]], common: Edits | None = None) -> Edits:
    """A spec of devices given as name to paths of nodes; the library refuses one without nodes."""
    nodes = {name: [_node(dev, path) for path in dict.fromkeys(paths)] for name, paths in devices.items()}
    return {
        "cdiVersion": VERSION,
        "kind": f"{constants.CDI_VENDOR}/{kind}",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": each}} for name, each in nodes.items() if each
        ],
        "containerEdits": {"env": [VOID]} | {key: value for key, value in (common or {}).items() if value},
    }


def _node(dev: Root, path: str) -> Edits:
    host = dev.on_host(path)
    return {"path": path} if host == path else {"path": path, "hostPath": host}


def _mount(root: Root, path: str, real: str, options: Sequence[str]) -> Edits:
    return {"hostPath": root.on_host(real), "containerPath": path, "options": list(options)}


def _common(settings: Settings, dev: Root, devices: Sequence[Device]) -> Edits:
    """What every container with one of the cards gets."""
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
    """With `links` the libraries have their other names too; without `cache` loaders are to find them."""
    ends = {link: files.libraries.get(end) or files.others[end] for link, end in files.links.items()}
    read = {**files.libraries, **files.others, **(ends if links else {})}
    if not cache:
        read = {**_searched(files, {**files.libraries, **ends}), **read}
    mounts = [_mount(root, path, real, READ_ONLY) for path, real in read.items()]
    mounts += [_mount(root, path, real, SOCKET) for path, real in files.sockets.items()]
    return sorted(mounts, key=lambda mount: str(mount["containerPath"]))


def _searched(files: DriverFiles, libraries: Mapping[str, str]) -> dict[str, str]:
    """Where loaders and shells look: the libraries, but for those of a folder below, and programs."""
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
    """Tells programs in the container where libcuda.so lies, as the toolkit does since v1.19."""
    folders = {posixpath.dirname(path) for path in files.libraries if path.endswith(f"/libcuda.so.{version}")}
    return [f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(sorted(folders))}"] if folders else []


def _driver(settings: Settings, version: str) -> tuple[Root, DriverFiles]:
    """The first root that holds the driver, and what it holds."""
    explicit = WITH_EXPLICIT in _texts(settings.get("cdiFeatureFlags"))
    roots = _driver_roots(settings)
    found = ((root, driver_files.find(root, version, explicit)) for root in roots)
    return next(((root, files) for root, files in found if files.libraries), (roots[0], DriverFiles()))


def _driver_roots(settings: Settings) -> list[Root]:
    """Where the driver may lie: mounted for us, or, without a container around us, at the host's own path."""
    host = settings.get("driverRoot") or "/"
    return [Root(seen, host) for seen in (settings.get("containerDriverRoot") or constants.DRIVER_ROOT, host)]


def _texts(value: Any) -> list[str]:
    """A setting that is a list of text, or one text."""
    return [value] if isinstance(value, str) else list(value or ())
