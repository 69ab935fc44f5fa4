"""What the two halves of this vendor call by one name: the child writes it, the agent's half reads it.

Standard library only: the child imports it.
"""

from __future__ import annotations

import re

from agent.vendor_api import backend
from agent.vendors.common import host

#: Where a container sees the host's files, unless `containerDriverRoot` says otherwise.
DRIVER_ROOT = host.DRIVER_ROOT

#: Enflame's tool, and the folders in which packages put it, here or below the host's root; PATH goes first.
EFSMI, EFSMI_FOLDERS = "efsmi", ("/usr/bin", "/usr/local/bin")

# Attributes of devices. One that is not known is absent; a list is joined with commas.

# Of the node, on every device.
DRIVER_VERSION = backend.DRIVER_VERSION  # 1.4.0.3
LIBRARY_VERSION = "library-version"  # 1.2.3.5
CONTROL_NODE = "control-node"  # /dev/gcuctl, where it is there

# Of a card.
PCIE_ROOT = backend.PCIE_ROOT  # pci0000:3a
SERIAL = "serial"
PRODUCT = "product"  # S60
ARCH = "arch"  # scorpio
#: What the card is to virtual machines, as efsmi says it: Disable, DRS or SRIOV. Where DRS is wanted alone.
VIRTUAL = "virtual"
DISABLED, DRS, SRIOV = "Disable", "DRS", "SRIOV"
#: The profiles of slices that the card's hardware makes: a list of NAME:ID; absent where none is known.
PROFILES = "profiles"
#: How many of the smallest slices a card is.
SLICES = 6
#: Slices of the hardware that we did not make: how many, and how many sixths of the card they take.
FOREIGN_SLICES, FOREIGN_SIXTHS = backend.FOREIGN_SLICES, "foreign-sixths"

#: Parameters of a claim on a slice of the hardware: its profile's name, and number.
PROFILE, PROFILE_ID = "profile", "profile-id"

#: How a profile is called: how many of the card's slices it takes, and its GB.
PROFILE_NAME = re.compile(r"(?P<slices>[1-9][0-9]{0,2})g\.(?P<gigabytes>[1-9][0-9]{0,3})gb", re.ASCII)

#: How Enflame's exporter makes a card's uuid of what EFML tells.
UUID = "GCU-"

# CDI: what containers with slices of the hardware name.
CDI_VENDOR, CDI_CLASS = "enflame.com", "drs-gcu"
CDI_KIND = f"{CDI_VENDOR}/{CDI_CLASS}"
#: The one spec of all slices.
CDI_FILE = f"{CDI_VENDOR}-{CDI_CLASS}.json"

#: Setting of the child: whether the node gives out slices of the hardware, so that efsmi is asked about them.
DRS_WANTED = "drs"
#: Reason of the fault of cards that sysfs alone shows.
NO_LIBRARY = backend.NO_LIBRARY


def slices(profile: str) -> int:
    """How many of the card's slices one of a profile takes; 0 where it is no profile's name."""
    return _part(profile, "slices")


def gigabytes(profile: str) -> int:
    return _part(profile, "gigabytes")


def _part(profile: str, part: str) -> int:
    found = PROFILE_NAME.fullmatch(profile)
    return int(found[part]) if found else 0
