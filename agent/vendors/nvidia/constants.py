"""What the two halves of this vendor call by one name: the child writes it, the agent's half reads it.

Standard library only: the child imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.vendor_api import backend
from agent.vendor_api.backend import Device

# Attributes of devices. One that is not known is absent; a list is joined with commas.

# Of the node, on every device.
DRIVER_VERSION = backend.DRIVER_VERSION  # 580.65.06
CUDA_VERSION = "cuda-version"  # 13.0, the newest that the driver serves
CONTROL_NODES = "control-nodes"  # list: /dev/nvidiactl,/dev/nvidia-uvm
DEV_ROOT = "dev-root"  # below what directory of the host /dev lies, where it is not where the settings say
IMEX_CHANNELS = "imex-channels"  # list of numbers; those of the settings that exist
CDI_EXTRAS = "cdi-extras"  # list of EXTRAS that have a CDI spec; empty where those that are enabled have none

# Of a GPU.
COMPUTE_CAPABILITY = "compute-capability"  # 9.0; of its MIG devices too
PCI_DEVICE_ID = "pci-device-id"  # 0x233010de
PCI_CLASS = "pci-class"  # 0x030200
PCIE_ROOT = backend.PCIE_ROOT  # pci0000:3a
MIG_CAPABLE = "mig-capable"  # YES or NO
MIG_MODE = "mig-mode"  # MIG_ON or MIG_OFF; of those that are capable alone
FABRIC = "fabric"  # <cluster's uuid>.<clique's number>; of those that are attached to one alone
VGPU_DRIVER_VERSION = "vgpu-driver-version"  # 525.60.13, of the host; of vGPUs alone
VGPU_DRIVER_BRANCH = "vgpu-driver-branch"  # r525_00; of vGPUs alone

YES, NO = "true", "false"
MIG_ON, MIG_OFF = "enabled", "disabled"

# Of a MIG device.
MIG_PROFILE = "mig-profile"  # [<c>c.]<g>g.<gb>gb and a suffix: 1g.10gb, 1c.2g.20gb, 1g.10gb+me
GI, CI = "gi", "ci"  # numbers of its GPU instance, and of its compute instance there
MULTIPROCESSORS = "multiprocessors"  # these and the following are counts
SLICES_GI, SLICES_CI = "slices-gi", "slices-ci"
ENGINES_COPY, ENGINES_DECODER, ENGINES_ENCODER = "engines-copy", "engines-decoder", "engines-encoder"
ENGINES_JPEG, ENGINES_OFA = "engines-jpeg", "engines-ofa"
ENGINES = (ENGINES_COPY, ENGINES_DECODER, ENGINES_ENCODER, ENGINES_JPEG, ENGINES_OFA)

# CDI: what containers name, and what the specs have.

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
CDI_STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})
CDI_GPU, CDI_IMEX = "gpu", "imex-channel"
#: Stands for all devices of a kind.
CDI_ALL = "all"
GDRCOPY, GDS, MOFED = "gdrcopy", "gds", "mofed"
#: Kinds that a setting enables, by that setting's key; each has the device `all` alone.
EXTRAS: Mapping[str, str] = {GDRCOPY: "gdrcopyEnabled", GDS: "gdsEnabled", MOFED: "mofedEnabled"}

#: Where the driver's root is mounted for the agent unless said.
DRIVER_ROOT = "/driver-root"


def index_of(device: Device) -> str:
    """The index as NVIDIA writes it: 0, or 0:1 of a MIG device."""
    return f"{device.index}" if device.slice is None else f"{device.index}:{device.slice}"


def channel_node(number: str) -> str:
    """The device node that the driver makes of an IMEX channel."""
    return f"/dev/nvidia-caps-imex-channels/channel{number}"


def in_mig_mode(gpu: Device) -> bool:
    return gpu.attributes.get(MIG_MODE) == MIG_ON


def of_node(devices: Sequence[Device], attribute: str) -> str:
    """What the devices say of the node; one that cannot be read may say nothing."""
    return next((it.attributes[attribute] for it in devices if it.attributes.get(attribute)), "")


def list_of_node(devices: Sequence[Device], attribute: str) -> list[str]:
    return [it for it in of_node(devices, attribute).split(",") if it]
