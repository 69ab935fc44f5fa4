"""A node for each test: a kubelet of every kind, its cards, and room for an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from peers.faults import FaultyPodResources

from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import NodeKubelet
from agent.testing.simapi import SimApiServer
from agent.testing.simkubelet.topology_manager import Policy

from .cards import Cards, Nvidia, Simulated, Sliced
from .enflame import Enflame
from .gcushare import GCUShare
from .koordination import Koordinator, Played
from .kubelets import Kind, asks_for_peers, built, kinds, simulated
from .metax import MetaX
from .node import Node
from .process import AgentProcess

MakeCards = Callable[[Path, int], Cards]


#: Runs with NVIDIA's library, which uses every part of the agent; `EVERY=1` adds the simulated cards.
NVIDIA_OR_SIMULATED = pytest.mark.vendors.with_args(Nvidia, Simulated)
ONLY_NVIDIA = pytest.mark.vendors.with_args(Nvidia)  # called directly it would be the decorated one
ONLY_METAX = pytest.mark.vendors.with_args(MetaX)
ONLY_ENFLAME = pytest.mark.vendors.with_args(Enflame)
#: Cards whose hardware is made.
ONLY_SLICED = pytest.mark.vendors.with_args(Sliced)
#: The fixture of what must look into the kubelet, or break it.
SIM = "sim"
#: Releases of the kubelet differ here: registration, its sockets, what it keeps and what it lists.
EVERY_RELEASE = pytest.mark.every_release


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each scenario once, with the newest kubelet and the first of its cards; with more where they differ."""
    if "kind" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--every-case")
    use = kinds(metafunc.config)
    if SIM in metafunc.fixturenames:
        use = [it for it in use if not it.binary] or simulated()  # left out of the run below
    if not every and not metafunc.definition.get_closest_marker("every_release"):
        use = use[:1]
    marker = metafunc.definition.get_closest_marker("vendors")
    vendors = marker.args if marker else (Simulated,)
    cases = [(kind, vendor) for vendor in (vendors if every else vendors[:1]) for kind in use]
    ids = [f"{kind.id}-{vendor.vendor}" if marker else kind.id for kind, vendor in cases]
    metafunc.parametrize(("kind", "make_cards"), cases, indirect=True, ids=ids)


@pytest.hookimpl(trylast=True)  # one of those that -k and the like leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With the real kubelets alone there is no turn for what looks into a simulated one."""
    if config.getoption("--one-of-each") and (asks_for_peers(config) or config.getoption("--every-case")):
        raise pytest.UsageError("--one-of-each goes with neither --peers nor --every-case")
    here = [it for it in items if isinstance(it, pytest.Function) and "kind" in it.fixturenames]
    out: list[pytest.Item] = []
    if all(it.binary for it in kinds(config)):
        out = [it for it in here if SIM in it.fixturenames]
    elif config.getoption("--one-of-each"):
        seen: set[Path] = set()
        for it in here:
            (out.append(it) if it.path in seen else seen.add(it.path))
    config.hook.pytest_deselected(items=out)
    left_out = set(out)
    items[:] = [it for it in items if it not in left_out]


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Kind:
    return built(request)


@pytest.fixture
def root(short_path: Path) -> Path:
    return short_path


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
def make_cards(request: pytest.FixtureRequest) -> MakeCards:
    make: MakeCards = request.param
    return make


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
    await node.end()


@pytest.fixture
async def lister(node: Node, root: Path) -> AsyncIterator[FaultyPodResources]:
    """Between the agent and the kubelet's PodResources; to be had before the agent starts."""
    async with FaultyPodResources(node.kubelet.pod_resources_socket, root / "lister.sock") as lister:
        node.pod_resources = lister.served
        yield lister


@pytest.fixture
def sliced(cards: Cards) -> Sliced:
    """The cards, where hardware is made."""
    assert isinstance(cards, Sliced)
    return cards


@pytest.fixture
async def koordinator(
    node: Node, process: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Koordinator]:
    """Koordinator beside the node, at a played API server."""
    async with SimApiServer() as api:
        server = Played(api)
        await server.begins()
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(server.kubeconfig(node.root / "kubeconfig")))
        yield Koordinator(server, node, process)


@pytest.fixture
def enflame(cards: Cards) -> Enflame:
    """The cards, where they are Enflame's."""
    assert isinstance(cards, Enflame)
    return cards


@pytest.fixture
async def gcushare(
    node: Node, enflame: Enflame, process: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GCUShare]:
    """GCUShare's scheduler beside the node, at a played API server."""
    async with SimApiServer() as api:
        api.put_object({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}})
        monkeypatch.setenv("XPU_AGENT_KUBECONFIG", str(api.kubeconfig(node.root / "kubeconfig")))
        yield GCUShare(api, node, process, enflame)


@pytest.fixture
async def process(node: Node) -> AsyncIterator[AgentProcess]:
    process = AgentProcess(node)
    yield process
    await process.kill()
