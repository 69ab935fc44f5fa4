"""Koordinator's whole way on a real node: from our Device to the words in a container's environment.

Manager and scheduler are those of tests/played_koordinator; they know of the cards what the Device says.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from played_koordinator.amounts import amounts, binary, read
from played_koordinator.manager import Manager
from played_koordinator.scheduler import ALLOCATED, Asking, Bound, Scheduler
from played_koordinator.wishes import CORE, MEMORY, RATIO, SHARED, Unschedulable

from .api import Object, Refused
from .cluster import Cluster
from .kubelet import NODE
from .place import ROOT
from .space import GPU, Space, pod
from .until import until

TOKEN = "nvidia.com/gpu.shared"
KIND = "devices.scheduling.koordinator.sh"
DEVICE = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NODE}"
CRD = ROOT / "deploy/crd/devices.scheduling.koordinator.sh.yaml"
#: On the node; HAMi-core itself would need a real card, and what is no library is not loaded.
LIBRARY = Path("/var/lib/vgpu/libvgpu.so")
LOCKS = Path("/tmp/vgpulock")
PRINT = """
echo "cards: $NVIDIA_VISIBLE_DEVICES"
echo "limits: $CUDA_DEVICE_SM_LIMIT $CUDA_DEVICE_MEMORY_LIMIT $LD_PRELOAD"
exec sleep infinity
"""
#: A card is broken or whole as soon as one look says so.
HASTY = {"health": {"badPolls": 1, "goodPolls": 1, "goodFor": "0s"}}
XID, INDEX = 79, 2


def values(example: str, **settings: str) -> dict[str, Any]:
    """Those of deploy/examples, for a cluster whose kind of Device is there."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/examples" / example / "values.yaml").read_text())
    config = yaml.safe_load(found["config"]["map"]["default"])
    config["agent"] = HASTY
    config["vendors"]["nvidia"].setdefault("settings", {}).update(settings)
    found["config"]["map"]["default"] = yaml.safe_dump(config)
    return found


WHOLE = values("koordinator-device")
SHARES = values("koordinator-shares", hamiCoreDirectory=str(LIBRARY.parent))


@dataclass
class Koordinator:
    """Its programs in the cluster."""

    cluster: Cluster
    space: Space
    manager: Manager = field(default_factory=Manager)
    scheduler: Scheduler = field(default_factory=Scheduler)
    pods: dict[str, Bound] = field(default_factory=dict)
    #: The scheduler binds one pod after the other.
    clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1_795_210_468))

    async def device(self) -> Object | None:
        try:
            return await self.cluster.api.get(DEVICE)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    async def sees(self, *health: bool) -> None:
        """Wait until the Device says so of the cards, and bring it to the Node as koord-manager does."""

        def says(device: Mapping[str, Any] | None) -> bool:
            return device is not None and [it["health"] for it in device["spec"]["devices"]] == list(health)

        self.manager.sees(await until(self.device, says, f"the Device to say {health}"))
        amount = {name: binary(it) for name, it in self.manager.resources.items()}
        await self._patch_node({"capacity": amount, "allocatable": amount})
        await self.cluster.label(*(f"{name}={it}" for name, it in self.manager.labels.items()))
        await self.cluster.offers(100 * sum(health), CORE)

    async def binds(
        self,
        name: str,
        limits: Mapping[str, str],
        *,
        script: str = PRINT,
        annotations: Mapping[str, str] | None = None,
        restart: str = "Never",
    ) -> list[str]:
        """Make the pod, choose its cards, write them on it and bind it; the cards' uuids.

        Raises:
            Unschedulable: It stays where it is.
        """
        made = pod(name, script, cards=0, schedulerName="koord-scheduler", restartPolicy=restart)
        made["metadata"]["annotations"] = dict(annotations or {})
        made["spec"]["containers"][0]["resources"] = {"limits": dict(limits)}
        await self.space.apply(made)
        offered = (await self.cluster.node())["status"]["allocatable"]
        bound = self.scheduler.bind(
            Asking(name, (limits,), namespace=self.space.name),
            await self.device(),
            list(self.pods.values()),
            allocatable=amounts({key: it for key, it in offered.items() if "/" in key}),
            labels=self.manager.labels,
            node=NODE,
            now=next(self.clock),
        )
        self.pods[name] = bound
        metadata = {"annotations": dict(bound.annotations), "labels": dict(bound.labels)}
        await self.space.bind(name, metadata)
        return [it["id"] for it in self.parts(name)]

    def parts(self, name: str) -> list[dict[str, Any]]:
        """What was written on the pod: its cards, and how much of each."""
        found: list[dict[str, Any]] = json.loads(self.pods[name].annotations[ALLOCATED])["gpu"]
        return found

    async def leaves(self) -> None:
        """Take from the Node what the manager gave it."""
        none = dict.fromkeys(self.manager.resources)
        if none:
            await self._patch_node({"capacity": none, "allocatable": none})
            await self.cluster.label(*(f"{name}-" for name in self.manager.labels))

    async def _patch_node(self, status: Mapping[str, Any]) -> None:
        patch = json.dumps({"status": status})
        options = ["--subresource=status", "--type=merge", f"--patch={patch}"]
        await self.cluster.api.kubectl("patch", "node", NODE, *options)


@pytest.fixture
async def koordinator(
    cluster: Cluster, space: Space, request: pytest.FixtureRequest
) -> AsyncIterator[Koordinator]:
    """The agent beside it, just installed with the values that the scenario names; four whole cards."""
    api = cluster.api
    await api.kubectl("apply", "--server-side", f"--filename={CRD}")
    await api.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")
    await cluster.agent.anew(request.param)
    it = Koordinator(cluster, space)
    yield it
    cluster.cards.clear()
    await it.leaves()
    await space.kubectl("delete", "pods", "--all", "--wait=false")
    await space.gone()
    await cluster.agent.uninstall()
    await api.kubectl("delete", "crd", KIND)


@pytest.fixture
def hami_core() -> Iterator[None]:
    """What stands for HAMi-core on the node."""
    LIBRARY.parent.mkdir(exist_ok=True)
    LIBRARY.write_text("no library")
    made = not LOCKS.exists()
    LOCKS.mkdir(exist_ok=True)
    yield
    if made:
        LOCKS.rmdir()


@pytest.mark.parametrize("koordinator", [WHOLE], indirect=True, ids=["whole"])
async def test_pods_get_the_cards_that_a_scheduler_chose_from_our_device(
    cluster: Cluster, space: Space, koordinator: Koordinator
) -> None:
    await koordinator.sees(True, True, True, True)
    await cluster.offers(4)

    await koordinator.binds("no-plugin", {CORE: "50", RATIO: "50", SHARED: "1"})
    await cluster.offers(3)
    one = await koordinator.binds("one", {GPU: "1"})
    await space.running(1, "one")
    two = await koordinator.binds("two", {GPU: "2"})
    await space.running(3)

    assert await space.cards("one") == one
    assert sorted(await space.cards("two")) == sorted(two)
    ledger = (await cluster.agent.inspect())["allocations"]
    assert sorted(uuid for it in ledger for uuid in it["devices"]) == sorted(
        it["id"] for name in koordinator.pods for it in koordinator.parts(name)
    )


@pytest.mark.long
@pytest.mark.parametrize("koordinator", [WHOLE], indirect=True, ids=["whole"])
async def test_a_broken_card_is_out_of_the_schedulers_sight_until_it_is_cleared(
    cluster: Cluster, space: Space, koordinator: Koordinator
) -> None:
    await koordinator.sees(True, True, True, True)
    await cluster.offers(4)
    broken = cluster.cards.uuid(INDEX)

    cluster.cards.xid(INDEX, XID)
    await cluster.offers(3)
    await koordinator.sees(*(it != INDEX for it in range(4)))
    three = await koordinator.binds("three", {GPU: "3"})
    with pytest.raises(Unschedulable):
        await koordinator.binds("late", {GPU: "1"})
    await space.running(1, "three")

    assert sorted(await space.cards("three")) == sorted(three)
    assert broken not in three
    await cluster.agent.run("xpu-agent", "health", "clear", broken)
    await cluster.offers(4)
    await koordinator.sees(True, True, True, True)
    assert await koordinator.binds("last", {GPU: "1"}) == [broken]
    await space.running(1, "last")
    assert await space.cards("last") == [broken]


@pytest.mark.parametrize("koordinator", [SHARES], indirect=True, ids=["shares"])
async def test_shares_come_with_card_and_limits_as_the_scheduler_wrote_them(
    cluster: Cluster, space: Space, hami_core: None, koordinator: Koordinator
) -> None:
    await koordinator.sees(True, True, True, True)
    await cluster.offers(400, TOKEN)

    for name, percent in (("big", "60"), ("small", "30"), ("other", "50")):
        await koordinator.binds(name, {CORE: percent, RATIO: percent, SHARED: "1", TOKEN: "1"})
        await space.running(1, name)

        [part] = koordinator.parts(name)
        assert await space.cards(name) == [part["id"]]
        memory = read(part["resources"][MEMORY])
        assert f"limits: {percent} {memory} {LIBRARY}\n" in await space.log(name)
    used = {it["id"] for name in koordinator.pods for it in koordinator.parts(name)}
    assert len(used) == 2, "the small one is beside the big one"
