"""What MetaX's cards need beside the library: the driver, the container runtime. Pure."""

from __future__ import annotations

from agent.vendor_api.agent import HostPart, HostRuntime
from agent.vendors.metax.shared.sysfs import MODULE

from .options import Options

NAME = "MetaX's container runtime"
PROGRAM = "mx-container-runtime"
#: Where MetaX's operator installs the runtime, and where a package does.
RUNTIME = (f"/var/lib/metax/tools/usr/bin/{PROGRAM}", f"/usr/bin/{PROGRAM}")
CONSEQUENCE = "containers get their device nodes, and no libraries of MetaX but those in their images"
HOST_RUNTIME = HostRuntime(NAME, "metax", (PROGRAM,), CONSEQUENCE)


def host_parts(options: Options) -> tuple[HostPart, ...]:
    """What MetaX's cards need on a node beside the library."""
    return (
        HostPart(
            "the kernel's driver",
            (f"{options.sysfs or '/sys'}/{MODULE}",),
            "no card has a device node",
            "modprobe metax; if this module does not exist, install MetaX's driver for this kernel (uname "
            "-r)",
            proven_by_devices=True,
        ),
        HostPart(
            NAME,
            RUNTIME,
            CONSEQUENCE,
            "install MetaX's container-runtime (from its operator or package), or use images that have "
            "MetaX's "
            "libraries",
            needed=False,
            on_host=True,
        ),
    )
