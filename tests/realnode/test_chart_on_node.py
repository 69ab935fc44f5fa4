"""The chart as helm and the API server take it, the examples as they are, and our image's own demo."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from agent.vendors.simulated.child.scenario import cards as simulated
from deploy.chart import CHART

from .api import Object
from .cards import CONTROL
from .cluster import Cluster
from .place import ROOT
from .release import IMAGE, NAMESPACE, Release
from .space import GPU, Space, phase
from .test_lives_on import confirmed, holders, lives
from .test_sharing import TIME_SLICING
from .until import until

#: Seconds that the demo may take on a machine that does other work.
DEMO = 180.0
EXAMPLES = ROOT / "deploy/examples"
SIMULATED = "xpu-agent.io/simulated"
#: The example that an upgrade leads to.
SHARED = "nvidia-time-slicing"


@pytest.mark.parametrize("values", ["the chart's own", "this node's"])
async def test_a_dry_run_on_the_server_passes_and_makes_nothing(
    cluster: Cluster, agent: Release, values: str
) -> None:
    given = await agent.values() if values == "this node's" else {}
    options = ["--values=-", "--dry-run=server", "--output=json"]

    made = await agent.helm("install", "tried", str(CHART), *options, stdin=yaml.safe_dump(given))
    # helm asks for the kinds alone; the server judges each object.
    manifest = json.loads(made)["manifest"]
    tried = ["--dry-run=server", "--validate=strict", f"--namespace={NAMESPACE}", "--filename=-"]
    accepted = await cluster.api.kubectl("apply", *tried, stdin=manifest)

    names = [it["metadata"]["name"] for it in yaml.safe_load_all(manifest) if it]
    assert "tried-xpu-agent-nvidia" in names
    assert accepted.count("created (server dry run)") == len(names)
    assert "tried" not in await agent.helm("list", "--all", "--short")


async def test_the_demo_runs_to_its_end_in_the_image_with_the_rights_that_the_chart_gives(
    agent: Release, space: Space
) -> None:
    its_spec = (await agent.pod())["spec"]
    [container] = its_spec["containers"]
    kept = {
        key: container[key] for key in ("name", "image", "imagePullPolicy", "resources", "securityContext")
    }
    assert kept["securityContext"]["readOnlyRootFilesystem"]
    assert kept["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    tmp = {"name": "tmp", "mountPath": "/tmp"}
    demo = {**kept, "args": ["demo", "--fast"], "volumeMounts": [tmp]}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [demo],
        "volumes": [it for it in its_spec["volumes"] if it["name"] == tmp["name"]],
    }

    await space.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "demo"}, "spec": spec})

    async def its_phase() -> str:
        [its] = await space.pods()
        return phase(its)

    ended = await until(its_phase, lambda it: it in {"Succeeded", "Failed"}, "the demo to end", DEMO)
    log = await space.log("demo")
    assert ended == "Succeeded", log
    assert "Every step held" in log


async def test_an_upgrade_from_the_chart_s_values_to_shared_cards_loses_no_pod_and_no_owner(
    cluster: Cluster, agent: Release, space: Space
) -> None:
    held = await holders(space, "one", "two")
    await confirmed(agent, held)
    containers = await lives(space, held)

    await agent.hold(TIME_SLICING)

    # What is held whole is shared once it is free.
    await cluster.offers(2 + 2 * 10)
    await space.apply(pods_of(SHARED))
    new = {name: (await told(space, name)).split() for name in await space.running(5, SHARED)}
    taken, given = ({card for its in of.values() for card in its} for of in (held, new))
    assert [len(its) for its in new.values()] == [1] * 5
    assert given | taken == {cluster.cards.uuid(index) for index in range(4)}
    assert not given & taken
    assert await lives(space, held) == containers
    await confirmed(agent, held | new)


#: What stands for `nvidia-smi -L`, which NVIDIA's runtime brings: what the container was told, and what it
#: has. In one line, so that it is there as a whole or not at all.
LIST = "echo $NVIDIA_VISIBLE_DEVICES $(ls /dev/nvidia[0-9]* 2>/dev/null)"

#: What the pod of an example may print, word by word; one of these.
Prints = Callable[[Cluster], Sequence[list[str]]]


def uuids(*indices: int) -> Prints:
    return lambda cluster: [[cluster.cards.uuid(index)] for index in indices]


def nodes(cluster: Cluster) -> Sequence[list[str]]:
    """By CDI names alone: no card in the variable, and the device node of one."""
    return [["void", f"/dev/nvidia{index}"] for index in range(4)]


def slices(cluster: Cluster) -> Sequence[list[str]]:
    return [[cluster.cards.mig_uuid(0, number)] for number in range(3)]


def made_up(cluster: Cluster) -> Sequence[list[str]]:
    return [[it["uuid"]] for it in simulated(2)]


@dataclass(frozen=True)
class Promise:
    """What an example says of itself: what the Node offers, and what its pod prints."""

    offers: Mapping[str, int]
    prints: Prints


PROCFS = "procfs"
PROMISES = {
    "nvidia-exclusive": Promise({GPU: 4}, uuids(0, 1, 2, 3)),
    "nvidia-replicas": Promise({GPU: 2, f"{GPU}.shared": 8}, uuids(2, 3)),
    "nvidia-cdi": Promise({GPU: 4}, nodes),
    "nvidia-mig": Promise({GPU: 3, "nvidia.com/mig-1g.10gb": 3}, slices),
    "simulated-exclusive": Promise({SIMULATED: 2}, made_up),
    "simulated-slices": Promise({SIMULATED: 2}, made_up),
}


#: Those that others do much of already; the short form leaves them out.
LONG = {"nvidia-exclusive", "nvidia-cdi", "simulated-slices"}
#: Those that need Koordinator's programs: test_koordinator_on_node has them, and
#: scenarios/test_koordinator_page.
KOORDINATOR = {f"koordinator-{it}" for it in ("device", "feed", "shares", "simulated")}
#: Those of MetaX: test_metax_on_node has the one of slices, scenarios/test_metax_modes whole cards.
METAX = {"koordinator-metax", "metax-native"}
#: Those of Enflame: test_enflame_on_node plays their cards with the chart's values.
ENFLAME = {"enflame-gcushare-v1", "enflame-gcushare-v4"}


def test_every_example_is_tried() -> None:
    examples = {it.name for it in EXAMPLES.iterdir() if it.is_dir()}

    assert examples == {*PROMISES, SHARED, *KOORDINATOR, *METAX, *ENFLAME}


@pytest.mark.parametrize(
    "example", [pytest.param(it, marks=pytest.mark.long if it in LONG else ()) for it in PROMISES]
)
async def test_an_example_runs_with_its_values_and_prints_its_cards(
    cluster: Cluster, space: Space, example: str
) -> None:
    promise, values = PROMISES[example], yaml.safe_load((EXAMPLES / example / "values.yaml").read_text())
    if example == "nvidia-mig":
        values = with_slices(cluster, values)
    try:
        await cluster.agent.anew(values)
        for resource, count in promise.offers.items():
            await cluster.offers(count, resource)

        await space.apply(pods_of(example))

        await until(space.phases, lambda it: it == {example: "Succeeded"}, f"{example} to run to its end")
        assert (await told(space, example)).split() in promise.prints(cluster)
    finally:
        cluster.cards.mig_mode(0, enabled=False)


def with_slices(cluster: Cluster, values: Mapping[str, Any]) -> dict[str, Any]:
    """Card 0 is in three slices. The driver's list of them is not in the kernel's /proc here, and where it is
    can be said in a file of ours alone: the example's config is put in our words."""
    cluster.cards.mig(0)
    cluster.cards.write_minors(cluster.place.cards.parent / PROCFS)
    [(name, text)] = values["config"]["map"].items()
    settings = {**yaml.safe_load(text)["flags"], "procfs": f"{CONTROL}/{PROCFS}"}
    config = {"version": "v1", "vendors": {"nvidia": {"enabled": True, "settings": settings}}}
    return {**values, "config": {"map": {name: yaml.safe_dump(config)}}}


def pods_of(example: str) -> Object:
    """Its pod, or its Deployment, as it is but for what this node lacks: the image, and nvidia-smi (LIST)."""
    it: Object = yaml.safe_load((EXAMPLES / example / "pod.yaml").read_text())
    spec = it["spec"] if it["kind"] == "Pod" else it["spec"]["template"]["spec"]
    [container] = spec["containers"]
    command = container["command"]
    script = command[2] if command[0] == "sh" else " ".join(command)
    container |= {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script.replace("nvidia-smi -L", LIST)],
    }
    if it["kind"] != "Pod":
        spec["terminationGracePeriodSeconds"] = 1  # sleep does not hear that it should end
    return it


async def told(space: Space, name: str) -> str:
    """Wait until the pod has printed, and return what."""
    return await until(lambda: space.log(name), str.strip, f"{name} to print its cards")
