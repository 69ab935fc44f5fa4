"""What people are told of with the cluster's means: each notice from what really causes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest
from peers.plugin import TinyPlugin

from agent.core.event_notices import Notice, PodRef
from agent.core.model import Command
from agent.core.publishing.agent_status import AgentStatus
from agent.daemon.event_notice_source import follow
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED
from agent.testing.node_kubelet import Container, Pod

from .conftest import ONLY_ENFLAME
from .node import LOOK, PATIENCE, Node, confirmed, one, owned_by, shared, whole

XPU = "example.com/xpu"


class Told:
    """The notices since somebody began to listen."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self, node: Node) -> None:
        """Look from now on; what is so now has been seen."""
        looks = follow(
            node.agent.serving_view, lambda: node.agent.pods.value, self.notices.append, every=LOOK
        )
        self._tasks.append(asyncio.create_task(looks))
        await anyio.lowlevel.checkpoint()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def first(self, reason: str) -> Notice:
        """Wait for a notice of this reason."""
        with anyio.move_on_after(PATIENCE):
            while True:
                for it in self.notices:
                    if it.reason == reason:
                        return it
                await anyio.sleep(LOOK)
        raise AssertionError(f"no {reason} among {self.notices}")


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    told = Told()
    yield told
    await told.stop()


async def serves(node: Node, told: Told) -> None:
    """Four cards, given out whole."""
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await told.listen(node)


def ref(pod: Pod) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


async def test_a_config_that_is_refused_and_one_that_is_taken_in_again_are_told(
    node: Node, told: Told
) -> None:
    await serves(node, told)
    good = node.config.read_text()
    node.write("version: v1\nvendors: [nonsense]")

    refused = await told.first("ConfigRefused")

    assert refused.kind == "Warning"
    assert "the last good one stays in force" in refused.message
    assert "config.yaml" in refused.message
    node.write(good)
    assert (await told.first("ConfigTaken")).kind == "Normal"


async def test_a_cards_fault_is_told_with_its_reason_and_so_is_its_end(node: Node, told: Told) -> None:
    await serves(node, told)
    uuid = node.cards.uuids[1]
    await node.fail(1)

    sick = await told.first("DeviceUnhealthy")

    assert sick.message == f"simulated card {uuid} is unhealthy: xid-79: fell off the bus"
    node.cards.reset(1)
    assert (await told.first("DeviceHealthy")).message == f"simulated card {uuid} is healthy again"


async def test_a_cordon_is_told_as_an_operators_word_and_as_no_fault(node: Node, told: Told) -> None:
    await serves(node, told)
    uuid = node.cards.uuids[0]

    await node.agent.apply(Command("cordon", uuid, "alice", "fan"))
    cordoned = await told.first("DeviceCordoned")
    await node.agent.apply(Command("uncordon", uuid, "alice"))
    await told.first("DeviceUncordoned")

    assert cordoned.message == f"simulated card {uuid} is kept from new pods, cordoned by alice: fan"
    assert {it.reason for it in told.notices} == {"DeviceCordoned", "DeviceUncordoned"}


async def test_a_vendor_whose_library_hangs_is_told_and_so_is_its_return(node: Node, told: Told) -> None:
    node.gives_up(discover=1.0)
    await serves(node, told)
    node.cards.hang()

    failed = await told.first("VendorFailed")

    assert failed.message.startswith("vendor simulated is failed: discover did not return")
    node.cards.behave()
    assert (await told.first("VendorOpened")).message == "vendor simulated is open again"


FAIL_ABOVE_ONE = {"kind": "replicas", "replicas": 2, "failRequestsGreaterThanOne": True}


async def test_a_refused_allocate_is_told_on_its_pod_where_the_api_server_shows_it(
    node: Node, told: Told
) -> None:
    await node.start(whole(XPU, sharing=FAIL_ABOVE_ONE))
    await node.counts({XPU: (8, 8)})
    await told.listen(node)
    pod, other = one("greedy", XPU, 2), one("modest", XPU)
    node.shows(other, pod)

    verdict = await node.kubelet.admit(pod)

    refused = await told.first("AllocateRefused")
    assert (refused.kind, refused.pod) == ("Warning", ref(pod))
    assert "maximum request size for shared resources is 1; found 2" in refused.message
    assert refused.message in verdict.message


async def test_a_refused_allocate_of_a_pod_that_nobody_knows_is_told_on_the_node(
    node: Node, told: Told
) -> None:
    await node.start(whole(XPU, sharing=FAIL_ABOVE_ONE))
    await node.counts({XPU: (8, 8)})
    await told.listen(node)

    await node.refused("greedy", {XPU: 2})

    refused = await told.first("AllocateRefused")
    assert refused.pod is None
    assert refused.message.startswith(f"a pod that asked for {XPU} was refused (SIM-")


async def test_another_plugin_that_lists_its_own_devices_under_our_resource_is_told(
    node: Node, told: Told
) -> None:
    await serves(node, told)
    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as stranger:
        await stranger.publish({"alien-0": "Healthy"})
        await stranger.register()

        found = await told.first("ForeignPlugin")

    assert found.message.startswith(
        f"{XPU}: another plugin lists devices that are not the agent's (alien-0); "
        "its devices are given out twice"
    )
    assert found.pod is None


async def test_another_plugin_that_answers_for_our_own_ids_is_told(node: Node, told: Told) -> None:
    await serves(node, told)
    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as stranger:
        await stranger.publish(dict.fromkeys(node.cards.uuids[:3], "Healthy"))
        await stranger.register()
        await node.counts({XPU: (3, 3)})
        pod = await node.admit("web", {XPU: 1})

        found = await told.first("ForeignPlugin")

    assert f"another plugin answered for the pod with uid {pod.uid}" in found.message


@ONLY_ENFLAME
async def test_a_plugin_that_the_vendor_knows_by_its_socket_is_told_when_it_comes(
    node: Node, told: Told
) -> None:
    gcu = "enflame.com/gcu"
    node.configure()
    await node.start()
    await node.counts({gcu: (4, 4)})
    await told.listen(node)

    async with TinyPlugin(node.kubelet.plugin_dir, gcu, "enflame.sock") as rival:
        await rival.publish({"0": "Healthy"})
        await rival.register()
        found = await told.first("ForeignPlugin")

    assert (found.pod, found.kind) == (None, "Warning")
    assert found.message.startswith(
        f"{gcu}: another device plugin serves cards of enflame at enflame.sock: remove it from this node"
    )


async def test_what_our_own_pods_and_an_earlier_plugin_have_is_no_stranger(node: Node, told: Told) -> None:
    async with TinyPlugin(node.kubelet.plugin_dir, XPU) as earlier:
        await earlier.publish(dict.fromkeys(node.cards.uuids, "Healthy"))
        await earlier.register()
        await node.counts({XPU: (4, 4)})
        await node.admit("earlier", {XPU: 1})
    await node.unserved()
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await told.listen(node)
    ours = await node.admit("ours", {XPU: 1})
    await node.until(lambda it: confirmed(it, ours))
    await node.fail(0)

    await told.first("DeviceUnhealthy")

    assert "ForeignPlugin" not in {it.reason for it in told.notices}


async def test_a_checkpoint_that_is_set_aside_and_rebuilt_is_told(node: Node, told: Told) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    pod = await node.admit("running", {XPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    await node.stop()
    (node.state / "checkpoint.json").write_text("torn")

    await node.start()
    await told.listen(node)

    aside = await told.first("CheckpointSetAside")
    assert "checkpoint.json" in aside.message
    rebuilt = await told.first("CheckpointRebuilt")
    assert rebuilt.message == "the allocations are known again: 1 were read back from the kubelet"


async def test_a_share_that_is_an_average_is_told_on_its_pod(node: Node, told: Told) -> None:
    await node.start(shared(XPU, 4, placement="auto"))
    await node.counts({XPU: (16, 16)})
    await told.listen(node)
    one = "koordinator.sh/gpu.shared"
    less = {XPU: 1, "koordinator.sh/gpu-core": 10, "koordinator.sh/gpu-memory": 1 << 30, one: 1}
    more = {XPU: 1, "koordinator.sh/gpu-core": 20, "koordinator.sh/gpu-memory": 3 << 30, one: 1}
    pod = Pod("uneven", (Container(less, "less"), Container(more, "more")))
    resources = {"koordinator.sh/gpu-core": "15", "koordinator.sh/gpu-memory": "2Gi"}
    given = [{"minor": it, "id": node.cards.uuids[it], "resources": resources} for it in (1, 2)]
    node.shows(pod, **{ALLOCATED: json.dumps({"gpu": given})})

    await node.admit_pod(pod)

    averaged = await told.first("ShareAveraged")
    assert averaged.pod == ref(pod)
    assert (
        "asks for 10 % of the cores and 1Gi of a card and gets 15 % of the cores and 2Gi" in averaged.message
    )


async def test_a_schedulers_choice_that_is_not_heeded_is_told_on_its_pod(node: Node, told: Told) -> None:
    await node.start(whole(XPU, placement="auto"))
    await node.counts({XPU: (4, 4)})
    await told.listen(node)
    pod = Pod("unheeded", (Container({XPU: 1, "koordinator.sh/gpu": 100}, "main"),))
    node.shows(pod, **{ALLOCATED: "{{"})

    await node.admit_pod(pod)

    unheeded = await told.first("ChoiceUnheeded")
    assert (unheeded.pod, unheeded.kind) == (ref(pod), "Warning")
    assert f"{XPU}: default/unheeded: koordinator: " in unheeded.message


async def test_a_lock_whose_pod_never_came_is_told_on_the_node(node: Node, told: Told) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    await told.listen(node)

    node.agent.pod_state.locks.annotations.set(
        {"hami.io/mutex.lock": "2026-01-01T00:00:00Z,default,never-came"}
    )

    expired = await told.first("LockExpired")
    assert expired.pod is None
    assert "default,never-came has not come for its devices, it is older than 300 s" in expired.message


async def test_a_lock_that_was_freed_before_anybody_looked_is_told(node: Node, told: Told) -> None:
    await node.start(whole(XPU))
    await node.counts({XPU: (4, 4)})
    scheduled = node.agent.pod_state
    scheduled.locks.annotations.set({"hami.io/mutex.lock": "2026-01-01T00:00:00Z,default,never-came"})
    await scheduled.locks.over.other_than({})
    scheduled.locks.annotations.set({})
    await scheduled.locks.over.until({})

    await told.listen(node)

    assert "default,never-came" in (await told.first("LockExpired")).message


async def test_a_claim_that_follows_the_kubelet_is_told_on_the_pod_that_has_it(
    node: Node, told: Told
) -> None:
    await node.start(shared(XPU, 4))
    await node.counts({XPU: (16, 16)})
    await told.listen(node)
    first, second = one("first", XPU), one("second", XPU)
    node.promises(first, memory="8")
    node.promises(second, memory="16")

    await node.admit_pod(second)

    swapped = await told.first("SwapRepaired")
    assert swapped.pod == ref(second)
    assert "it was answered for default/first" in swapped.message
    assert swapped.message.endswith("and is for default/second")


def promised(view: AgentStatus, pod: Pod) -> bool:
    """Whether what the pod has bears its own claim."""
    [it] = owned_by(view, pod)
    return it.claim is not None and it.claim.uid == pod.uid


@pytest.mark.parametrize("given", [0, 1], ids=["of the one", "of the other"])
@pytest.mark.parametrize("known", [False, True], ids=["come at once", "one known before the other comes"])
async def test_a_card_that_a_scheduler_gives_away_though_a_swapped_pod_has_it_is_told(
    node: Node, told: Told, known: bool, given: int
) -> None:
    await node.start(whole(XPU, placement="auto"))
    await node.counts({XPU: (4, 4)})
    uuids = node.cards.uuids[:2]
    asks = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
    first, second = (Pod(name, (Container({XPU: 1, **asks}, "main"),)) for name in ("first", "second"))
    for minor, pod in enumerate((first, second)):
        node.shows(pod, **{ALLOCATED: json.dumps({"gpu": [{"minor": minor, "id": uuids[minor]}]})})
    await node.admit_pod(second)
    if known:
        await node.until(lambda it: confirmed(it, second) and promised(it, second))
    await node.admit_pod(first)
    await node.until(lambda it: confirmed(it, first, second))
    assert (await node.cards_of(first), await node.cards_of(second)) == ({uuids[1]}, {uuids[0]})
    await told.listen(node)

    third = Pod("third", (Container(asks, "main"),))
    node.shows(third, **{ALLOCATED: json.dumps({"gpu": [{"minor": given, "id": uuids[given]}]})})

    twice = await told.first("CardGivenTwice")
    assert (twice.pod, twice.kind) == (ref(third), "Warning")
    holder = f"default/{('second', 'first')[given]}"
    held = f"{uuids[given]} is held by {holder} as {XPU}, for which others were chosen"
    assert twice.message.endswith(f"uses a card of this pod, too: delete {holder}: {held}")
