"""Which device plugins are measured: our agent, the spike, and another plugin that serves nvidia.com/gpu."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
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
#: Where a real kubelet has its PodResources socket, in the directory of the place.
POD_RESOURCES = Path("pod-resources") / "kubelet.sock"


@dataclass(frozen=True, slots=True)
class Setup:
    """How a plugin is to be started. Another plugin than ours knows replicas alone."""

    #: Device IDs of each card; 0 is one, without sharing.
    replicas: int = 0
    #: How many cards the spike lists; all others ask the stub.
    cards: int = 8
    #: The vendors' part of our config, in place of the stub's cards.
    vendors: Mapping[str, Any] = field(default_factory=dict)
    #: With a measured event loop.
    watched: bool = False
    #: Seconds between two samples of the use of cards; 0 for none.
    usage: float = 0
    #: Whether the API server is followed and the cards are reported there.
    api: bool = True
    #: Where it serves its views.
    http: str = "127.0.0.1:0"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours_alone(self) -> bool:
        return bool(self.vendors or self.watched or self.environment or self.usage)


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
    #: Its column: ours, spike or rival.
    role: str

    def prepare(self, directory: Path) -> None:
        """Make the place ready, before the kubelet starts there."""

    def tidy(self) -> None:
        """Remove what the measuring kubelet has left outside of its place, after its end."""

    def launch(self, directory: Path, stub: NvmlStub, setup: Setup) -> Launch:
        """How to start it."""


class Ours:
    """The agent of this repository."""

    name = "xpu-agent"
    role = "ours"

    def prepare(self, directory: Path) -> None:
        """Nothing: every path is given to the agent."""

    def tidy(self) -> None:
        """Nothing."""

    def launch(self, directory: Path, stub: NvmlStub, setup: Setup) -> Launch:
        config = directory / "config.yaml"
        config.write_text(json.dumps(_config(directory, stub, setup)))
        script = Path(sys.executable).with_name("xpu-agent")
        start: list[str | Path] = [script] if script.exists() else [sys.executable, "-m", "agent"]
        if setup.watched:
            start = [sys.executable, "-m", "bench.watched", directory / "lags"]
        arguments: list[str | Path] = ["--config", config, "--node-name", NODE]
        if setup.api:
            arguments += ["--kubeconfig", directory / KUBECONFIG]
        return Launch([*start, "run", *arguments], {**stub.environment, **setup.environment})


def _config(directory: Path, stub: NvmlStub, setup: Setup) -> dict[str, Any]:
    nvidia: dict[str, Any] = {"library": str(stub.library)}
    if setup.replicas:
        sharing = {"kind": "replicas", "replicas": setup.replicas}
        nvidia["resources"] = [{"name": GPU, "sharing": sharing}]
    return {
        "version": "v1",
        "agent": {
            "kubeletDir": str(directory / "device-plugins"),
            "podResourcesSocket": str(directory / POD_RESOURCES),
            "stateDir": str(directory / "state"),
            "cdiDir": str(directory / "cdi"),
            "http": setup.http,
        },
        "report": {"deviceInfosDir": str(directory / "device-infos")},
        "vendors": setup.vendors or {"nvidia": nvidia},
        "usage": {"enabled": bool(setup.usage), "interval": f"{setup.usage or 5:g}s"},
    }


class Spike:
    """The floor of the same stack, with as many device IDs as the cards of the stub would have."""

    name = "spike"
    role = "spike"
    options: Sequence[str] = ()

    def prepare(self, directory: Path) -> None:
        """Nothing: the directory is an argument."""

    def tidy(self) -> None:
        """Nothing."""

    def launch(self, directory: Path, stub: NvmlStub, setup: Setup) -> Launch:
        if setup.is_ours_alone:
            raise Refused("the spike cannot be measured so")
        script = Path(__file__).with_name("spike.py")
        counts = (str(setup.cards), str(setup.replicas or 1))
        return Launch([sys.executable, script, directory / "device-plugins", *counts, *self.options])


class AlikeSpike(Spike):
    """A spike with which the kubelet has the same work as with the agent: the floor of a whole admission."""

    name = "alike spike"
    role = "alike"
    options = ("alike",)


class Rival:
    """Another plugin; the stub library is found by its name, the kubelet where the plugin looks for it.

    Replicas are asked for by the config file of NVIDIA's plugin, which the variable CONFIG_FILE names.
    """

    role = "rival"

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

    def tidy(self) -> None:
        """Remove the checkpoint, which is the measuring kubelet's: `prepare` found none."""
        if not (self._kubelet_dir / "kubelet.sock").exists():
            (self._kubelet_dir / "kubelet_internal_checkpoint").unlink(missing_ok=True)

    def launch(self, directory: Path, stub: NvmlStub, setup: Setup) -> Launch:
        if setup.is_ours_alone:
            raise Refused(f"{self.name} cannot be measured so")
        search = [str(stub.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {**stub.environment, "LD_LIBRARY_PATH": ":".join(search), "NODE_NAME": NODE}
        if setup.replicas:
            environment["CONFIG_FILE"] = str(_nvidia_config(directory, setup.replicas))
        return Launch([self._binary, *self._arguments], environment)


def _nvidia_config(directory: Path, replicas: int) -> Path:
    """A config file of NVIDIA's plugin that shares each card by so many."""
    path = directory / "nvidia.yaml"
    shared = [{"name": GPU, "replicas": replicas}]
    path.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": shared}}}))
    return path


@dataclass(frozen=True, slots=True)
class Contest:
    """The subjects of one run of the bench."""

    ours: Subject = field(default_factory=Ours)
    spike: Subject = field(default_factory=Spike)
    rival: Subject | None = None

    def __iter__(self) -> Iterator[Subject]:
        """In the order of their turns."""
        yield from (self.ours, self.spike)
        if self.rival is not None:
            yield self.rival
