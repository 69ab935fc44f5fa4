"""Names that both halves of this vendor use: the backend writes them, the agent half reads them.

The backend imports this module, so it needs the standard library and the API alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.vendor_api import backend
from agent.vendor_api.backend import Device

# Attributes of devices. An unknown attribute is absent. A list is joined with commas.

# Attributes of the node, on every device.
DRIVER_VERSION = backend.DRIVER_VERSION  # 580.65.06
CUDA_VERSION = "cuda-version"  # 13.0, the newest that the driver serves
CONTROL_NODES = "control-nodes"  # list: /dev/nvidiactl,/dev/nvidia-uvm
DEV_ROOT = "dev-root"  # the host's directory that has /dev, if it is another one than in the settings
IMEX_CHANNELS = "imex-channels"  # list of numbers: the channels of the settings that exist
CDI_EXTRAS = "cdi-extras"  # list of EXTRAS with a CDI spec; empty if no enabled one has a spec

# Attributes of a GPU.
COMPUTE_CAPABILITY = "compute-capability"  # 9.0; MIG devices have it, too
PCI_DEVICE_ID = "pci-device-id"  # 0x233010de
PCI_CLASS = "pci-class"  # 0x030200
PCIE_ROOT = backend.PCIE_ROOT  # pci0000:3a
MIG_CAPABLE = "mig-capable"  # YES or NO
MIG_MODE = "mig-mode"  # MIG_ON or MIG_OFF; absent if the GPU does not support MIG
FABRIC = "fabric"  # <uuid of the cluster>.<number of the clique>; absent without a fabric
VGPU_DRIVER_VERSION = "vgpu-driver-version"  # 525.60.13, the host's driver; only for vGPUs
VGPU_DRIVER_BRANCH = "vgpu-driver-branch"  # r525_00, the host's driver; only for vGPUs

YES, NO = "true", "false"
MIG_ON, MIG_OFF = "enabled", "disabled"

# Attributes of a MIG device.
MIG_PROFILE = "mig-profile"  # [<c>c.]<g>g.<gb>gb and a suffix: 1g.10gb, 1c.2g.20gb, 1g.10gb+me
GI, CI = "gi", "ci"  # numbers of the GPU instance, and of the compute instance in that
MULTIPROCESSORS = "multiprocessors"  # this and the following are counts
SLICES_GI, SLICES_CI = "slices-gi", "slices-ci"
ENGINES_COPY, ENGINES_DECODER, ENGINES_ENCODER = "engines-copy", "engines-decoder", "engines-encoder"
ENGINES_JPEG, ENGINES_OFA = "engines-jpeg", "engines-ofa"
ENGINES = (ENGINES_COPY, ENGINES_DECODER, ENGINES_ENCODER, ENGINES_JPEG, ENGINES_OFA)

# CDI names.

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
CDI_STRATEGIES = frozenset({"cdi-annotations", "cdi-cri"})
CDI_GPU, CDI_IMEX = "gpu", "imex-channel"
#: The name for all devices of a kind.
CDI_ALL = "all"
GDRCOPY, GDS, MOFED = "gdrcopy", "gds", "mofed"
#: Kinds that a setting enables, with the key of that setting. Each has only the device `all`.
EXTRAS: Mapping[str, str] = {GDRCOPY: "gdrcopyEnabled", GDS: "gdsEnabled", MOFED: "mofedEnabled"}

#: Where the driver's root is mounted in the agent's container, unless a setting names another place.
DRIVER_ROOT = "/driver-root"


def index_of(device: Device) -> str:
    """The index as NVIDIA writes it: 0, or 0:1 for a MIG device."""
    return f"{device.index}" if device.slice is None else f"{device.index}:{device.slice}"


def channel_node(number: str) -> str:
    """The path of the driver's device node for an IMEX channel."""
    return f"/dev/nvidia-caps-imex-channels/channel{number}"


def in_mig_mode(gpu: Device) -> bool:
    """Whether the card is in MIG mode."""
    return gpu.attributes.get(MIG_MODE) == MIG_ON


def of_node(devices: Sequence[Device], attribute: str) -> str:
    """An attribute of the node, from the first device that has it. A faulty device may lack it."""
    return next((it.attributes[attribute] for it in devices if it.attributes.get(attribute)), "")


def list_of_node(devices: Sequence[Device], attribute: str) -> list[str]:
    """The elements of an attribute of the node that is a list with commas."""
    return [it for it in of_node(devices, attribute).split(",") if it]
