"""Document 001's pod from end to end: the kubelet's own device manager, a real API server, MetaX's stub."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from scenarios.koordination import Koordinator, Real
from scenarios.metax import DOCUMENT_001, POLICY, SGPU, MetaX, plays_document_001
from scenarios.node import PATIENCE, Node
from scenarios.process import AgentProcess
from support.short_places import SHORT_PLACE
from support.waiting import eventually

from agent.vendors.metax.agent.nodedevices import ANNOTATION

from .apiserver import RealApiServer
from .real import RealKubelet


@pytest.fixture
async def koordinator(
    binary: Path, api_server: RealApiServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Koordinator]:
    # Not tmp_path: its long names leave no room for a socket's.
    with tempfile.TemporaryDirectory(prefix="xpu-", dir=SHORT_PLACE) as directory:
        root = Path(directory)
        (root / "k").mkdir()
        cards = MetaX(root, 4)
        cards.mode = "sgpu"
        server = Real(api_server)
        await server.begins()
        environment = {
            **cards.environment,
            "XPU_AGENT_KUBECONFIG": str(server.kubeconfig(root / "kubeconfig")),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        async with RealKubelet(binary, root / "k") as kubelet:
            node = Node(root, kubelet, cards)
            process = AgentProcess(node)
            try:
                yield Koordinator(server, node, process)
            finally:
                await process.kill()
                await server.ends()


def cards(koordinator: Koordinator) -> MetaX:
    assert isinstance(koordinator.node.cards, MetaX)
    return koordinator.node.cards


async def test_the_pod_of_document_001_gets_its_slice_and_leaves_none(koordinator: Koordinator) -> None:
    await koordinator.starts({SGPU: 64})

    await plays_document_001(koordinator, cards(koordinator))


async def test_the_nodes_annotation_outlasts_no_mode_but_that_of_slices(koordinator: Koordinator) -> None:
    await koordinator.starts({SGPU: 64})
    pod = await koordinator.binds("test-metax", DOCUMENT_001, annotations={POLICY: "burst-share"})
    await koordinator.node.admit_pod(pod)
    await koordinator.ends(pod)

    cards(koordinator).mode = "native"
    koordinator.node.configure()

    await koordinator.node.counts({SGPU: (0, 0), "metax-tech.com/gpu": (4, 4)})

    async def gone() -> bool:
        return ANNOTATION not in await koordinator.api.annotations()

    await eventually(gone, PATIENCE)
