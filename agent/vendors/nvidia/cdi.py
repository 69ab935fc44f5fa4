"""The CDI specs that a container runtime needs to give NVIDIA's devices to a container.

Kinds, names and content are those of NVIDIA's device plugin v0.20 (internal/cdi), which makes its specs with
nvidia-container-toolkit v1.20 (pkg/nvcdi). Ours name more: every device that is advertised, a card in MIG
mode too, and in each class a device `all`.

A driver's library is opened by its SONAME, libcuda.so.1, and by its plain name; the file is called
libcuda.so.<version>. Links cannot be mounted, so NVIDIA has a hook make them in the container. Where no hook
binary is configured, or `create-symlinks` is disabled, the file is mounted at each of these names as well:
then containers whose loader searches the host's folders work without any program on the host.
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

from agent.core.vendor import Device

from . import driverfiles
from .devnodes import MOUNTED, dev_root
from .driverfiles import DriverFiles
from .driverroot import Root

VENDOR = "k8s.device-plugin.nvidia.com"
#: The lowest version that has a node's hostPath, and device names that begin with a digit.
VERSION = "0.5.0"
STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})
#: Stands for all devices of a class.
ALL = "all"
#: Of a device (container-device-interface, pkg/parser, ValidateDeviceName). One wrong name spoils the spec.
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
#: In a list with commas: the numbers are minors, below 2^20.
CHANNELS = re.compile(r"\b[0-9]{1,7}\b")
#: How the kernel names a card's nodes below /dev/dri.
DRM = re.compile(r"(card|renderD)[0-9]{1,4}")

READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
#: Keeps the legacy hook of NVIDIA's runtime from adding devices of its own.
VOID = "NVIDIA_VISIBLE_DEVICES=void"

#: Of the setting cdiFeatureFlags. NVIDIA's others are about what we never do: its nvsandboxutils library,
#: annotations on devices, Tegra's lists, and group IDs: a runtime gives nodes to the container's own user.
WITHOUT_SOCKETS, WITH_EXPLICIT = "disable-ipc-discoverer", "enable-explicit-driver-libraries"
HOOK_ENV = ["NVIDIA_CTK_DEBUG=false"]

#: Classes that a setting enables: the setting, and the device nodes that make it up.
EXTRAS = {
    "gdrcopy": ("gdrcopyEnabled", ("/dev/gdrdrv",)),
    "gds": ("gdsEnabled", ("/dev/nvidia-fs*",)),
    "mofed": ("mofedEnabled", ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm")),
}

Settings = Mapping[str, Any]
Edits = dict[str, Any]


def specs(settings: Settings, devices: Sequence[Device]) -> dict[str, str]:
    """The CDI spec files: name (`k8s.device-plugin.nvidia.com-gpu.json`) to JSON text.

    Empty unless the setting deviceListStrategy names cdi-annotations or cdi-cri. A class without devices has
    no file. Never raises for what the host lacks: no files of the driver, no mounts.
    """
    if not STRATEGIES & set(_texts(settings.get("deviceListStrategy"))):
        return {}
    made = {
        "gpu": _gpu(settings, devices),
        "imex-channel": _imex(settings, devices),
        **{name: _extra(settings, name) for name in _extras(settings)},
    }
    texts = {name: json.dumps(spec, indent=2) for name, spec in made.items() if spec["devices"]}
    return {f"{VENDOR}-{name}.json": f"{text}\n" for name, text in texts.items()}


def attributes(settings: Settings) -> dict[str, str]:
    """`cdi-extras`: those of gdrcopy, gds and mofed that have a spec, with commas; absent if none is enabled.

    The agent looks here, since a name without a spec keeps a container from starting.
    """
    enabled = any(settings.get(setting) for setting, _ in EXTRAS.values())
    return {"cdi-extras": ",".join(_extras(settings))} if enabled else {}


def _extras(settings: Settings) -> list[str]:
    return [name for name in EXTRAS if _extra_nodes(settings, name)]


def _gpu(settings: Settings, devices: Sequence[Device]) -> Edits:
    dev = dev_root(settings)
    named = _named(settings, devices)
    nodes = {name: (*device.paths, *_graphics(settings, dev, device)) for name, device in named.items()}
    # The node of a lost card may be gone, and a container that asks for it does not start.
    sick = {device.uuid for device in devices if device.fault}
    sound = (nodes[name] for name, device in named.items() if not sick & {device.uuid, device.parent})
    return _spec("gpu", dev, {**nodes, ALL: chain.from_iterable(sound)}, _common(settings, dev, devices))


def _named(settings: Settings, devices: Sequence[Device]) -> dict[str, Device]:
    """The devices that a container can ask for, by the name that the kubelet hands on for them."""
    by_index = settings.get("deviceIDStrategy") == "index"
    named: dict[str, Device] = {}
    for device in sorted(devices, key=lambda each: (each.index, -1 if each.slice is None else each.slice)):
        index = f"{device.index}" if device.slice is None else f"{device.index}:{device.slice}"
        name = index if by_index else device.uuid
        if device.paths and NAME.fullmatch(name) and name != ALL:
            named.setdefault(name, device)
    return named


def _graphics(settings: Settings, dev: Root, device: Device) -> list[str]:
    """The card's nodes for OpenGL, Vulkan and video; a slice has them where its profile says gfx."""
    if not device.pci or (device.parent and "gfx" not in device.attributes.get("mig-profile", "")):
        return []
    drm = Path(settings.get("sysfs") or "/sys", "bus/pci/devices", device.pci, "drm")
    try:
        names = sorted(name for name in os.listdir(drm) if DRM.fullmatch(name))
    except OSError:
        return []
    return [path for name in names for path in dev.nodes(f"/dev/dri/{name}")]


def _imex(settings: Settings, devices: Sequence[Device]) -> Edits:
    channels = CHANNELS.findall(_attribute(devices, "imex-channels"))
    paths = {channel: [f"/dev/nvidia-caps-imex-channels/channel{channel}"] for channel in channels}
    return _spec("imex-channel", dev_root(settings), {**paths, ALL: chain.from_iterable(paths.values())})


def _extra(settings: Settings, name: str) -> Edits:
    mounts = _gds_mounts(settings) if name == "gds" else []
    return _spec(name, dev_root(settings), {ALL: _extra_nodes(settings, name)}, {"mounts": mounts})


def _extra_nodes(settings: Settings, name: str) -> list[str]:
    setting, patterns = EXTRAS[name]
    dev = dev_root(settings)
    return [path for pattern in patterns for path in dev.nodes(pattern)] if settings.get(setting) else []


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
        "kind": f"{VENDOR}/{kind}",
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
    version = _attribute(devices, "driver-version")
    root, files = _driver(settings, version)
    hooks = _hooks(settings, files, version)
    if WITHOUT_SOCKETS in _texts(settings.get("cdiFeatureFlags")):
        files = replace(files, sockets={})
    control = [path for path in _attribute(devices, "control-nodes").split(",") if path]
    return {
        "env": [VOID, *_library_folder(files, version)],
        "deviceNodes": [_node(dev, path) for path in control],
        "hooks": list(hooks.values()),
        "mounts": _mounts(root, files, links="create-symlinks" not in hooks),
    }


def _mounts(root: Root, files: DriverFiles, links: bool) -> list[Edits]:
    read = {**files.libraries, **files.others}
    if links:
        read |= {link: read[target] for link, target in files.links.items()}
    mounts = [_mount(root, path, real, READ_ONLY) for path, real in read.items()]
    mounts += [_mount(root, path, real, SOCKET) for path, real in files.sockets.items()]
    return sorted(mounts, key=lambda mount: str(mount["containerPath"]))


def _library_folder(files: DriverFiles, version: str) -> list[str]:
    """Tells programs in the container where libcuda.so lies, as the toolkit does since v1.19."""
    folders = {posixpath.dirname(path) for path in files.libraries if path.endswith(f"/libcuda.so.{version}")}
    return [f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(sorted(folders))}"] if folders else []


def _hooks(settings: Settings, files: DriverFiles, version: str) -> dict[str, Edits]:
    """What NVIDIA's binary is to do in the container before it starts: the hook's name to the hook."""
    binary = settings.get("nvidiaCDIHookPath") or ""
    disabled = set(_texts(settings.get("cdiDisableHooks")))
    if not binary or not files.libraries or ALL in disabled:
        return {}
    links = [
        f"{posixpath.relpath(path, posixpath.dirname(link))}::{link}" for link, path in files.links.items()
    ]
    folders = sorted({posixpath.dirname(path) for path in files.libraries})
    arguments = {
        "create-symlinks": [text for link in sorted(links) for text in ("--link", link)],
        "enable-cuda-compat": [f"--host-driver-version={version}"],
        "update-ldcache": [text for folder in folders for text in ("--folder", folder)],
        "disable-device-node-modification": [],
        "update-application-profile": [],
    }
    # nvidia-ctk has the hooks below a command of its own, nvidia-cdi-hook is made of nothing else.
    name = posixpath.basename(binary)
    command = [name, "hook"] if name == "nvidia-ctk" else [name]
    return {
        hook: {
            "hookName": "createContainer",
            "path": binary,
            "args": [*command, hook, *more],
            "env": HOOK_ENV,
        }
        for hook, more in arguments.items()
        if hook not in disabled
    }


def _driver(settings: Settings, version: str) -> tuple[Root, DriverFiles]:
    """The first root that holds the driver, and what it holds."""
    explicit = WITH_EXPLICIT in _texts(settings.get("cdiFeatureFlags"))
    roots = _driver_roots(settings)
    found = ((root, driverfiles.find(root, version, explicit)) for root in roots)
    return next(((root, files) for root, files in found if files.libraries), (roots[0], DriverFiles()))


def _driver_roots(settings: Settings) -> list[Root]:
    """Where the driver may lie: mounted for us, or, without a container around us, at the host's own path."""
    host = settings.get("driverRoot") or "/"
    return [Root(seen, host) for seen in (settings.get("containerDriverRoot") or MOUNTED, host)]


def _attribute(devices: Sequence[Device], name: str) -> str:
    """A fact that is the same for all devices; one that is not well may lack it."""
    return next((device.attributes[name] for device in devices if device.attributes.get(name)), "")


def _texts(value: Any) -> list[str]:
    """A setting that is a list of text, or one text."""
    return [value] if isinstance(value, str) else list(value or ())
