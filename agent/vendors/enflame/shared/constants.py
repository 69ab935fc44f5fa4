"""Names that both halves of this vendor use: the backend writes them, the agent half reads them.

The backend imports this module, so it needs the standard library and the API alone.
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

# Attributes of the node, on every device.
DRIVER_VERSION = backend.DRIVER_VERSION  # 1.4.0.3
LIBRARY_VERSION = "library-version"  # 1.2.3.5
CONTROL_NODE = "control-node"  # /dev/gcuctl, if it exists

# Attributes of a card.
PCIE_ROOT = backend.PCIE_ROOT  # pci0000:3a
SERIAL = "serial"
PRODUCT = "product"  # S60
ARCH = "arch"  # scorpio
#: The card's mode in the table of efsmi: Disable, DRS or SRIOV. Absent where efsmi is not run.
VIRTUAL = "virtual"
DISABLED, DRS, SRIOV = "Disable", "DRS", "SRIOV"
#: The profiles of slices that the card offers: a list of NAME:ID. Absent if none is known.
PROFILES = "profiles"
#: A card has as many of the smallest slices.
SLICES = 6
#: Foreign slices: their number, and the sixths of the card that they take.
FOREIGN_SLICES, FOREIGN_SIXTHS = backend.FOREIGN_SLICES, "foreign-sixths"

#: Parameters of a claim on a slice of the hardware: name and number of its profile.
PROFILE, PROFILE_ID = "profile", "profile-id"

#: The name of a profile: the number of the card's slices that it takes, and its GB.
PROFILE_NAME = re.compile(r"(?P<slices>[1-9][0-9]{0,2})g\.(?P<gigabytes>[1-9][0-9]{0,3})gb", re.ASCII)

#: Enflame's exporter puts this before the uuid that EFML tells.
UUID = "GCU-"

# CDI names for containers with slices of the hardware.
CDI_VENDOR, CDI_CLASS = "enflame.com", "drs-gcu"
CDI_KIND = f"{CDI_VENDOR}/{CDI_CLASS}"
#: The spec file of all slices.
CDI_FILE = f"{CDI_VENDOR}-{CDI_CLASS}.json"

#: Setting of the backend: whether the node offers slices of the hardware, so that the backend runs efsmi.
DRS_WANTED = "drs"
#: Reason of the fault of cards that only sysfs shows.
NO_LIBRARY = backend.NO_LIBRARY


def slices(profile: str) -> int:
    """How many of the card's slices an instance of the profile takes; 0 for a text that is no profile."""
    return _part(profile, "slices")


def gigabytes(profile: str) -> int:
    return _part(profile, "gigabytes")


def _part(profile: str, part: str) -> int:
    found = PROFILE_NAME.fullmatch(profile)
    return int(found[part]) if found else 0
