"""Every source of evidence may fail alone; what cannot be read is said once, and stands for nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agent.core.allocation.answer_annotations import ALLOCATION
from agent.core.errors import VendorAbsent, VendorError
from agent.core.model import Owner
from agent.core.reconciling.reconcile_evidence import FOREIGN, CheckpointAnswer, Evidence, Pods
from agent.daemon.reconciling.evidence_sources import (
    EvidenceSources,
    allocation_id,
    checkpoint_answer,
    running_pods,
)
from agent.kubelet.kubelet_checkpoint import CheckpointEntry, KubeletCheckpoint
from agent.kubelet.kubelet_errors import KubeletError
from agent.vendor_api.agent import ContainerEdits, Partition

XPU = "example.com/xpu"
UID = "8f4e6b1a-0000-4000-8000-00000000000a"
SHOWN: Pods = {("default", "web"): {"main": {XPU: frozenset({"a"})}}}
WEB = Owner(UID, "main", "default", "web")
GONE = Owner("uid-gone", "main", "default", "gone")
SLICE = Partition("a1/0", "a", "a1")


def entry(allocation: str | None, resource: str = XPU, container: str = "main") -> CheckpointEntry:
    annotations = {} if allocation is None else {ALLOCATION: allocation}
    return CheckpointEntry(UID, container, resource, ("a",), ContainerEdits(annotations=annotations))


@dataclass
class World:
    """What the sources say; `broken` names those that cannot be read."""

    entries: Sequence[CheckpointEntry] | None = (entry("a1"),)
    broken: set[str] = field(default_factory=set)
    running: frozenset[str] | None = None
    life: str = "k1"
    settled: bool = True
    #: The one life that has served for long enough.
    settled_life: str = "k1"
    hangs: bool = False
    proofs: list[bool] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def read(self, prove: bool) -> KubeletCheckpoint | None:
        self.proofs.append(prove)
        self.meanwhile()
        if "kubelet checkpoint" in self.broken:
            raise KubeletError("torn")
        return None if self.entries is None else KubeletCheckpoint(tuple(self.entries))

    async def in_use(self) -> Pods:
        if self.hangs:
            await anyio.sleep_forever()
        if "PodResources" in self.broken:
            raise KubeletError("refused")
        return SHOWN

    async def partitions(self, vendor: str) -> Sequence[Partition]:
        if f"slices of {vendor}" in self.broken:
            raise VendorError(f"{vendor}: hung")
        return [SLICE]

    def sources(self, patience: float = 5.0) -> EvidenceSources:
        return EvidenceSources(
            self.read,
            self.in_use,
            self.partitions,
            lambda: self.running,
            lambda: self.life,
            lambda life: self.settled and life == self.settled_life,
            patience=patience,
        )


ANSWER = ContainerEdits(annotations={ALLOCATION: "a1"})
GRANTED = (CheckpointAnswer("a1", UID, "main", XPU, ("a",), edits=ANSWER),)
SLICES = {"acme": (SLICE,), "other": (SLICE,)}


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("", Evidence(GRANTED, pods=SHOWN, partitions=SLICES, life="k1", settled=True)),
        ("kubelet checkpoint", Evidence(None, pods=SHOWN, partitions=SLICES, life="k1", settled=True)),
        ("PodResources", Evidence(GRANTED, pods=None, partitions=SLICES, life="k1", settled=True)),
        (
            "slices of other",
            Evidence(GRANTED, pods=SHOWN, partitions={"acme": (SLICE,)}, life="k1", settled=True),
        ),
    ],
)
async def test_a_source_that_can_not_be_read_leaves_the_others_as_they_are(
    broken: str, expected: Evidence
) -> None:
    sources = World(broken={broken}).sources()

    assert await sources.evidence(["acme", "other"]) == expected
    assert set(sources.complaints) == {broken} - {""}
    assert dict(sources.unreadable) == ({broken: 1} if broken else {})


async def test_a_vendor_that_is_not_on_this_node_has_no_slices_that_could_not_be_read() -> None:
    world = World()

    async def partitions(vendor: str) -> Sequence[Partition]:
        raise VendorAbsent(f"{vendor}: library-not-found")

    sources = EvidenceSources(world.read, world.in_use, partitions)
    found = await sources.evidence(["acme"])

    assert found.partitions == {}
    assert (dict(sources.complaints), dict(sources.unreadable)) == ({}, {})


async def test_without_the_kubelets_file_nothing_is_known_of_what_it_grants() -> None:
    """It writes one at the first list that it receives; none is not an empty one."""
    found = await World(entries=None).sources().evidence()

    assert found.granted is None


async def test_what_can_not_be_read_is_said_once_and_counted_each_time() -> None:
    world = World(broken={"kubelet checkpoint"})
    sources = world.sources()

    with structlog.testing.capture_logs() as told:
        for broken in (["kubelet checkpoint"], ["kubelet checkpoint"], [], ["kubelet checkpoint"]):
            world.broken = {*broken}
            await sources.evidence()

    assert [(it["source"], it["error"]) for it in told] == [("kubelet checkpoint", "torn")] * 2
    assert sources.unreadable["kubelet checkpoint"] == 3


async def test_a_complaint_ends_with_its_cause() -> None:
    world = World(broken={"PodResources"})
    sources = world.sources()
    await sources.evidence()
    said = sources.complaints
    world.broken.clear()
    await sources.evidence()

    assert said == {"PodResources": "refused"}
    assert sources.complaints == {}


async def test_only_the_vendors_named_are_asked_for_their_slices() -> None:
    assert (await World().sources().evidence()).partitions == {}


@pytest.mark.parametrize("prove", [True, False])
async def test_the_proof_of_the_kubelets_file_is_asked_for_and_noted(prove: bool) -> None:
    world = World()

    found = await world.sources().evidence(prove=prove)

    assert (found.proven, world.proofs) == (prove, [prove])


async def test_a_life_of_the_kubelet_that_has_not_served_for_long_is_not_settled() -> None:
    assert not (await World(settled=False).sources().evidence()).settled
    assert not (await World(life="").sources().evidence()).settled


async def test_a_life_of_the_kubelet_is_not_settled_by_how_long_another_has_served() -> None:
    found = await World(life="k2").sources().evidence()

    assert (found.life, found.settled, found.steady) == ("k2", False, True)


async def test_a_life_of_the_kubelet_is_steady_while_it_has_a_name_however_short_it_has_served() -> None:
    assert (await World(settled=False).sources().evidence()).steady
    assert not (await World(life="").sources().evidence()).steady


async def test_a_kubelet_that_began_anew_meanwhile_is_not_settled_and_has_not_granted_this() -> None:
    world = World()
    world.meanwhile = lambda: setattr(world, "life", "k2")

    found = await world.sources().evidence()

    assert (found.life, found.settled, found.steady) == ("k1", False, False)


def test_an_answer_of_ours_is_known_by_its_annotation_and_another_plugins_by_its_place() -> None:
    others = [entry(None), entry(""), entry(None, container="side"), entry(None, resource="a/b")]

    ids = [allocation_id(it) for it in others]

    assert allocation_id(entry("a1")) == "a1"
    assert all(it.startswith(FOREIGN) for it in ids)
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert allocation_id(CheckpointEntry("\udc80", "main", XPU, ())).startswith(FOREIGN)


# Whether a pod is there


async def test_a_pod_is_there_where_the_kubelet_lists_it() -> None:
    assert await World().sources().existing_owners([WEB, GONE]) == {WEB}
    assert await World(broken={"PodResources"}).sources().existing_owners([WEB]) == frozenset()


async def test_a_pod_without_a_cgroup_is_over_although_it_is_listed() -> None:
    """Kubelets up to 1.33 list ended pods, and all of them a pod that has come back under its name."""
    assert await World(running=frozenset({UID})).sources().existing_owners([WEB]) == {WEB}
    world = World(running=frozenset({"another"}), hangs=True)
    assert await world.sources(patience=3600).existing_owners([WEB]) == frozenset()


@pytest.mark.parametrize(
    ("world", "owner", "gone"),
    [
        pytest.param(World(), GONE, True, id="listed no more"),
        pytest.param(World(), WEB, False, id="listed"),
        pytest.param(World(running=frozenset({UID})), GONE, True, id="no cgroup"),
        pytest.param(World(running=frozenset()), Owner("", "main", "default", "gone"), False, id="no uid"),
        pytest.param(World(), Owner("uid-gone", "main"), False, id="never named"),
        pytest.param(World(broken={"PodResources"}), GONE, False, id="no list"),
        pytest.param(World(hangs=True), GONE, False, id="no list in time"),
        pytest.param(World(settled=False), GONE, False, id="a kubelet that has just begun"),
        pytest.param(World(life=""), GONE, False, id="no kubelet"),
    ],
)
async def test_a_pod_is_not_over_where_nobody_who_knows_all_pods_says_so(
    world: World, owner: Owner, gone: bool
) -> None:
    assert await world.sources(patience=0.01).ended_owners([owner]) == ({owner} if gone else set())


async def test_a_pod_is_not_over_where_another_kubelet_has_begun_while_it_was_asked() -> None:
    world = World()

    async def in_use() -> Pods:
        world.life = "k2"
        return SHOWN

    sources = EvidenceSources(
        world.read, in_use, world.partitions, life=lambda: world.life, settled=lambda life: life == "k1"
    )

    assert await sources.ended_owners([GONE]) == frozenset()


async def test_an_allocate_waits_for_pod_resources_no_longer_than_its_patience() -> None:
    with anyio.fail_after(30):
        assert await World(hangs=True).sources(patience=0.01).existing_owners([WEB]) == frozenset()


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=4))
async def test_answers_after_other_checkpoints_are_those_of_the_entries(history: list[list[int]]) -> None:
    pool = [CheckpointEntry(f"uid-{it // 2}", "main", XPU, ("a",), ANSWER) for it in range(6)]
    world = World()
    sources = world.sources()
    for numbers in history:
        world.entries = [pool[it] for it in numbers]
        assert await sources.checkpoint_answers() == tuple(map(checkpoint_answer, world.entries))


async def test_of_a_checkpoint_only_new_entries_are_made_answers_of() -> None:
    pool = [CheckpointEntry(f"uid-{it}", "main", XPU, ("a",), ANSWER) for it in range(3)]
    world = World(entries=pool[:2])
    sources = world.sources()
    first = await sources.checkpoint_answers()
    world.entries = [pool[2], pool[1]]

    second = await sources.checkpoint_answers()

    assert first is not None
    assert second is not None
    assert second[1] is first[1]


# Cgroups


FLAT = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("root", ["", "memory", "systemd"])
@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        pytest.param([f"kubepods/pod{UID}", f"kubepods/burstable/pod{STATIC}"], {UID, STATIC}, id="cgroupfs"),
        pytest.param([f"kubepods/besteffort/pod{UID}/container"], {UID}, id="cgroupfs, best effort"),
        pytest.param(
            [
                f"kubepods.slice/kubepods-pod{FLAT}.slice",
                f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice",
            ],
            {UID, STATIC},
            id="systemd",
        ),
        pytest.param(
            [f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{FLAT}.slice/cri-1.scope"],
            {UID},
            id="systemd, best effort",
        ),
        pytest.param(["kubepods/burstable", "kubepods/besteffort"], set(), id="no pod runs"),
        pytest.param(
            [f"kubepods/burstable/other{UID}", "kubepods/podless", f"kubepods/pod{UID}x"], set(), id="no pods"
        ),
    ],
)
def test_the_pods_that_run_are_those_with_a_cgroup(
    tmp_path: Path, root: str, folders: Sequence[str], expected: set[str]
) -> None:
    for it in folders:
        (tmp_path / root / it).mkdir(parents=True)

    assert running_pods(tmp_path) == frozenset(expected)


def test_where_no_pods_cgroups_can_be_seen_nothing_is_said_of_them(tmp_path: Path) -> None:
    (tmp_path / "system.slice").mkdir()

    assert running_pods(tmp_path) is None
    assert running_pods(tmp_path / "nowhere") is None


def test_where_some_cgroups_can_not_be_read_nothing_is_said_of_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubepods/burstable").mkdir(parents=True)
    (tmp_path / f"kubepods/pod{UID}").mkdir()
    iterdir = Path.iterdir

    def forbidden(path: Path) -> object:
        if path.name == "burstable":
            raise PermissionError
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", forbidden)

    assert running_pods(tmp_path) is None


async def test_the_ids_with_which_the_kubelet_lists_a_pod_are_told_with_its_name() -> None:
    ((name, containers),) = SHOWN.items()
    ((resource, ids),) = containers["main"].items()

    found = await World().sources().pods_with_ids(resource, [*ids, "another"], [WEB])

    assert found == dict.fromkeys(ids, name)
    assert await World().sources().pods_with_ids("other.com/gpu", ids, [WEB]) == {}


async def test_where_pod_resources_can_not_be_asked_no_id_is_shown() -> None:
    assert await World(hangs=True).sources(patience=0.01).pods_with_ids(XPU, ["a"], [WEB]) == {}
    assert await World(broken={"PodResources"}).sources().pods_with_ids(XPU, ["a"], [WEB]) == {}


async def test_an_allocate_asks_pod_resources_without_waiting_for_the_loops_turn() -> None:
    wanted: list[Collection[str] | None] = []

    async def at_once(ids: Collection[str] | None, pod: tuple[str, str] | None) -> Pods:
        wanted.append(ids)
        return SHOWN

    sources = EvidenceSources(
        World().read, World(hangs=True).in_use, World().partitions, pods_at_once=at_once
    )

    with anyio.fail_after(30):
        assert await sources.pods_with_ids(XPU, ["a"], [None]) == {"a": ("default", "web")}
        assert await sources.existing_owners([WEB]) == {WEB}
        assert wanted == [["a"], None]


@pytest.mark.parametrize(
    ("owners", "asked"),
    [
        pytest.param([WEB], ("default", "web"), id="one"),
        pytest.param([WEB, replace(WEB, container="init")], ("default", "web"), id="two containers of one"),
        pytest.param([WEB, replace(WEB, pod="other")], None, id="two pods"),
        pytest.param([WEB, None], None, id="one is not known"),
        pytest.param([replace(WEB, pod="")], None, id="its name is not known"),
    ],
)
async def test_where_the_holders_are_one_pod_that_pod_alone_is_asked_about(
    owners: list[Owner | None], asked: tuple[str, str] | None
) -> None:
    wanted: list[tuple[str, str] | None] = []

    async def at_once(ids: Collection[str] | None, pod: tuple[str, str] | None) -> Pods:
        wanted.append(pod)
        return SHOWN

    world = World()
    sources = EvidenceSources(world.read, world.in_use, world.partitions, pods_at_once=at_once)

    assert await sources.pods_with_ids(XPU, ["a"], owners) == {"a": ("default", "web")}
    assert wanted == [asked]


async def test_that_one_pod_can_be_asked_about_does_not_end_the_complaint_about_the_list() -> None:
    async def at_once(ids: Collection[str] | None, pod: tuple[str, str] | None) -> Pods:
        return SHOWN

    world = World(broken={"PodResources"})
    sources = EvidenceSources(world.read, world.in_use, world.partitions, pods_at_once=at_once)
    await sources.evidence()

    await sources.pods_with_ids(XPU, ["a"], [WEB])
    assert sources.complaints == {"PodResources": "refused"}

    await sources.pods_now()
    assert sources.complaints == {}
