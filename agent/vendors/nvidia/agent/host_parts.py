"""What NVIDIA's cards need beside the library: the driver, the container runtime. Pure."""

from __future__ import annotations

from agent.vendor_api.agent import HostPart, HostRuntime

from .options import Options

PROGRAMS = ("nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy")
#: Where packages and the GPU operator install the runtime, and the hook that Docker and CRI-O may call alone.
RUNTIME = (
    *("/usr/bin/nvidia-container-runtime", "/usr/local/nvidia/toolkit/nvidia-container-runtime"),
    *("/usr/bin/nvidia-container-runtime-hook", "/etc/nvidia-container-runtime/config.toml"),
)
NAME = "NVIDIA's container runtime"


def host_parts(options: Options) -> tuple[HostPart, ...]:
    """The driver, and the container runtime where containers do not get all by CDI names."""
    return (_driver(options), *(() if options.by_cdi else (_runtime(options),)))


def host_runtime(options: Options) -> HostRuntime | None:
    """NVIDIA's container runtime; None if containers get their devices by CDI names alone."""
    if options.by_cdi:
        return None
    return HostRuntime(NAME, "nvidia", PROGRAMS, _consequence(options))


def _driver(options: Options) -> HostPart:
    return HostPart(
        "the kernel's driver",
        (
            f"{options.sysfs or '/sys'}/module/nvidia",
            f"{options.procfs or '/proc'}/driver/nvidia",
            "/dev/dxg",
        ),
        "no card can be used",
        "modprobe nvidia; if this module does not exist, install NVIDIA's driver for this kernel (uname -r)",
        proven_by_devices=True,
    )


def _runtime(options: Options) -> HostPart:
    return HostPart(
        NAME,
        RUNTIME,
        _consequence(options),
        "install nvidia-container-toolkit, then nvidia-ctk runtime configure --set-as-default with --runtime "
        "docker, containerd or crio; or set deviceListStrategy to cdi-cri, which needs no container runtime "
        "of NVIDIA",
        needed=False,  # the runtime may lie elsewhere
        on_host=True,
    )


def _consequence(options: Options) -> str:
    if options.pass_device_specs:
        return "containers get their device nodes, and no driver libraries but those in their images"
    return "no container sees a card"
