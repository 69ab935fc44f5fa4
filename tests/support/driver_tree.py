"""Directories laid out as NVIDIA's driver leaves them, with empty files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VERSION = "580.65.06"
LIBRARIES = "usr/lib/x86_64-linux-gnu"

#: What the driver's installer puts on Ubuntu: path to what it links to, "" for a file.
UBUNTU: Mapping[str, str] = {
    "lib": "usr/lib",
    "bin": "usr/bin",
    f"{LIBRARIES}/libcuda.so.{VERSION}": "",
    f"{LIBRARIES}/libcuda.so.1": f"libcuda.so.{VERSION}",
    f"{LIBRARIES}/libcuda.so": "libcuda.so.1",
    f"{LIBRARIES}/libnvidia-ml.so.{VERSION}": "",
    f"{LIBRARIES}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
    f"{LIBRARIES}/libc.so.6": "",
    f"{LIBRARIES}/libz.so.1": "libz.so.1.3",
    "usr/bin/nvidia-smi": "",
    "usr/bin/bash": "",
    f"usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": "",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json": "",
}


def lay(root: Path, tree: Mapping[str, str]) -> Path:
    """Make files and links: path to what it links to, "" for a file that can be executed."""
    for name, target in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        else:
            path.touch(mode=0o755)
    return root


def lay_nodes(root: Path, *paths: str) -> Path:
    """Make what the CDI library takes for device nodes and what needs no root: FIFOs."""
    for name in paths:
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    return root
