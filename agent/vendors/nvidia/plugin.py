"""Registers NVIDIA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agent.vendor_api.agent import Device, Host, NodeFacts, Offers, ReplacedPlugins, Settings, Signs, Vendor
from agent.vendor_api.config_inputs import ConfigInputs
from agent.vendor_api.hooks import hookimpl

from .agent.config_file import CONFIG_FILE
from .agent.container_edits import VISIBLE_DEVICES, container_edits
from .agent.exporters import EXPORTERS
from .agent.host_parts import host_parts, host_runtime
from .agent.labels import labels
from .agent.names import DOMAIN, GPU
from .agent.offering import check_rules, offering
from .agent.options import DEFAULTS, SETTINGS, Options
from .agent.plugin_flags import FLAG_GROUP
from .agent.replaced_plugins import cards_of_answer
from .shared import library_places

#: Files of the loaded driver; the last one is WSL's.
DRIVER = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
PCI_VENDOR = "0x10de"
#: The sockets of NVIDIA's own plugin and of HAMi's, which is made of it (k8s-device-plugin v0.20,
#: internal/plugin/server.go; up to v0.6.0, main.go), and gpu-manager's two (gpu-manager v1.1.5, pkg/types).
SOCKETS = ("nvidia.sock", "nvidia-gpu*.sock", "nvidia-mig-*.sock", "vcore.sock", "vmemory.sock")
#: The resources that these serve. Other plugins of NVIDIA count things that are no cards under the domain.
RESOURCES = (GPU, f"{GPU}.*", f"{DOMAIN}mig-*", "tencent.com/vcuda-core", "tencent.com/vcuda-memory")


@hookimpl
def register_config_inputs() -> ConfigInputs:
    return ConfigInputs(FLAG_GROUP, formats=(CONFIG_FILE,))


@hookimpl
def register_backend(settings: Mapping[str, Any]) -> Vendor:
    options = Options.read(settings)
    sysfs = options.sysfs or "/sys"
    return Vendor(
        name="nvidia",
        backend="agent.vendors.nvidia.child.backend:NvmlBackend",
        resource=GPU,
        container_edits=partial(container_edits, options),
        settings=Settings(options.for_backend(), DEFAULTS, options.warnings(), SETTINGS),
        offers=Offers(
            resources=partial(offering, options),
            check_rules=partial(check_rules, options),
            cdi_only=options.by_cdi,
        ),
        publishes=NodeFacts(
            labels=partial(labels, options),
            machine_label=f"{GPU}.machine",
            time_label=f"{DOMAIN}gfd.timestamp",
        ),
        replaces=ReplacedPlugins(sockets=SOCKETS, resources=RESOURCES, cards_of_answer=cards_of_answer),
        host=Host(
            libraries=partial(library_places.searched, options.for_backend()),
            signs=Signs((f"{sysfs}/module/nvidia", *DRIVER), pci=(PCI_VENDOR,), sysfs=sysfs),
            parts=host_parts(options),
            runtime=host_runtime(options),
            devices_variable=VISIBLE_DEVICES,
            environment=("CUDA_", "NVIDIA_"),
        ),
        exporters=EXPORTERS,
        topology_text=topology_text,
    )


def topology_text(text: str) -> Sequence[Device]:
    """The cards in the output of `nvidia-smi topo -m`; ValueError for other texts."""
    from .agent.topology_matrix import cards_of_matrix  # no agent reads such a text

    return cards_of_matrix(text)
