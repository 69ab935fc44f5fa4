"""NVIDIA's cards of the node: the stub library where a driver's installer puts the real one, and device nodes."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .place import ROOT

sys.path.append(str(ROOT / "tests/vendors/nvidia"))

from nvml_stub import NvmlStub

__all__ = ["NvmlStub", "plug_in"]

#: Where the node has its libraries, for instance /usr/lib/x86_64-linux-gnu.
LIBRARIES = Path("/usr/lib") / sysconfig.get_config_var("MULTIARCH")
VERSION = "580.65.06"
#: The folder of the stub's script; the agent's pod sees it at the same path.
CONTROL = Path("/run/nvml-stub")
COUNT = 4
#: What stands for a card's device nodes reads as /dev/null does.
NULL = os.makedev(1, 3)


def plug_in(count: int = COUNT) -> NvmlStub:
    """Install library and device nodes on the node, and return the script of the cards: break, repair, remove."""
    CONTROL.mkdir(exist_ok=True)
    cards = NvmlStub(CONTROL, count)
    shutil.copy(cards.library, LIBRARIES / f"libnvidia-ml.so.{VERSION}")
    link = LIBRARIES / "libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(f"libnvidia-ml.so.{VERSION}")
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(count))):
        if not Path("/dev", name).exists():
            os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, NULL)
    return cards


#: The chart's values by which the agent's pod has library and script.
VALUES: dict[str, Any] = {
    "vendors": {"nvidia": {"libraries": [str(LIBRARIES)]}},
    "extraEnv": [{"name": "XPU_NVML_STUB", "value": str(CONTROL / "nvml-stub")}],
    "extraVolumes": [{"name": "script", "hostPath": {"path": str(CONTROL), "type": "Directory"}}],
    "extraVolumeMounts": [{"name": "script", "mountPath": str(CONTROL), "readOnly": True}],
}
