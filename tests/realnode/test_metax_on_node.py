"""MetaX's slices on a real node: document 001's pod, whose container sees its slice's device nodes alone."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from played_koordinator.wishes import CORE, MEMORY, SHARED

from .cluster import Cluster
from .place import ROOT, Place
from .space import Space
from .test_cdi import starts
from .test_koordinator_on_node import CRD, KIND, Koordinator
from .until import until

sys.path.append(str(ROOT / "tests/vendors/metax"))

from mxsml_stub import MxsmlStub, Slice

SGPU = "metax-tech.com/sgpu"
POLICY = "metax-tech.com/sgpu-qos-policy"
#: Where the node has MetaX's driver, and where the agent's pod sees the folder of the stub's script.
DRIVER, CONTROL = Path("/var/lib/mxdriver"), "/run/mxsml-stub"
COUNT = 2
#: What stands for device nodes reads as /dev/null does.
NULL = os.makedev(1, 3)
LOOK = """
ls /dev/mx* /dev/dri
echo shown
exec sleep infinity
"""
#: The same, and fails once it is told to.
DIES = """
ls /dev/mx* /dev/dri
echo shown
until [ -e /tmp/fail ]; do sleep 0.1; done
exit 1
"""
DOCUMENT_001 = {SHARED: "1", MEMORY: "1Gi", CORE: "10", SGPU: "1"}


def values(cards: MxsmlStub, sysfs: Path) -> dict[str, Any]:
    """Those of the example, with the stub's library and the sysfs of its cards."""
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / "deploy/examples/koordinator-metax/values.yaml").read_text()
    )
    config = yaml.safe_load(found["config"]["map"]["default"])
    inside = {"library": f"/driver-root{DRIVER}", "sysfs": f"{CONTROL}/{sysfs.name}"}
    config["vendors"]["metax"]["settings"] |= inside
    found["config"]["map"]["default"] = yaml.safe_dump(config)
    found["pools"]["metax"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
    found["vendors"]["metax"] |= {"libraries": [str(DRIVER)], "env": []}
    # Its slices outlive processes in files beside the script.
    volume = {"name": "script", "hostPath": {"path": str(cards.control.parent), "type": "Directory"}}
    return found | {
        "extraEnv": [{"name": "XPU_MXSML_STUB", "value": f"{CONTROL}/{cards.control.name}"}],
        "extraVolumes": [volume],
        "extraVolumeMounts": [{"name": "script", "mountPath": CONTROL}],
    }


@pytest.fixture
def metax(place: Place) -> Iterator[MxsmlStub]:
    """The cards, plugged in: library, device nodes of cards and of slices to come, sysfs."""
    folder = place.work / "metax"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cards = MxsmlStub(folder, COUNT)
    (DRIVER / "lib").mkdir(parents=True, exist_ok=True)
    shutil.copy(cards.library, DRIVER / "lib/libmxsml.so")
    Path("/dev/dri").mkdir(exist_ok=True)
    renders = [f"dri/renderD{it}" for it in (*range(128, 128 + COUNT), *range(160, 200))]
    made = [Path("/dev", it) for it in ("mxcd", *(f"dri/card{it}" for it in range(COUNT)), *renders)]
    made = [it for it in made if not it.exists()]
    for it in made:
        os.mknod(it, stat.S_IFCHR | 0o666, NULL)
    for slot in range(COUNT):
        bdf = cards.bdf(slot)
        for name in (f"card{slot}", f"renderD{128 + slot}"):
            (folder / "sys/module/metax/drivers/pci:METAX" / bdf / "drm" / name).mkdir(parents=True)
        (folder / "sys/bus/pci/devices" / bdf).mkdir(parents=True)
    yield cards
    for it in made:
        it.unlink()


@pytest.fixture
async def koordinator(cluster: Cluster, space: Space, metax: MxsmlStub) -> AsyncIterator[Koordinator]:
    """The agent beside it, just installed for these cards."""
    await cluster.api.kubectl("apply", "--server-side", f"--filename={CRD}")
    await cluster.api.kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=30s")
    await cluster.agent.anew(values(metax, metax.control.parent / "sys"))
    it = Koordinator(cluster, space)
    yield it
    await it.leaves()
    await space.kubectl("delete", "pods", "--all", "--wait=false")
    await space.gone()
    await cluster.agent.uninstall()
    await cluster.api.kubectl("delete", "crd", KIND)


async def seen(space: Space, name: str) -> set[str]:
    """What the container's log says of the nodes of MetaX's that are there."""
    log = await until(lambda: space.log(name), lambda it: "shown\n" in it, f"{name} to print what it has")
    return {line for line in log.split() if line.startswith(("/dev/mx", "card", "renderD"))}


def of_slice(it: Slice) -> set[str]:
    return {"/dev/mxcd", f"renderD{it.minor}"}


async def test_the_container_of_document_001_sees_its_slice_s_nodes_and_no_other_card_s(
    cluster: Cluster, space: Space, metax: MxsmlStub, koordinator: Koordinator
) -> None:
    await koordinator.sees(*[True] * COUNT)
    await cluster.offers(16 * COUNT, SGPU)

    chosen: dict[str, str] = {}
    made: dict[str, Slice] = {}
    for name in ("test-metax", "other"):
        before = {it.uuid for it in metax.slices()}
        [chosen[name]] = await koordinator.binds(
            name, DOCUMENT_001, script=LOOK, annotations={POLICY: "fixed-share"}
        )
        await space.running(1, name)
        [made[name]] = [it for it in metax.slices() if it.uuid not in before]

    for name, it in made.items():
        assert (metax.uuid(it.slot), it.vram, it.compute) == (chosen[name], 1024, 10)
        assert await seen(space, name) == of_slice(it)


async def _slices(metax: MxsmlStub) -> list[Slice]:
    return metax.slices()


@pytest.mark.long
@pytest.mark.timeout(480)
async def test_a_container_that_starts_after_the_driver_was_loaded_anew_sees_its_slice_made_again(
    cluster: Cluster, space: Space, metax: MxsmlStub, koordinator: Koordinator
) -> None:
    """What a reboot does to slices: gone, and other numbers come. With its pod it goes for good."""
    await koordinator.sees(*[True] * COUNT)
    await cluster.offers(16 * COUNT, SGPU)
    await koordinator.binds("lasting", DOCUMENT_001, script=DIES, restart="Always")
    await space.running(1, "lasting")
    [before] = metax.slices()
    assert await seen(space, "lasting") == of_slice(before)

    metax.reboot()
    await space.kubectl("exec", "lasting", "--", "touch", "/tmp/fail")

    await until(
        lambda: starts(space, "lasting"), lambda it: it >= 2, "the container to start for the second time"
    )
    [after] = metax.slices()
    assert (after.alias, after.vram, after.compute) == (before.alias, 1024, 10)
    assert after.minor != before.minor
    assert await seen(space, "lasting") == of_slice(after)
    await space.kubectl("delete", "pod", "lasting", "--wait=false")
    # For two minutes after its start the agent believes nobody that a pod is gone.
    await until(lambda: _slices(metax), lambda left: not left, "the slice to go with its pod", 240)
