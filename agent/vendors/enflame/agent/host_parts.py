"""What Enflame's cards need beside the library: the driver, the container runtime, efsmi. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.vendor_api.agent import HostPart, HostRuntime
from agent.vendors.enflame.shared.constants import EFSMI, EFSMI_FOLDERS
from agent.vendors.enflame.shared.sysfs import NAMES

from .options import Options

RUNTIME_NAME = "Enflame's container runtime"
#: Files of enflame-container-toolkit. One of them is enough, since the runtime may lie elsewhere.
RUNTIME = ("/usr/bin/enflame-container-runtime", "/etc/enflame-container-runtime/config.toml")


def host_parts(options: Options, *, sliced: bool) -> tuple[HostPart, ...]:
    """The parts; efsmi is one where slices of the hardware are offered (`sliced`)."""
    return (_driver(options), _runtime(options), *([_tool(options)] if sliced else []))


def _driver(options: Options) -> HostPart:
    return HostPart(
        "the kernel's driver",
        tuple(f"{options.sysfs or '/sys'}/module/{it}" for it in NAMES),
        "no card has a device node",
        "modprobe enflame; if this module does not exist, install Enflame's driver for this kernel (uname "
        "-r)",
    )


def _runtime(options: Options) -> HostPart:
    """Enflame's runtime: needed where the agent gives containers no device nodes."""
    return HostPart(
        RUNTIME_NAME,
        RUNTIME,
        _consequence(options),
        "install enflame-container-toolkit, and let its runtime be the default one of containerd",
        needed=not options.device_nodes,
        on_host=True,
    )


def host_runtime(options: Options) -> HostRuntime:
    """Enflame's container runtime, and what containers lack without the runtime."""
    return HostRuntime(RUNTIME_NAME, "enflame", ("enflame-container-runtime",), _consequence(options))


def _consequence(options: Options) -> str:
    if options.device_nodes:
        return "containers get their device nodes, and no libraries of Enflame but those in their images"
    return "no container sees a card, because the setting deviceNodes is false"


def _tool(options: Options) -> HostPart:
    return HostPart(
        "Enflame's tool efsmi",
        (options.efsmi,) if options.efsmi else (EFSMI, *_places(options)),
        f"no card offers {options.brand.drs}",
        "install Enflame's driver package, which has efsmi; into a pod Enflame's container runtime mounts "
        "efsmi if ENFLAME_DRIVER_CAPABILITIES=utility is set; "
        "without that runtime mount the directory of "
        "efsmi (with the chart vendors.enflame.libraries) and set efsmi to its path",
        needed=False,
    )


def _places(options: Options) -> Iterator[str]:
    roots = dict.fromkeys(["", options.container_driver_root.rstrip("/")])
    return (f"{root}{folder}/{EFSMI}" for root in roots for folder in EFSMI_FOLDERS)
