"""Names that both halves of this vendor use: the backend writes them, the agent half reads them.

The backend imports this module, so it needs the standard library and the API alone.
"""

from __future__ import annotations

from agent.vendor_api import backend
from agent.vendors.common import host

NATIVE, SHARED, SGPU, VGPU = "native", "shared", "sgpu", "vgpu"

#: Where a container has the host's files mounted, unless the setting `containerDriverRoot` names a place.
DRIVER_ROOT = host.DRIVER_ROOT

# Attributes of devices. An unknown attribute is absent. A list is joined with commas.

# Attributes of the node, on every device.
DRIVER_VERSION = backend.DRIVER_VERSION  # 3.6.11
MACA_VERSION = "maca-version"  # 3.5.3.18
CONTROL_NODES = "control-nodes"  # list: /dev/mxcd; the nodes of the setting that exist
SYSFS = "sysfs"  # READ_ONLY while no slice can be made, because sysfs is read-only
READ_ONLY = "read-only"

# Attributes of a card.
PCIE_ROOT = backend.PCIE_ROOT  # pci0000:3a
VIRTUALISATION = "virtualisation"  # NONE, PF or VF
NONE, PF, VF = "none", "pf", "vf"
VIRTUAL_FUNCTIONS = "virtual-functions"  # number of virtual functions of the card; absent if there are none
#: The address of a virtual function. `pci` of such a device is the card's, if the node has the card.
VF_PCI = "vf-pci"
LINK_ZONE = "link-zone"  # a number from 1; cards with the same number reach each other over MetaXLink
DIES = "dies"  # the number of dies, if there are several
SGPU_CAPABLE = "sgpu-capable"  # YES or NO: whether driver and library support slices
SGPU_ON = "sgpu-on"  # YES or NO: whether slices are switched on now
SLICES = "slices"  # number of slices on the card, own and foreign; absent if there are none
QOS = "qos"  # the policy of the card; absent without slices
#: MiB that all slices of the card may have together, less than its memory; absent while slices are off.
SLICE_MEMORY = "slice-memory"
# The foreign slices of the card; absent if there are none.
FOREIGN_SLICES, FOREIGN_COMPUTE = backend.FOREIGN_SLICES, "foreign-compute"  # a count; percent
FOREIGN_MEMORY = "foreign-memory"  # MiB
#: Own slices, one attribute each: ALLOCATION:PERCENT:MIB. A card uses the first of these names.
OWN_SLICES = tuple(f"own-slice-{number}" for number in range(16))

#: The attributes that describe the slices of a card.
LAYOUT = (
    *(SGPU_CAPABLE, SGPU_ON, SLICES, QOS, SLICE_MEMORY),
    *(FOREIGN_SLICES, FOREIGN_COMPUTE, FOREIGN_MEMORY, *OWN_SLICES),
)

YES, NO = "true", "false"
#: Reason of the fault of cards that only sysfs shows.
NO_LIBRARY = backend.NO_LIBRARY

# CDI names.

CDI_VENDOR, CDI_CLASS = "metax-tech.com", "sgpu"
CDI_KIND = f"{CDI_VENDOR}/{CDI_CLASS}"

#: The alias of an own slice begins with this mark; the id of the allocation follows.
MARK = "xpu-"
