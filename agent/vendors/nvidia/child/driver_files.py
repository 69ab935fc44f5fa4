"""Finds the files of NVIDIA's driver that a container needs, by their names below the driver's root.

These are the files that nvidia-container-toolkit v1.20 injects (pkg/nvcdi/driver-nvml.go,
internal/discover/{graphics,ipc,symlinks}.go, internal/lookup/root, pkg/lookup/library.go).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice

from agent.vendors.nvidia.shared import ldcache
from agent.vendors.nvidia.shared.driver_root import Root

MAX_LIBRARIES = 512

#: Groups of library folders. The first group that has the driver is used; after them the loader's cache is
#: searched. /usr/lib has 32-bit libraries on hosts with the other folders, so it is a group of its own.
LIBRARY_FOLDERS = (
    (
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/lib/aarch64-linux-gnu/nvidia/current",
        "/lib64",
        "/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
        "/lib/x86_64-linux-gnu/nvidia/current",
        "/lib/aarch64-linux-gnu/nvidia/current",
    ),
    ("/usr/lib", "/lib"),
)
#: A folder in each of these with more libraries.
VDPAU = "vdpau"
#: Libraries of the driver with version numbers of their own.
OTHER_LIBRARIES = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
#: Libraries for the feature flag enable-explicit-driver-libraries: images can also bring them.
EXPLICIT_LIBRARIES = (
    "libEGL.so*",
    "libGL.so*",
    "libGLESv1_CM.so*",
    "libGLESv2.so*",
    "libGLX.so*",
    "libGLdispatch.so*",
    "libOpenCL.so*",
    "libOpenGL.so*",
    "libnvidia-api.so*",
)
#: Links that programs need even if the host lacks them: the link to its target, which ends with the version.
WANTED_LINKS = {
    "libcuda.so.1": "libcuda.so",
    "libcuda.so": "libcuda.so",
    "libnvidia-ml.so.1": "libnvidia-ml.so",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so",
    "libGLX_indirect.so.0": "libGLX_nvidia.so",
    "gbm/nvidia-drm_gbm.so": "libnvidia-allocator.so",
}

PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)

#: Folders of the host's X.Org with modules, in addition to the driver's own folders.
XORG_ROOTS = ("/usr/lib", "/usr/lib64")
XORG_FOLDERS = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)
XORG_MODULE, XORG_SERVER = "nvidia_drv.so", "libglxserver_nvidia.so"

FIRMWARE_FOLDER, FIRMWARE = "/lib/firmware/nvidia", "gsp*.bin"

CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
#: Files that containers get below /usr/share, from the first folder of the host that has them.
SHARED_CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
ETC_CONFIGS = (
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)

SOCKET_FOLDERS = ("/run", "/var/run")
SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """Files of the driver: path in the container to path below the driver's root, with all links resolved."""

    #: Both paths are the same.
    libraries: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    #: More names of these files, such as libcuda.so.1: link to target, both as paths in the container.
    links: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, str] = field(default_factory=dict)


def find(root: Root, version: str, explicit: bool = False) -> DriverFiles:
    """The driver's files of this version below the root. Empty if the driver's libraries are not there.

    `explicit` adds the libraries of the feature flag enable-explicit-driver-libraries.
    """
    patterns = (*OTHER_LIBRARIES, *(EXPLICIT_LIBRARIES if explicit else ()))
    for choice in _choices(root) if version else ():
        folders = _listed(root, choice)
        libraries = _libraries(root, folders, f".so.{version}", patterns)
        if any(path.endswith(f".so.{version}") for path in libraries):
            return _complete(root, version, folders, libraries)
    return DriverFiles()


Listed = Mapping[str, Sequence[str]]


def _choices(root: Root) -> Iterator[Sequence[str]]:
    """The groups of folders that may have the libraries: the usual ones, then those of the loader's cache."""
    yield from LIBRARY_FOLDERS
    yield ldcache.folders(root)


def _complete(root: Root, version: str, folders: Listed, libraries: Mapping[str, str]) -> DriverFiles:
    modules, servers = _xorg(root, folders, version)
    others = {
        **_first(root.program, (*_program_folders(folders), *PROGRAM_FOLDERS), PROGRAMS),
        **_firmware(root, version),
        **_first(root.file, CONFIG_FOLDERS, SHARED_CONFIGS, to="/usr/share"),
        **_first(root.file, (*CONFIG_FOLDERS, "/"), ETC_CONFIGS, to="/etc"),
        **modules,
    }
    return DriverFiles(
        libraries=libraries,
        links={**_wanted(libraries, version), **_links(root, folders, libraries), **servers},
        others=others,
        sockets=_first(root.socket, SOCKET_FOLDERS, SOCKETS),
    )


def _program_folders(folders: Iterable[str]) -> list[str]:
    """The program folders of a driver with folders of its own: /usr/local/nvidia/bin beside .../lib64.

    They are searched first: on such hosts nvidia-smi in another folder may be a script that calls this one.
    """
    return [posixpath.join(posixpath.dirname(folder), "bin") for folder in folders]


def _listed(root: Root, folders: Iterable[str]) -> Listed:
    """The existing folders, each once, with the names in them."""
    both = (path for folder in folders for path in (folder, f"{folder}/{VDPAU}"))
    found = dict.fromkeys(real for real in map(root.folder, both) if real)
    return {folder: root.names(folder) for folder in found}


def _libraries(root: Root, folders: Listed, ending: str, patterns: Sequence[str]) -> dict[str, str]:
    named = (
        f"{folder}/{name}"
        for folder, names in folders.items()
        for name in names
        if name.endswith(ending) or any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    found = (root.file(path) for path in islice(named, MAX_LIBRARIES))
    return {real: real for real in found if real}


def _links(root: Root, folders: Listed, libraries: Mapping[str, str]) -> dict[str, str]:
    """The links in the libraries' folders that lead to one of the libraries."""
    stems = set(map(_stem, libraries))
    named = (
        f"{folder}/{name}" for folder, names in folders.items() for name in names if _stem(name) in stems
    )
    found = {path: root.real(path) for path in islice(named, 2 * MAX_LIBRARIES)}
    return {path: real for path, real in found.items() if real and real in libraries and path != real}


def _stem(path: str) -> str:
    """The name of a library without its ending: libcuda for /usr/lib64/libcuda.so.1."""
    return posixpath.basename(path).partition(".so")[0]


def _wanted(libraries: Mapping[str, str], version: str) -> dict[str, str]:
    by_name = {posixpath.basename(path): path for path in libraries}
    ends = {name: by_name.get(f"{base}.{version}") for name, base in WANTED_LINKS.items()}
    return {posixpath.join(posixpath.dirname(path), name): path for name, path in ends.items() if path}


def _first(
    find: Callable[[str], str | None], folders: Sequence[str], names: Iterable[str], to: str = ""
) -> dict[str, str]:
    """Container path to real path of each name, in the first folder that has it.

    The container has the file in the folder `to`, or at the host's path if `to` is empty.
    """
    found = {}
    for name in names:
        for folder in folders:
            real = find(posixpath.join(folder, name))
            if real:
                found[posixpath.join(to or folder, name)] = real
                break
    return found


def _firmware(root: Root, version: str) -> dict[str, str]:
    folder = f"{FIRMWARE_FOLDER}/{version}"
    names = (name for name in root.names(folder) if fnmatchcase(name, FIRMWARE))
    found = {f"{folder}/{name}": root.file(f"{folder}/{name}") for name in names}
    return {path: real for path, real in found.items() if real}


def _xorg(root: Root, folders: Listed, version: str) -> tuple[dict[str, str], dict[str, str]]:
    """The X.Org modules, and the links to the server's module.

    X.Org's configuration names the modules, so containers have them at the host's paths.
    """
    places = [f"{folder}/{place}" for folder in (*folders, *XORG_ROOTS) for place in XORG_FOLDERS]
    modules = _first(root.file, places, (XORG_MODULE, f"{XORG_SERVER}.{version}"))
    servers = [path for path in modules if path.endswith(f"{XORG_SERVER}.{version}")]
    return modules, {path.removesuffix(f".{version}"): path for path in servers}
