"""Enflame's cards on a real node: who sees which card's node, in every way that cards are counted."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from scenarios.enflame import DRS, GB, GCU, MEMORY, SHARED
from scenarios.gcushare import ASSIGNED, RECORDS, SCHEDULER, first, fourth

from .cards import NULL
from .cluster import Cluster
from .kubelet import NODE
from .place import ROOT, Place
from .release import CDI, NAME
from .space import Space, pod
from .test_cdi import starts
from .until import until

sys.path.append(str(ROOT / "tests/vendors/enflame"))

from efml_stub import STUB, EfmlStub, Instance
from enflame_tree import Tree

COUNT = "enflame.com/gcu-count"
RECORD = "xpu-agent.io/extended-resources"
LABEL = "enflame.com/gcushare"
CARDS = 3
#: Where the node has what Enflame's packages bring.
LIBRARY = Path("/usr/local/efsmi/efsmi-1.7.2.14/lib/libefml.so")
EFSMI = Path("/usr/local/bin/efsmi")
LOG = Path("/var/log/xpu-agent/xpu-agent.log")
#: The agent's image has no other Python.
TOOL = """\
#!/usr/bin/python3 -IS
import runpy, sys
sys.argv.insert(1, {control!r})
runpy.run_path({code!r}, run_name="__main__")
"""
LOOK = """
echo "card $ENFLAME_VISIBLE_DEVICES"
echo "slice $TOPS_VISIBLE_DEVICES"
for it in $(ls /dev); do case $it in gcu*) echo "node $it" ;; esac; done
echo shown
"""
STAYS = f"{LOOK}exec sleep infinity\n"
#: Fails once it is told to.
DIES = f"{LOOK}until [ -e /tmp/fail ]; do sleep 0.1; done\nexit 1\n"


@dataclass(frozen=True)
class Given:
    """What a container was told, and what `ls /dev` shows it of Enflame's."""

    card: str
    slice: str
    nodes: tuple[str, ...]


def of_card(minor: object, slice: str = "") -> Given:
    """What a container has that has this card, and no other."""
    return Given(str(minor), slice, (f"gcu{minor}", "gcuctl"))


def values(example: str, cards: EfmlStub) -> dict[str, Any]:
    """Those of the example, with the sysfs of its cards, on a node without Enflame's runtime."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/examples" / example / "values.yaml").read_text())
    folder = cards.control.parent
    config = yaml.safe_load(found["config"]["map"]["default"])
    config["vendors"]["enflame"]["settings"]["sysfs"] = str(folder / "enflame/sys")
    found["config"]["map"]["default"] = yaml.safe_dump(config)
    libraries = ["/usr/local/efsmi", str(EFSMI.parent)]
    # The slices outlive processes in files beside the script.
    volume = {"name": "script", "hostPath": {"path": str(folder), "type": "Directory"}}
    return found | {
        "vendors": {"enflame": {"libraries": libraries}},
        "extraEnv": [{"name": name, "value": it} for name, it in cards.environment.items()],
        "extraVolumes": [volume],
        "extraVolumeMounts": [{"name": "script", "mountPath": str(folder)}],
    }


@pytest.fixture
def enflame(place: Place) -> Iterator[EfmlStub]:
    """The cards, plugged in: library, tool, device nodes, sysfs. Slots 0, 1, 2 are gcu1, gcu2, gcu0."""
    folder = place.work / "enflame"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cards = EfmlStub(folder, CARDS)
    for slot in range(CARDS):
        cards.minor(slot, (slot + 1) % CARDS)
    Tree(folder / "enflame", cards)
    install(cards)
    LOG.unlink(missing_ok=True)
    made = [Path("/dev", it) for it in ("gcuctl", *(f"gcu{minor}" for minor in range(CARDS)))]
    for it in made:
        os.mknod(it, stat.S_IFCHR | 0o666, NULL)
    yield cards
    for it in made:
        it.unlink()


def install(cards: EfmlStub) -> None:
    """Put library and tool where Enflame's packages have them."""
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(cards.library, LIBRARY)
    code = cards.control.with_name("efsmi.py")
    shutil.copy(STUB / "efsmi.py", code)
    EFSMI.write_text(TOOL.format(control=str(cards.control), code=str(code)))
    EFSMI.chmod(0o755)


@dataclass(frozen=True)
class GCUShare:
    """Its scheduler beside the agent: it writes its word on pods, and binds them."""

    cluster: Cluster
    space: Space
    cards: EfmlStub

    async def starts(self, example: str, **offered: int) -> None:
        """Install the agent with the example's values, and wait until the Node offers so much."""
        await self.cluster.agent.anew(values(example, self.cards))
        for name, count in offered.items():
            await self.cluster.offers(count, name)

    async def binds(
        self,
        name: str,
        resource: str,
        count: int,
        word: Mapping[str, str],
        script: str = STAYS,
        **more: Any,
    ) -> Given:
        """Make the pod, say where it goes, and wait until it runs; what its container has."""
        made = pod(name, script, count, resource, schedulerName=SCHEDULER, **more)
        await self.space.apply(made)
        await self.space.bind(name, {"annotations": word})
        return await self.runs(name)

    async def runs(self, name: str) -> Given:
        await self.space.running(1, name)
        log = await until(
            lambda: self.space.log(name), lambda it: "shown\n" in it, f"{name} to print what it has"
        )
        words = [line.partition(" ")[::2] for line in log.splitlines()]
        [card], [part] = ([it for key, it in words if key == said] for said in ("card", "slice"))
        return Given(card, part, tuple(it for key, it in words if key == "node"))

    async def says(self, name: str, key: str, text: str) -> Mapping[str, str]:
        """Wait until this stands on the pod; all that does."""

        async def annotations() -> Mapping[str, str]:
            [it] = await self.space.pods(name)
            its: Mapping[str, str] = it["metadata"]["annotations"]
            return its

        return await until(annotations, lambda it: it.get(key) == text, f"{name} to say {key}: {text}")

    async def counted(self) -> tuple[str | None, str | None]:
        """`gcu-count` in the Node's capacity and allocatable."""
        status = (await self.cluster.node())["status"]
        return status["capacity"].get(COUNT), status["allocatable"].get(COUNT)

    async def counts(self, count: str | None) -> None:
        await until(self.counted, lambda it: it == (count, count), f"the Node to count {count} cards")


@pytest.fixture
async def gcushare(cluster: Cluster, space: Space, enflame: EfmlStub) -> AsyncIterator[GCUShare]:
    """No agent is there yet; the node is one of those that share their cards."""
    await cluster.label(f"{LABEL}=true")
    yield GCUShare(cluster, space, enflame)
    await space.kubectl("delete", "pods", "--all", "--wait=false")
    await space.gone()
    if await cluster.agent.values() is not None:
        await cluster.agent.uninstall()
    await cluster.label(f"{LABEL}-")
    await forgotten(cluster)


async def forgotten(cluster: Cluster) -> None:
    """Take from the Node what an agent that was uninstalled without its hook has left."""
    await told(cluster, {"status": {key: {COUNT: None} for key in ("capacity", "allocatable")}})
    annotations = [f"enflame.com/gcu-{it}-capacity-" for it in ("shared", "drs")]
    await cluster.api.kubectl("annotate", "node", NODE, f"{RECORD}-", *annotations)


async def told(cluster: Cluster, changes: object) -> None:
    """Change the Node's status."""
    patch = ["--subresource=status", "--type=merge", f"--patch={json.dumps(changes)}"]
    await cluster.api.kubectl("patch", "node", NODE, *patch)


async def test_pods_of_document_002_see_the_card_that_was_chosen_and_no_other(
    gcushare: GCUShare, enflame: EfmlStub
) -> None:
    """Units of memory where GCUShare's extender said, beside a whole card."""
    for slot in range(CARDS):
        enflame.memory(slot, 16 * GB)
    await gcushare.starts("enflame-gcushare-v1", **{GCU: CARDS, MEMORY: 16 * CARDS})
    await gcushare.counts(str(CARDS))

    four = await gcushare.binds("gcushare-pod-1", MEMORY, 4, first(2, 4))
    eight = await gcushare.binds("gcushare-pod-2", MEMORY, 8, first(0, 8, 1))
    await gcushare.space.apply(pod("whole", STAYS, 1, GCU))

    assert [four, eight, await gcushare.runs("whole")] == [of_card(2), of_card(0), of_card(1)]
    for name in ("gcushare-pod-1", "gcushare-pod-2"):
        await gcushare.says(name, "enflame.com/gcu-device-assigned", "true")


@pytest.mark.long
@pytest.mark.timeout(480)
async def test_pods_with_slices_see_their_card_alone_and_a_slice_of_the_hardware_goes_with_its_pod(
    gcushare: GCUShare, enflame: EfmlStub
) -> None:
    await gcushare.starts("enflame-gcushare-v4", **{GCU: CARDS, SHARED: 6 * CARDS, DRS: 6 * CARDS})

    shared = await gcushare.binds("shared", SHARED, 2, fourth(2, 2))
    sliced = await gcushare.binds("sliced", DRS, 3, fourth(0, 3, 1, main="3g.20gb:1"))
    await gcushare.space.apply(pod("whole", STAYS, 1, GCU))

    [made] = enflame.instances()
    assert (enflame.card(made.slot).minor, made.profile) == (0, "3g.20gb")
    assert [shared, sliced] == [of_card(2), of_card(0, f"DRS-{made.uuid}")]
    assert await gcushare.runs("whole") == of_card(1)
    for name, words in (("shared", {}), ("sliced", {"instanceUUID": made.uuid})):
        record = json.loads((await gcushare.says(name, ASSIGNED, "true"))[RECORDS])["main"]
        assert {"allocated": True, **words}.items() <= record.items()
    assert made.uuid in await specs()

    await gcushare.space.kubectl("delete", "pod", "sliced", "--wait=false")
    # For two minutes after its start the agent believes nobody that a pod is gone.
    await until(lambda: sliced_now(enflame), lambda it: it == ([], []), "the slice to go with its pod", 240)
    await until(specs, lambda it: made.uuid not in it, "its CDI name to go")


async def specs() -> str:
    """What containers' CDI names stand for."""
    return "".join(it.read_text() for it in CDI.glob("*drs-gcu*.json"))


async def sliced_now(cards: EfmlStub) -> tuple[list[Instance], list[int]]:
    """The slices of the hardware, and the slots that are switched to have some."""
    return cards.instances(), cards.drs()


@pytest.mark.long
async def test_a_container_that_starts_after_the_driver_was_loaded_anew_is_told_of_its_slice_made_again(
    gcushare: GCUShare, enflame: EfmlStub
) -> None:
    """What a reboot does to slices, as we assume: they are gone."""
    await gcushare.starts("enflame-gcushare-v4", **{DRS: 6 * CARDS})
    word = fourth(2, 1, main="1g.6gb:0")
    given = await gcushare.binds("lasting", DRS, 1, word, DIES, restartPolicy="Always")
    [before] = enflame.instances()
    assert given == of_card(2, f"DRS-{before.uuid}")

    enflame.driver_reload()
    await gcushare.space.kubectl("exec", "lasting", "--", "touch", "/tmp/fail")

    await until(lambda: starts(gcushare.space, "lasting"), lambda it: it >= 2, "the container to start anew")
    [after] = enflame.instances()
    assert (after.slot, after.profile) == (before.slot, before.profile)
    assert after.uuid != before.uuid
    assert await gcushare.runs("lasting") == of_card(2, f"DRS-{after.uuid}")


@pytest.mark.long
async def test_the_kubelet_keeps_how_many_cards_are_shared_and_the_agent_says_it_anew_where_it_was_set_to_0(
    cluster: Cluster, gcushare: GCUShare
) -> None:
    await gcushare.starts("enflame-gcushare-v4", **{GCU: CARDS, SHARED: 6 * CARDS})
    await gcushare.counts(str(CARDS))

    written = await writes(cluster)
    await gcushare.binds("holder", SHARED, 1, fourth(1, 1))

    await heartbeats(cluster, 3)
    before = await served(cluster)
    await cluster.kubelet.restart()
    await until(lambda: served(cluster), lambda it: it == before + 3, "the resources to be registered anew")
    await heartbeats(cluster, 3)
    assert await gcushare.counted() == (str(CARDS), str(CARDS))
    assert await writes(cluster) == written, "it is the kubelet that kept it"

    # As a kubelet does it at its start where it takes the node for one that was made anew.
    await told(cluster, {"status": {key: {COUNT: "0"} for key in ("capacity", "allocatable")}})
    await until(lambda: writes(cluster), lambda it: it > written, "the agent to count for the Node again")
    await heartbeats(cluster, 2)
    assert await gcushare.counted() == (str(CARDS), str(CARDS))


async def writes(cluster: Cluster) -> float:
    """How often the agent that runs has counted for the Node."""
    return (await cluster.agent.metrics())["xpu_agent_extended_writes_total"]


async def served(cluster: Cluster) -> int:
    """How often the agent that runs has registered its resources, all together."""
    return sum(int(it["registrations"]) for it in (await cluster.agent.inspect())["resources"])


async def heartbeats(cluster: Cluster, count: int) -> None:
    """Wait until the kubelet has written the Node's status so often."""
    seen: set[str] = set()

    async def beats() -> int:
        conditions = (await cluster.node())["status"]["conditions"]
        seen.update(it["lastHeartbeatTime"] for it in conditions if it["type"] == "Ready")
        return len(seen)

    await until(beats, lambda it: it > count, "the kubelet to write the Node's status")


@pytest.mark.long
async def test_with_the_release_goes_what_was_counted_and_the_log_on_the_host_stays(
    cluster: Cluster, gcushare: GCUShare
) -> None:
    hook = {"uninstall": {"hook": True}}
    await cluster.agent.anew({**values("enflame-gcushare-v4", gcushare.cards), **hook})
    await cluster.offers(CARDS, GCU)
    await gcushare.counts(str(CARDS))

    await cluster.agent.helm("uninstall", NAME)

    assert await gcushare.counted() == (None, None)
    annotations = (await cluster.node())["metadata"].get("annotations", {})
    assert [it for it in annotations if it.startswith(("enflame.com/", "xpu-agent.io/"))] == []
    assert "registered" in {it["event"] for it in logged()}
    assert stat.S_IMODE(os.stat(LOG).st_mode) == 0o600


def logged() -> list[dict[str, Any]]:
    return [json.loads(it) for it in LOG.read_text().splitlines()]
