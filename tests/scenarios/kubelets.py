"""The kubelets that scenarios run with: simulated ones, or the real device managers where asked for."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from peers import real

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import NodeKubelet
from agent.testing.simkubelet.topology_manager import Policy

NUMA_NODES = 2
SIMULATED = ("1.36", "1.24", "1.37")
#: One file per release that build.sh builds, the newest first.
MODULES = ("go.mod", "go.old.mod")
REMEDY = "run `make peers`, which builds it"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kubelet of one release; `binary` is the real device manager's."""

    release: str
    binary: Path | None = None

    @property
    def id(self) -> str:
        return f"{'real' if self.binary else 'sim'}-{self.release}"

    @property
    def is_built(self) -> bool:
        return self.binary is None or self.binary.exists()

    def open(self, directory: Path, policy: Policy) -> AbstractAsyncContextManager[NodeKubelet]:
        if self.binary is not None:
            return real.RealKubelet(self.binary, directory, numa=NUMA_NODES, policy=policy)
        return SimKubelet(directory, mode=self.release, numa_nodes=NUMA_NODES, policy=policy)


def simulated() -> list[Kind]:
    return [Kind(release) for release in SIMULATED]


def real_ones() -> list[Kind]:
    return [real_kind(module) for module in MODULES]


def asks_for_peers(config: pytest.Config) -> bool:
    return bool(config.getoption("--peers") or config.getoption("--require-peers"))


def kinds(config: pytest.Config) -> list[Kind]:
    """What this run may use, built or not; the first stands for all where releases agree."""
    peers = real_ones() if asks_for_peers(config) else []
    if config.getoption("--every-case"):
        return [*simulated(), *peers]
    return peers or simulated()


def built(request: pytest.FixtureRequest) -> Kind:
    """The kubelet of this test; one that is not built fails with `--require-peers`, skips with `--peers`."""
    kind: Kind = request.param
    if not kind.is_built:
        words = f"{kind.id}: there is no {kind.binary}: {REMEDY}"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return kind


def real_kind(module: str) -> Kind:
    text = (Path(real.__file__).parent / module).read_text()
    found = re.search(r"k8s\.io/kubernetes v([\d.]+)", text)
    assert found is not None, f"{module} names no release"
    return Kind(found[1], real.BUILD / f"peer-{found[1]}")


def header(config: pytest.Config) -> str:
    """The line at the head of a run that says what it covers."""
    more = "" if asks_for_peers(config) else "; `make peers` has the real device managers"
    return f"kubelets of the scenarios: {', '.join(kind.id for kind in kinds(config))}{more}"
