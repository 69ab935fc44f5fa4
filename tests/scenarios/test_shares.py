"""A share is known by the card where it lies and by what its container was given, whatever was lost since."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Sequence

import pytest
from played_koordinator.scheduler import BOUND

from agent.core.devices.topology import Topology
from agent.core.model import AllocationSource, Resource
from agent.core.placement import ids_on_promised_cards, preferred_allocation
from agent.core.reconciling.reconcile_evidence import Evidence
from agent.daemon.reconciling.evidence_sources import EvidenceSources
from agent.kubelet.checkpoint_reader import CheckpointReader
from agent.kubelet.kubelet_checkpoint import KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_NVIDIA
from .node import Node, confirmed, in_use, shared

GPU, TOKEN = "nvidia.com/gpu", "example.com/token"
CORE, MEMORY, RATIO = (f"koordinator.sh/{it}" for it in ("gpu-core", "gpu-memory", "gpu-memory-ratio"))


def share(name: str, resource: str = TOKEN, percent: int = 30) -> Pod:
    return Pod(name, (Container({resource: 1, CORE: percent, RATIO: percent}),))


def written(node: Node, card: int, percent: int = 30, bound: int = 0) -> dict[str, str]:
    """What koord-scheduler writes for a share of this card."""
    resources = {CORE: str(percent), RATIO: str(percent), MEMORY: f"{percent}Gi"}
    gpu = [{"minor": card, "id": node.cards.uuids[card], "resources": resources}]
    return {ALLOCATED: json.dumps({"gpu": gpu}), BOUND: str(1795210468 * 10**9 + bound)}


def astray(monkeypatch: pytest.MonkeyPatch, node: Node, card: int) -> None:
    """Let the kubelet take IDs of this card, as one does that asks nobody which it should take."""

    def chosen(
        resource: Resource,
        available: Sequence[str],
        required: object,
        size: int,
        topology: Topology,
        its: object,
        room: object,
    ) -> list[str]:
        there = {one: found.uuid for one in available if (found := resource.card_of(one))}
        return [one for one in available if there[one] == node.cards.uuids[card]][:size]

    monkeypatch.setattr(ids_on_promised_cards, "chosen_ids", chosen)


def lose(node: Node) -> None:
    (node.state / "checkpoint.json").write_text("torn")


@pytest.fixture
async def lying_elsewhere(node: Node, monkeypatch: pytest.MonkeyPatch) -> Pod:
    """A share that is on card 2, by an ID of card 0."""
    await node.start(shared(TOKEN, 4, placement="auto"))
    await node.counts({TOKEN: (16, 16)})
    astray(monkeypatch, node, 0)
    pod = share("web")
    node.shows(pod, **written(node, 2))
    await node.admit_pod(pod)
    (it,) = in_use(await node.until(lambda it: confirmed(it, pod)))
    assert (it.devices, it.diverged) == ((node.cards.uuids[0],), (node.cards.uuids[2],))
    await node.stop()
    return pod


@pytest.mark.parametrize("heard", [True, False], ids=["", "before any pod is heard of"])
async def test_after_a_lost_checkpoint_a_share_is_on_the_card_of_its_environment(
    node: Node, lying_elsewhere: Pod, heard: bool
) -> None:
    lose(node)
    if not heard:
        node.hides()

    await node.start()

    (it,) = in_use(await node.until(lambda it: confirmed(it, lying_elsewhere)))
    assert it.source is AllocationSource.KUBELET
    assert set(it.cards) == await node.cards_of(lying_elsewhere) == {node.cards.uuids[2]}


async def test_without_any_checkpoint_a_share_is_on_the_card_that_its_pod_names(
    node: Node, lying_elsewhere: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(reader: CheckpointReader, *, prove: bool) -> KubeletCheckpoint:
        raise KubeletError("the kubelet's checkpoint is of a format to come")

    monkeypatch.setattr(CheckpointReader, "read", unreadable)
    lose(node)

    await node.start()

    view = await node.until(lambda it: [one.claim for one in in_use(it) if one.claim])
    (it,) = in_use(view)
    assert it.source is AllocationSource.POD_RESOURCES
    assert set(it.cards) == await node.cards_of(lying_elsewhere) == {node.cards.uuids[2]}


async def test_what_lies_elsewhere_takes_its_room_there_also_after_a_lost_checkpoint(
    node: Node, lying_elsewhere: Pod
) -> None:
    lose(node)
    await node.start()
    await node.until(lambda it: confirmed(it, lying_elsewhere))
    await node.counts({TOKEN: (16, 16)})
    others = [share(f"other-{n}", percent=20) for n in range(4)]
    for n, pod in enumerate(others):
        node.shows(pod, **written(node, 2, 20, bound=n + 1))

    verdicts = [(await node.kubelet.admit(pod)).admitted for pod in others]

    assert verdicts == [True, True, True, False]


def on(node: Node, pods: Collection[Pod]) -> dict[str, dict[str, str] | None]:
    """Pod to what its container was given where that is not its share."""
    held = {it.owner.pod: it.handed for it in node.view.allocations if it.owner is not None}
    return {it.name: None if (found := held.get(it.name)) is None else dict(found) for it in pods}


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until the event is set, no pass learns which pod got which answer."""
    read, evidence = asyncio.Event(), EvidenceSources.evidence

    async def waited(its: EvidenceSources, vendors: Iterable[str] = (), *, prove: bool = True) -> Evidence:
        await read.wait()
        return await evidence(its, vendors, prove=prove)

    monkeypatch.setattr(EvidenceSources, "evidence", waited)
    return read


@ONLY_NVIDIA
async def test_limits_that_a_container_bears_of_another_one_are_known(
    node: Node, unread: asyncio.Event
) -> None:
    name = f"{GPU}.shared"
    own = node.cards.settings
    settings = {**own["settings"], "hamiCoreDirectory": "/usr/local/vgpu"}
    rules = [shared(name, 4, placement="claim")]
    node.configure(nvidia={"enabled": True, **own, "settings": settings, "resources": rules})
    await node.start()
    await node.counts({name: (16, 16)})
    early, late = share("early", name), share("late", name, 60)
    node.shows(early, **written(node, 1, 30, bound=1))
    node.shows(late, **written(node, 1, 60, bound=2))

    await node.admit_pod(late)
    await node.admit_pod(early)
    unread.set()

    options = [await node.kubelet.run_options(it.uid, "main") for it in (early, late)]
    assert [it.env["CUDA_DEVICE_SM_LIMIT"] for it in options] == ["30", "30"]
    await node.until(lambda it: confirmed(it, early, late) and any(one.handed for one in in_use(it)))
    given = on(node, (early, late))
    assert {pod: its and its["core"] for pod, its in given.items()} == {"early": None, "late": "30"}
    promised = {
        it.owner.pod: it.claim.parameters["core"] for it in in_use(node.view) if it.owner and it.claim
    }
    assert promised == {"early": "30", "late": "60"}
    await node.stop()
    lose(node)
    await node.start()
    await node.until(lambda it: confirmed(it, early, late) and all(one.claim for one in in_use(it)))
    assert on(node, (early, late)) == given


async def test_replicas_that_are_kept_together_lie_on_one_card_whatever_the_kubelet_takes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = {**shared(TOKEN, 3, devices=[0, 1])}
    rule["sharing"] = {**rule["sharing"], "spanCards": False}
    await node.start(rule)
    await node.counts({TOKEN: (6, 6)})
    first = await node.admit("two", {TOKEN: 2})
    assert len(await node.cards_of(first)) == 1

    astray_on_both(monkeypatch)
    second = await node.admit("three", {TOKEN: 3})

    assert len(await node.cards_of(second)) == 1
    assert await node.cards_of(second) != await node.cards_of(first)


async def test_of_replicas_that_are_kept_together_no_more_are_given_than_a_card_has_free(node: Node) -> None:
    rule = {**shared(TOKEN, 3, devices=[0, 1])}
    rule["sharing"] = {**rule["sharing"], "spanCards": False}
    await node.start(rule)
    await node.counts({TOKEN: (6, 6)})
    for n in range(2):
        await node.admit(f"two-{n}", {TOKEN: 2})

    refused = await node.refused("two more", {TOKEN: 2})

    assert "2 shares requested, the largest free card has 1" in refused.message
    assert "all shares of one container must be on one card" in refused.message
    await node.admit("one", {TOKEN: 1})


def astray_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kubelet take IDs of all cards by turns, as one does that asks nobody."""

    def chosen(
        resource: Resource, available: Sequence[str], required: object, size: int, *_: object
    ) -> list[str]:
        return sorted(available, key=lambda it: it.rpartition("::")[2])[:size]

    monkeypatch.setattr(ids_on_promised_cards, "chosen_ids", chosen)
    monkeypatch.setattr(preferred_allocation, "prefer", chosen)
