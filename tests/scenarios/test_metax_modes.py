"""The modes of MetaX's cards: what each offers, and how a node goes from one to another while pods run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.testing.node_kubelet import Container, Pod
from agent.vendor_api.agent import State
from agent.vendors.metax.agent.nodedevices import ANNOTATION

from .conftest import ONLY_METAX
from .metax import SGPU, MetaX, gets
from .node import LOOK, PATIENCE, Node, confirmed, device, in_use, one, released

pytestmark = ONLY_METAX

GPU = "metax-tech.com/gpu"
MODES = ("native", "shared", "sgpu", "vgpu")


@pytest.fixture
def metax(node: Node) -> MetaX:
    assert isinstance(node.cards, MetaX)
    return node.cards


async def served(node: Node, mode: str, counted: dict[str, tuple[int, int]], **settings: Any) -> None:
    goes(node, mode, **settings)
    await node.start()
    await node.counts(counted)


def goes(node: Node, mode: str, **settings: Any) -> None:
    assert isinstance(node.cards, MetaX)
    node.cards.mode, node.cards.more = mode, settings
    node.configure()


def annotated(node: Node) -> bool:
    """Whether the Node is to have the annotation of slices."""
    wanted = node.agent.parts.publisher.annotations.value
    return bool(wanted and wanted.values.get(ANNOTATION))


async def test_a_whole_card_comes_with_its_nodes_and_no_other_ones(node: Node, metax: MetaX) -> None:
    await served(node, "native", {GPU: (4, 4)})
    pods = [await node.admit(f"pod-{n}", {GPU: 1}) for n in range(4)]

    cards = [await node.cards_of(pod) for pod in pods]

    assert set().union(*cards) == set(metax.uuids)
    for pod, [uuid] in zip(pods, cards, strict=True):
        slot = metax.uuids.index(uuid)
        own = {"/dev/mxcd", f"/dev/dri/card{slot}", f"/dev/dri/renderD{128 + slot}"}
        assert (await gets(node, pod)).nodes == own
    await node.refused("fifth", {GPU: 1})
    assert metax.slices == []
    assert not annotated(node)


async def test_a_shared_card_is_had_by_as_many_as_is_said(node: Node, metax: MetaX) -> None:
    await served(node, "shared", {GPU: (8, 8)})

    pods = [await node.admit(f"pod-{n}", {GPU: 1}) for n in range(8)]

    cards = [uuid for pod in pods for uuid in await node.cards_of(pod)]
    assert sorted(cards) == sorted(metax.uuids * 2)
    goes(node, "shared", shareNums=4)
    await node.counts({GPU: (16, 16)})


async def test_virtual_functions_are_given_out_each_to_one(node: Node, metax: MetaX) -> None:
    for slot in (0, 1):
        metax.stub.physical(slot, 2)

    await served(node, "vgpu", {GPU: (4, 4)})

    pods = [await node.admit(f"pod-{n}", {GPU: 1}) for n in range(4)]
    cards = [uuid for pod in pods for uuid in await node.cards_of(pod)]
    assert sorted(cards) == sorted(metax.stub.vf_uuid(slot, vf) for slot in (0, 1) for vf in (0, 1))


async def test_another_mode_empties_the_old_resource_and_takes_the_nodes_annotation_away(
    node: Node, metax: MetaX
) -> None:
    await served(node, "sgpu", {SGPU: (64, 64)})
    await node.until(lambda _: annotated(node))

    goes(node, "native")

    await node.counts({SGPU: (0, 0), GPU: (4, 4)})
    await node.until(lambda _: not annotated(node))
    await node.refused("late", {SGPU: 1})
    await node.admit("whole", {GPU: 1})
    goes(node, "sgpu")
    await node.counts({SGPU: (48, 48), GPU: (1, 1)})
    await node.until(lambda _: annotated(node))


async def test_a_card_goes_over_to_another_mode_once_its_slices_are_gone(node: Node, metax: MetaX) -> None:
    await served(node, "sgpu", {SGPU: (64, 64)})
    pod = await node.admit("running", {SGPU: 1})
    await node.until(lambda it: confirmed(it, pod))
    [made] = metax.slices

    goes(node, "native")

    await node.counts({GPU: (3, 3), SGPU: (1, 0)})
    assert metax.slices == [made]  # nothing is taken from who runs
    assert device(node.view, metax.uuids[made.slot]).health.state is State.UNHEALTHY
    others = [await node.admit(f"whole-{n}", {GPU: 1}) for n in range(3)]
    assert metax.uuids[made.slot] not in {uuid for it in others for uuid in await node.cards_of(it)}
    await node.kubelet.delete(pod.uid)
    await node.until(lambda it: released(it, pod))
    assert metax.slices == []
    await node.counts({GPU: (4, 4)})
    await node.counts({SGPU: (0, 0)})
    await node.admit("last", {GPU: 1})


async def test_slices_of_a_mode_before_go_with_their_pods_also_where_our_checkpoint_is_lost(
    node: Node, metax: MetaX
) -> None:
    await served(node, "sgpu", {SGPU: (64, 64)})
    gone, stays = [await node.admit(name, {SGPU: 1}) for name in ("gone", "stays")]
    await node.until(lambda it: confirmed(it, gone, stays))
    await node.stop()
    (node.state / "checkpoint.json").unlink()
    await node.kubelet.delete(gone.uid)
    goes(node, "native")

    await node.start()

    await node.until(lambda _: len(metax.slices) == 1)
    [kept] = metax.slices
    await node.counts({GPU: (3, 3), SGPU: (1, 0)})
    await node.kubelet.delete(stays.uid)
    await node.until(lambda _: not metax.slices)
    await node.counts({GPU: (4, 4)})
    assert kept.alias.startswith("xpu-")


async def test_a_slice_that_somebody_made_keeps_a_whole_card_from_being_given_out(
    node: Node, metax: MetaX
) -> None:
    await served(node, "native", {GPU: (4, 4)})

    theirs = metax.stub.make_slice(1, 1024, 10)

    await node.counts({GPU: (4, 3)})
    await node.until(lambda it: device(it, metax.uuids[1]).health.reason == "sliced")
    metax.stub.vanish(1, theirs.id)
    await node.counts({GPU: (4, 4)})


# metax-device-config


def write(node: Node, cluster: str = "", nodes: str = "") -> Path:
    """The ConfigMap as the kubelet mounts it: a link to a directory that is replaced whole."""
    root = node.root / "metax-device-config"
    root.mkdir(exist_ok=True)
    fresh = root / f"..{len(list(root.glob('..2*'))) + 20}"
    fresh.mkdir()
    for key, text in (("version", "v1"), ("cluster-config", cluster), ("nodes-config", nodes)):
        (fresh / key).write_text(text)
        if not (root / key).is_symlink():
            (root / key).symlink_to(f"..data/{key}")
    link = root / "..data.new"
    link.symlink_to(fresh.name)
    link.rename(root / "..data")
    return root


def from_directory(node: Node, directory: Path) -> None:
    """The mode is said there, and nowhere else."""
    node.configure()
    document = json.loads(node.config.read_text())
    its = document["vendors"]["metax"]
    del its["settings"]["mode"], its["resources"]
    its["configDir"] = str(directory)
    node.write(json.dumps(document))


async def replaced_until_it_runs(node: Node, name: str, limits: dict[str, int]) -> Pod:
    """A pod as its controller makes it anew: while the vendor's process starts, none is admitted."""
    refused = ""
    with anyio.move_on_after(PATIENCE):
        for number in itertools.count():
            pod = Pod(f"{name}-{number}", (Container(limits),))
            verdict = await node.kubelet.admit(pod)
            if verdict.admitted:
                return pod
            refused = verdict.message
            await node.kubelet.delete(pod.uid)
            await anyio.sleep(LOOK)
    raise AssertionError(f"never admitted: {refused}")


async def test_the_config_map_of_metax_chooses_the_mode_and_is_followed(node: Node, metax: MetaX) -> None:
    from_directory(node, write(node, "mode: native\n"))
    await node.start()
    await node.counts({GPU: (4, 4)})

    write(node, "mode: native\n", '- nodeName: "node"\n  mode: "sgpu"\n')

    await node.counts({GPU: (0, 0), SGPU: (64, 64)})
    pod = await replaced_until_it_runs(node, "slice", {SGPU: 1})
    node.shows(pod)
    assert await node.start_of(pod) in {it.alias.removeprefix("xpu-") for it in metax.slices}


async def test_an_unknown_mode_keeps_the_last_good_one_and_names_the_four(node: Node, metax: MetaX) -> None:
    from_directory(node, write(node, "mode: sgpu\n"))
    await node.start()
    await node.counts({SGPU: (64, 64)})
    pod = await node.admit("slice", {SGPU: 1})

    write(node, "mode: mig\n")

    view = await node.until(lambda it: it.config_error)
    assert all(mode in view.config_error for mode in ("'mig'", *MODES))
    await node.counts({SGPU: (64, 64)})
    await node.admit("another", {SGPU: 1})
    await node.until(lambda it: len(in_use(it)) == 2 and confirmed(it, pod))
    write(node, "mode: shared\n")
    await node.until(lambda it: not it.config_error)
    await node.counts({GPU: (4, 4)})


async def test_an_unknown_mode_in_our_config_keeps_the_last_good_one(node: Node, metax: MetaX) -> None:
    await served(node, "shared", {GPU: (8, 8)})

    goes(node, "mps")

    view = await node.until(lambda it: it.config_error)
    assert all(mode in view.config_error for mode in ("mps", *MODES))
    await node.counts({GPU: (8, 8)})
    assert (await node.kubelet.admit(one("pod", GPU))).admitted
