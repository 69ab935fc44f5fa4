"""What the two halves of this vendor call by one name: the child writes it, the agent's half reads it.

Standard library only: the child imports it.
"""

from __future__ import annotations

from agent.vendor_api import backend
from agent.vendors.common import host

NATIVE, SHARED, SGPU, VGPU = "native", "shared", "sgpu", "vgpu"

#: Where a container sees the host's files, unless `containerDriverRoot` says otherwise.
DRIVER_ROOT = host.DRIVER_ROOT

# Attributes of devices. One that is not known is absent; a list is joined with commas.

# Of the node, on every device.
DRIVER_VERSION = backend.DRIVER_VERSION  # 3.6.11
MACA_VERSION = "maca-version"  # 3.5.3.18
CONTROL_NODES = "control-nodes"  # list: /dev/mxcd; those of the setting that exist
SYSFS = "sysfs"  # READ_ONLY where no slice can be made now: the library's writes would fail, or did
READ_ONLY = "read-only"

# Of a card.
PCIE_ROOT = backend.PCIE_ROOT  # pci0000:3a
VIRTUALISATION = "virtualisation"  # NONE, PF or VF
NONE, PF, VF = "none", "pf", "vf"
VIRTUAL_FUNCTIONS = "virtual-functions"  # how many the card is split into; absent where into none
#: Of a virtual function: its own address. `pci` is the card's where the card is here, too.
VF_PCI = "vf-pci"
LINK_ZONE = "link-zone"  # a number from 1; cards of one number reach each other over MetaXLink
DIES = "dies"  # of cards with several
SGPU_CAPABLE = "sgpu-capable"  # YES or NO: whether its driver and library know slices
SGPU_ON = "sgpu-on"  # YES or NO: whether slices are switched on now
SLICES = "slices"  # how many lie on it, ours and foreign; absent where none does
QOS = "qos"  # the policy of the hardware; where slices lie alone
#: MiB of all that slices may take; where slices are switched on alone. The card's memory has more.
SLICE_MEMORY = "slice-memory"
# What is on it that we did not make; absent where nothing is.
FOREIGN_SLICES, FOREIGN_COMPUTE = backend.FOREIGN_SLICES, "foreign-compute"  # a count; percent
FOREIGN_MEMORY = "foreign-memory"  # MiB
#: What bears our mark: ALLOCATION:PERCENT:MIB of a slice each, the first names of as many as a card can have.
OWN_SLICES = tuple(f"own-slice-{number}" for number in range(16))

#: What follows from the slices on a card.
LAYOUT = (
    *(SGPU_CAPABLE, SGPU_ON, SLICES, QOS, SLICE_MEMORY),
    *(FOREIGN_SLICES, FOREIGN_COMPUTE, FOREIGN_MEMORY, *OWN_SLICES),
)

YES, NO = "true", "false"
#: Reason of the fault of cards that sysfs alone shows.
NO_LIBRARY = backend.NO_LIBRARY

# CDI: what containers name.

CDI_VENDOR, CDI_CLASS = "metax-tech.com", "sgpu"
CDI_KIND = f"{CDI_VENDOR}/{CDI_CLASS}"

#: How the alias of a slice of ours begins; the allocation's id follows.
MARK = "xpu-"
