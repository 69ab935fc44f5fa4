"""Other plugins of the same cards: what they list and answer, as their sources have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.vendor_api.agent import ContainerEdits, Device, DeviceNode, Mount

from .uses import Kind

Answer = Callable[[Sequence[Device]], ContainerEdits]


@dataclass(frozen=True, slots=True)
class Plugin:
    """`of`: into how many shares, or bytes an ID, the plugin counts a card; 0 where whole.

    `ids`: device and number to ID. `with_it`: a resource that each pod of this one has, too, which the plugin
    answers with nothing.
    """

    name: str
    resource: str
    kind: Kind
    ids: Callable[[Device, int], str]
    answer: Answer
    of: int = 0
    with_it: str = ""
    #: Whether its scheduler chooses the card, whatever the IDs say.
    steered: bool = False
    #: Whether a share is so much of the card, and not just a turn beside others.
    sized: bool = False
    #: How many IDs of a card a pod has.
    takes: int = 1

    def count(self, device: Device) -> int:
        """IDs of one card."""
        return {"whole": 1, "share": self.of}.get(self.kind) or device.memory // max(1, self.of)

    def listed(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """ID to card."""
        return {self.ids(it, n): it.uuid for it in devices for n in range(self.count(it))}


def visible(devices: Sequence[Device]) -> ContainerEdits:
    """k8s-device-plugin v0.20, internal/plugin/server.go; gpu-manager v1.1.5, allocator/nvidia."""
    return ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": ",".join(it.uuid for it in devices)})


def mounted(devices: Sequence[Device]) -> ContainerEdits:
    """The same plugin, where deviceListStrategy is volume-mounts."""
    where = "/var/run/nvidia-container-devices"
    mounts = tuple(Mount(f"{where}/{it.uuid}", "/dev/null") for it in devices)
    return ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": where}, mounts=mounts)


def by_cdi(devices: Sequence[Device]) -> ContainerEdits:
    """The same plugin, where deviceListStrategy is cdi-cri."""
    return ContainerEdits(cdi_devices=tuple(f"k8s.device-plugin.nvidia.com/gpu={it.uuid}" for it in devices))


def by_index(devices: Sequence[Device]) -> ContainerEdits:
    """The same plugin, where deviceIDStrategy is index."""
    return ContainerEdits(env={"NVIDIA_VISIBLE_DEVICES": ",".join(str(it.index) for it in devices)})


def passed_through(devices: Sequence[Device]) -> ContainerEdits:
    """kubevirt-gpu-device-plugin v1.3, pkg/device_plugin/generic_device_plugin.go: for virtual machines."""
    return ContainerEdits(env={"PCI_RESOURCE_NVIDIA_COM_A100": ",".join(it.pci or "" for it in devices)})


def nodes(devices: Sequence[Device]) -> ContainerEdits:
    """MetaX's plugin gives device nodes; enflame's too, beside its variable."""
    return ContainerEdits(device_nodes=tuple(DeviceNode(path, path) for it in devices for path in it.paths))


def minors(devices: Sequence[Device]) -> ContainerEdits:
    """gcushare v3.6.5, pkg/server: the card that its scheduler chose, by its minor."""
    return ContainerEdits(env={"ENFLAME_VISIBLE_DEVICES": ",".join(str(it.minor) for it in devices)})


def _uuid(it: Device, n: int) -> str:
    return it.uuid


def _pci(it: Device, n: int) -> str:
    return it.pci or ""


def _share(it: Device, n: int) -> str:
    return f"{it.uuid}::{n}"


def _minor(it: Device, n: int) -> str:
    return f"{it.minor}-{n}"


def _core(it: Device, n: int) -> str:
    return f"tencent.com/vcuda-core-{100 * it.index + n}"


NVIDIA = (
    Plugin("nvidia", "nvidia.com/gpu", "whole", _uuid, visible),
    Plugin("nvidia, mounted", "nvidia.com/gpu", "whole", _uuid, mounted),
    Plugin("nvidia, by CDI", "nvidia.com/gpu", "whole", _uuid, by_cdi),
    Plugin("nvidia, by index", "nvidia.com/gpu", "whole", _uuid, by_index),
    Plugin("kubevirt", "nvidia.com/A100", "whole", _pci, passed_through),
    Plugin("nvidia, in two", "nvidia.com/gpu", "share", _share, visible, of=2),
    Plugin("nvidia, renamed in four", "nvidia.com/gpu.shared", "share", _share, visible, of=4),
    Plugin(
        "HAMi",
        "nvidia.com/gpu",
        "share",
        lambda it, n: f"{it.uuid}-{n}",
        visible,
        of=3,
        steered=True,
        sized=True,
    ),
    Plugin(
        "gpu-manager",
        "tencent.com/vcuda-core",
        "share",
        _core,
        visible,
        of=100,
        with_it="tencent.com/vcuda-memory",
        steered=True,
        sized=True,
        takes=30,
    ),
)
METAX = (Plugin("metax-gpu-device", "metax-tech.com/gpu", "whole", _uuid, nodes),)
ENFLAME = (
    Plugin("enflame", "enflame.com/gcu", "whole", lambda it, n: str(it.minor), minors),
    Plugin("gcushare", "enflame.com/shared-gcu", "share", _minor, minors, of=6, steered=True, sized=True),
    Plugin(
        "gcushare in four", "enflame.com/shared-gcu", "share", _minor, minors, of=4, steered=True, sized=True
    ),
)
OF: Mapping[str, Sequence[Plugin]] = {"nvidia": NVIDIA, "metax": METAX, "enflame": ENFLAME}
