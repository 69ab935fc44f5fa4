"""What MetaX's cards need beside the library: the driver, the container runtime. Pure."""

from __future__ import annotations

from agent.vendor_api.agent import HostPart, HostRuntime
from agent.vendors.metax.shared.sysfs import MODULE

from .options import Options

NAME = "MetaX's container runtime"
PROGRAM = "mx-container-runtime"
#: Where MetaX's operator installs the runtime, and where a package does.
RUNTIME = (f"/var/lib/metax/tools/usr/bin/{PROGRAM}", f"/usr/bin/{PROGRAM}")
CONSEQUENCE = "containers get the nodes of their cards, and only what their image has of MetaX's libraries"
HOST_RUNTIME = HostRuntime(NAME, "metax", (PROGRAM,), CONSEQUENCE)


def host_parts(options: Options) -> tuple[HostPart, ...]:
    """What MetaX's cards need on a node beside the library."""
    return (
        HostPart(
            "the kernel's driver",
            (f"{options.sysfs or '/sys'}/{MODULE}",),
            "no card has a device node",
            "modprobe metax; where there is no such module install MetaX's driver for this kernel (uname -r)",
            proven_by_devices=True,
        ),
        HostPart(
            NAME,
            RUNTIME,
            CONSEQUENCE,
            "install MetaX's container-runtime (of its operator or package), or have images with MetaX's "
            "libraries",
            needed=False,
            on_host=True,
        ),
    )
