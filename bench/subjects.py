"""Who is measured: our agent, or any other device plugin that takes the place of NVIDIA's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nvml_stub import NvmlStub

#: Compiled into the plugins of others.
KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
GPU = "nvidia.com/gpu"
NODE = "bench"
#: Of the API server that our agent is to follow, in the directory of the place.
KUBECONFIG = "kubeconfig"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a process."""

    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """Raised when a measurement would be wrong or do harm here."""


class Subject(Protocol):
    """A device plugin that can be started on a place of its own."""

    name: str
    is_rival: bool

    def prepare(self, directory: Path) -> None:
        """Make the place ready, before the kubelet starts there."""

    def launch(self, directory: Path, stub: NvmlStub, vendors: Mapping[str, Any], *, watched: bool) -> Launch:
        """How to start it; `watched` with a measured event loop."""


class Ours:
    """The agent of this repository."""

    name = "xpu-agent"
    is_rival = False

    def __init__(self, http: str = "127.0.0.1:0") -> None:
        """`http`: where it serves its views."""
        self._http = http

    def prepare(self, directory: Path) -> None:
        """Nothing: every path is given to the agent."""

    def launch(self, directory: Path, stub: NvmlStub, vendors: Mapping[str, Any], *, watched: bool) -> Launch:
        config = directory / "config.yaml"
        config.write_text(json.dumps(_config(directory, stub, vendors, self._http)))
        script = Path(sys.executable).with_name("xpu-agent")
        start: list[str | Path] = [script] if script.exists() else [sys.executable, "-m", "agent"]
        if watched:
            start = [sys.executable, "-m", "bench.watched", directory / "lags"]
        arguments: list[str | Path] = [
            "--config",
            config,
            "--node-name",
            NODE,
            "--kubeconfig",
            directory / KUBECONFIG,
        ]
        return Launch([*start, "run", *arguments], stub.environment)


def _config(directory: Path, stub: NvmlStub, vendors: Mapping[str, Any], http: str) -> dict[str, Any]:
    nvidia = {"library": str(stub.library)}
    return {
        "version": "v1",
        "agent": {
            "kubeletDir": str(directory / "device-plugins"),
            "podResourcesSocket": str(directory / "pod-resources.sock"),
            "stateDir": str(directory / "state"),
            "cdiDir": str(directory / "cdi"),
            "http": http,
        },
        "report": {"deviceInfosDir": str(directory / "device-infos")},
        "vendors": vendors or {"nvidia": nvidia},
    }


class Rival:
    """Another plugin; the stub library is found by its name, the kubelet where the plugin looks for it."""

    is_rival = True

    def __init__(self, binary: Path, arguments: Sequence[str], kubelet_dir: Path = KUBELET_DIR) -> None:
        self.name = binary.name
        self._binary = binary.resolve()
        self._arguments = tuple(arguments)
        self._kubelet_dir = kubelet_dir
        if not os.access(self._binary, os.X_OK):
            raise Refused(f"{binary} cannot be executed")

    def prepare(self, directory: Path) -> None:
        """Lead the measuring kubelet, which serves in `directory`, to the compiled-in place."""
        for trace in ("kubelet.sock", "kubelet_internal_checkpoint"):
            if (self._kubelet_dir / trace).exists():
                raise Refused(
                    f"{self._kubelet_dir / trace} is there: a kubelet lives here, or did; not touched"
                )
        self._kubelet_dir.mkdir(parents=True, exist_ok=True)
        (directory / "device-plugins").symlink_to(self._kubelet_dir)

    def launch(self, directory: Path, stub: NvmlStub, vendors: Mapping[str, Any], *, watched: bool) -> Launch:
        if vendors or watched:
            raise Refused(f"{self.name} cannot be measured so")
        search = [str(stub.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {**stub.environment, "LD_LIBRARY_PATH": ":".join(search), "NODE_NAME": NODE}
        return Launch([self._binary, *self._arguments], environment)
