"""Registers NVIDIA."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.vendor_api.agent import Signs, Vendor
from agent.vendor_api.hooks import hookimpl

from . import library_places
from .agent.container_edits import VISIBLE_DEVICES, container_edits
from .agent.host_parts import host_parts, host_runtime
from .agent.labels import labels
from .agent.names import DOMAIN, GPU
from .agent.offering import judge, offering
from .agent.options import DEFAULTS, SETTINGS, Options
from .agent.other_plugins import cards_told

__all__ = ["SETTINGS", "register_backend"]

#: Of the driver, where it runs; the last is WSL's.
DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
PCI_VENDOR = "0x10de"
#: The sockets of NVIDIA's own plugin and of HAMi's, which is made of it (k8s-device-plugin v0.20,
#: internal/plugin/server.go; up to v0.6.0, main.go), and gpu-manager's two (gpu-manager v1.1.5, pkg/types).
RIVALS = ("nvidia.sock", "nvidia-gpu*.sock", "nvidia-mig-*.sock", "vcore.sock", "vmemory.sock")
#: What these give out of the cards; NVIDIA's other plugins count what is no card under its domain.
FORMER = (GPU, f"{GPU}.*", f"{DOMAIN}mig-*", "tencent.com/vcuda-core", "tencent.com/vcuda-memory")


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    sysfs = options.sysfs or "/sys"
    return Vendor(
        name="nvidia",
        backend="agent.vendors.nvidia.child.backend:NvmlBackend",
        container_edits=partial(container_edits, options),
        resource=GPU,
        settings=options.for_backend(),
        defaults=DEFAULTS,
        resources=partial(offering, options),
        judge=partial(judge, options),
        labels=partial(labels, options),
        machine_label=f"{GPU}.machine",
        time_label=f"{DOMAIN}gfd.timestamp",
        by_cdi=options.by_cdi,
        doubts=options.doubts(),
        visible=VISIBLE_DEVICES,
        rivals=RIVALS,
        former=FORMER,
        cards_told=cards_told,
        host_parts=host_parts(options),
        host_runtime=host_runtime(options),
        libraries=partial(library_places.searched, options.for_backend()),
        signs=Signs((f"{sysfs}/module/nvidia", *DRIVER), pci=(PCI_VENDOR,), sysfs=sysfs),
    )
