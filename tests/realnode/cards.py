"""NVIDIA's cards of the node: the stub library where a driver has the real one, and device nodes."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .place import ROOT, Place

sys.path += [str(ROOT / "tests"), str(ROOT / "tests/vendors/nvidia")]

from nvml_stub import NvmlStub

__all__ = ["NvmlStub", "plug_in"]

#: Where the node has its libraries, for instance /usr/lib/x86_64-linux-gnu.
LIBRARIES = Path("/usr/lib") / sysconfig.get_config_var("MULTIARCH")
VERSION = "580.65.06"
#: Where the agent's pod sees the folder of the stub's script.
CONTROL = "/run/nvml-stub"
COUNT = 4
#: What stands for a card's device nodes reads as /dev/null does.
NULL = os.makedev(1, 3)


def plug_in(place: Place, count: int = COUNT) -> NvmlStub:
    """Install library and device nodes on the node, and return the script of the cards: break and repair."""
    place.cards.parent.mkdir(exist_ok=True)
    cards = NvmlStub(place.cards.parent, count)
    library = LIBRARIES / f"libnvidia-ml.so.{VERSION}"
    if not library.exists():  # processes have it mapped
        shutil.copy(cards.library, library)
    link = LIBRARIES / "libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(f"libnvidia-ml.so.{VERSION}")
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(count))):
        if not Path("/dev", name).exists():
            os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, NULL)
    return cards


def values(place: Place) -> dict[str, Any]:
    """The chart's values by which the agent's pod has library and script."""
    volume = {"name": "script", "hostPath": {"path": str(place.cards.parent), "type": "Directory"}}
    return {
        "vendors": {"nvidia": {"libraries": [str(LIBRARIES)]}},
        "extraEnv": [{"name": "XPU_NVML_STUB", "value": f"{CONTROL}/{place.cards.name}"}],
        "extraVolumes": [volume],
        "extraVolumeMounts": [{"name": "script", "mountPath": CONTROL, "readOnly": True}],
    }
