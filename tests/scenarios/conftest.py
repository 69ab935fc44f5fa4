"""A node for each test: a kubelet of every kind, its cards, and room for an agent."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from agent.testing.kubelet import SimKubelet
from agent.testing.node import NodeKubelet
from agent.testing.simkubelet.topology import Policy

from .cards import Cards, Nvidia, Simulated
from .kubelets import REMEDY, Kind, kinds, simulated
from .node import Node
from .process import AgentProcess

MakeCards = Callable[[Path, int], Cards]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kubelet that the run has; for a test that looks into the kubelet, the simulated ones."""
    if "kind" in metafunc.fixturenames:
        use = simulated() if "sim" in metafunc.fixturenames else kinds(metafunc.config)
        metafunc.parametrize("kind", use, indirect=True, ids=[kind.id for kind in use])


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    if not kind.is_built:
        words = f"{kind.id}: there is no {kind.binary}: {REMEDY}"
        assert not request.config.getoption("--require-peers"), words
        pytest.skip(words)
    return kind


@pytest.fixture
def root() -> Iterator[Path]:
    # Not tmp_path: its long names leave no room for a socket's.
    with tempfile.TemporaryDirectory(prefix="xpu-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def policy() -> Policy:
    """The kubelet's topology policy; a module that wants another one overrides this."""
    return "none"


@pytest.fixture
async def kubelet(kind: Kind, root: Path, policy: Policy) -> AsyncIterator[NodeKubelet]:
    (root / "k").mkdir()
    async with kind.open(root / "k", policy) as kubelet:
        yield kubelet


@pytest.fixture
def sim(kubelet: NodeKubelet) -> SimKubelet:
    """The kubelet, where a test must look into it."""
    assert isinstance(kubelet, SimKubelet)
    return kubelet


@pytest.fixture
def count() -> int:
    """How many cards the node has."""
    return 4


@pytest.fixture
def make_cards() -> MakeCards:
    return Simulated


@pytest.fixture
def cards(root: Path, count: int, make_cards: MakeCards, monkeypatch: pytest.MonkeyPatch) -> Cards:
    cards = make_cards(root, count)
    for name, value in cards.environment.items():
        monkeypatch.setenv(name, value)
    return cards


@pytest.fixture
async def node(root: Path, kubelet: NodeKubelet, cards: Cards) -> AsyncIterator[Node]:
    node = Node(root, kubelet, cards)
    yield node
    await node.stop()


@pytest.fixture
async def process(node: Node) -> AsyncIterator[AgentProcess]:
    process = AgentProcess(node)
    yield process
    await process.kill()


#: For tests of the whole line, from NVIDIA's library to the kubelet.
EVERY_VENDOR = pytest.mark.parametrize("make_cards", [Simulated, Nvidia], ids=["simulated", "nvidia"])
ONLY_SIMULATED = pytest.mark.parametrize("make_cards", [Simulated], ids=["simulated"])
ONLY_NVIDIA = pytest.mark.parametrize("make_cards", [Nvidia], ids=["nvidia"])
