"""A pod of the API server becomes a candidate; what no API server would send makes none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.read_annotations import READS

from agent.cluster import pods
from agent.cluster.reflector import MirroredObjects
from agent.core.allocation.known_pods import KnownPods
from agent.core.cell import Cell
from agent.scheduler_api import Candidate, PodContainer
from agent.scheduler_api.candidate import PodList, merged, one_of_each_uid
from agent.scheduler_api.scheduler import AnnotationFilter
from agent.schedulers.koordinator.allocated_annotation import ALLOCATED

GPU = "nvidia.com/gpu"


def pod(**parts: Any) -> dict[str, Any]:
    """A pod that waits for two cards; `parts` are laid over its three mappings."""
    raw: dict[str, Any] = {
        "metadata": {
            "uid": "u-1",
            "namespace": "team-a",
            "name": "train-0",
            "creationTimestamp": "2026-01-30T20:23:32Z",
            "annotations": {"scheduling.koordinator.sh/device-allocated": "{}"},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "2", "cpu": "4"}}}]},
        "status": {"phase": "Pending"},
    }
    return {key: {**value, **parts.get(key, {})} for key, value in raw.items()}


def taken(reads: AnnotationFilter = READS, **parts: Any) -> Candidate:
    found = pods.candidate(pod(**parts), reads)
    assert found is not None
    return found


def test_a_pod_is_known_by_uid_place_annotations_and_age() -> None:
    assert taken() == Candidate(
        "u-1",
        "team-a",
        "train-0",
        (PodContainer("main", {GPU: 2}),),
        {"scheduling.koordinator.sh/device-allocated": "{}"},
        1769804612.0,
    )


def fields(
    manager: str = "koord-scheduler", operation: str = "Update", key: str = ALLOCATED
) -> dict[str, Any]:
    """As koord-scheduler's patch of a pod is kept (v1.8.0, kube-apiserver 1.36)."""
    annotations: dict[str, Any] = {f"f:{key}": {}, "f:scheduling.koordinator.sh/bind-timestamp": {}}
    owned = {"f:metadata": {"f:annotations": annotations}}
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "v1",
        "time": "2026-11-22T10:36:20Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": owned,
    }


@pytest.mark.parametrize(
    ("asked", "managed", "scheduler"),
    [
        ("koord-scheduler", [], "koord-scheduler"),
        ("default-scheduler", [], "default-scheduler"),
        ("default-scheduler", [fields("kubectl"), fields()], "koord-scheduler"),
        ("default-scheduler", [fields("kubectl", "Apply")], "default-scheduler"),
        ("default-scheduler", [fields(operation="Apply")], "default-scheduler"),
        ("default-scheduler", [fields(key="another/key")], "default-scheduler"),
        ("default-scheduler", [fields("kube-scheduler")], "default-scheduler"),
        ("", [fields()], ""),
    ],
    ids=[
        "as it asks",
        "Kubernetes' own",
        "koord-scheduler under its name",
        "a user",
        "applied",
        "another annotation",
        "another manager",
        "nobody says",
    ],
)
def test_koord_scheduler_is_known_under_the_name_of_kubernetes_own_by_what_it_wrote(
    asked: str, managed: list[dict[str, Any]], scheduler: str
) -> None:
    found = taken(spec={"schedulerName": asked}, metadata={"managedFields": managed})

    assert found.scheduler == scheduler


def test_init_containers_come_first_and_sidecars_are_told_from_them() -> None:
    limits = {"resources": {"limits": {GPU: "1"}}}
    inits = [{"name": "fetch", **limits}, {"name": "proxy", "restartPolicy": "Always"}]

    assert taken(spec={"initContainers": inits}).containers == (
        PodContainer("fetch", {GPU: 1}, init=True),
        PodContainer("proxy", init=True, restartable=True),
        PodContainer("main", {GPU: 2}),
    )


@pytest.mark.parametrize(
    ("parts", "over"),
    [
        ({}, False),
        ({"status": {"phase": "Running"}}, False),
        ({"status": {"phase": "Succeeded"}}, True),
        ({"status": {"phase": "Failed"}}, True),
        ({"status": {"phase": "Running"}, "metadata": {"deletionTimestamp": "2026-01-30T20:23:32Z"}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-30T20:23:32Z"}}, False),
    ],
)
def test_a_pod_is_over_once_it_ended_or_is_being_deleted_after_it_started(
    parts: dict[str, Any], over: bool
) -> None:
    assert taken(**parts).over is over


@pytest.mark.parametrize(
    ("parts", "ended"),
    [
        ({"status": {"phase": "Running"}, "metadata": {"deletionTimestamp": "2026-01-30T20:23:32Z"}}, False),
        ({"status": {"phase": "Succeeded"}}, True),
        ({"status": {"phase": "Failed"}}, True),
    ],
)
def test_a_pod_that_is_being_deleted_has_not_ended_yet(parts: dict[str, Any], ended: bool) -> None:
    assert taken(**parts).ended is ended


@pytest.mark.parametrize(
    ("phase", "waits"),
    [("", True), ("Pending", True), ("Running", False), ("Unknown", False), ("Failed", False)],
)
def test_a_pod_waits_until_its_containers_run(phase: str, waits: bool) -> None:
    assert taken(status={"phase": phase}).waits is waits


BEFORE, SINCE = {"startedAt": "2026-01-30T20:00:00Z"}, {"startedAt": "2026-01-30T22:00:00Z"}
BOOT = 1769806800.0  # 21:00


@pytest.mark.parametrize(
    ("containers", "waits"),
    [
        ([{"state": {"running": BEFORE}}], True),
        ([{"state": {"terminated": BEFORE}}], True),
        ([{"state": {"waiting": {}}, "lastState": {"terminated": BEFORE}}], True),
        ([{"state": {"running": SINCE}}, {"state": {"running": BEFORE}}], True),
        ([{"state": {"running": SINCE}, "lastState": {"terminated": BEFORE}}], False),
        ([{"state": {"terminated": SINCE}, "lastState": {"terminated": BEFORE}}], False),
        ([{"state": {"waiting": {}}}], False),
        ([{"state": {"running": {"startedAt": "long ago"}}}], False),
        ([5, {"state": 5, "lastState": {"terminated": 5}}], False),
        (5, False),
        ([], False),
    ],
)
@pytest.mark.parametrize("key", ["containerStatuses", "initContainerStatuses"])
def test_a_pod_that_ran_before_the_node_was_started_waits_until_its_containers_run_again(
    key: str, containers: object, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "booted", lambda: BOOT)

    assert taken(status={"phase": "Running", key: containers}).waits is waits
    assert taken(status={"phase": "Failed", key: containers}).waits is False
    leaving = {"deletionTimestamp": "2026-01-30T22:00:00Z"}
    assert taken(status={"phase": "Running", key: containers}, metadata=leaving).waits is waits


def test_the_node_was_started_before_this_test() -> None:
    assert 0.0 < pods.booted() < time.time()


def test_a_pod_that_is_being_deleted_before_it_started_still_waits() -> None:
    """The kubelet takes it in and asks for its devices before it lets it go."""
    assert taken(metadata={"deletionTimestamp": "2026-01-30T20:23:32Z"}).waits


def test_a_pod_s_scheduler_is_known() -> None:
    assert taken(spec={"schedulerName": "koord-scheduler"}).scheduler == "koord-scheduler"
    assert taken().scheduler == ""


def test_what_the_kubelet_says_of_a_refused_pod_is_kept_and_bounded() -> None:
    said = "Pod was rejected: Allocate failed due to rpc error: device GPU-0 is unhealthy"

    assert taken(status={"message": said}).message == said
    assert len(taken(status={"message": "x" * 1_000_000}).message) == pods.MAX_MESSAGE
    assert taken(status={"message": 7}).message == ""


STATIC = "0b5a7e8c11d24f6f8c2ad1f7f8f5f0c1"
NODE = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u-n", "controller": True}


def mirror(
    static: object = STATIC, mark: object = STATIC, owners: object = (NODE,), **metadata: Any
) -> Candidate:
    """A pod as a kubelet makes it to show a static one, or nearly so."""
    annotations = {pods.STATIC_UID: static, pods.MIRROR_OF: mark}
    written = {
        "annotations": annotations,
        "ownerReferences": [*owners] if isinstance(owners, tuple) else owners,
    }
    return taken(metadata={**written, **metadata}, spec={"nodeName": "n"})


def test_a_static_pod_has_the_uid_that_the_kubelet_knows_it_by() -> None:
    assert (mirror().uid, mirror().static) == (STATIC, True)
    assert (taken().uid, taken().static) == ("u-1", False)


@pytest.mark.parametrize("uid", ["", "x" * 1_000_000, 7])
def test_a_uid_that_no_static_pod_has_is_none(uid: object) -> None:
    assert mirror(uid, uid).uid == "u-1"


@pytest.mark.parametrize(
    "odd",
    [
        {"mark": None},
        {"mark": "of-another"},
        {"owners": None},
        {"owners": ()},
        {"owners": (None, "Node")},
        {"owners": ({**NODE, "kind": "ReplicaSet"},)},
        {"owners": ({**NODE, "name": "another-node"},)},
    ],
    ids=str,
)
def test_a_pod_that_no_kubelet_made_has_no_other_uid_than_its_own(odd: dict[str, Any]) -> None:
    assert (mirror(**odd).uid, mirror(**odd).static) == ("u-1", False)


def test_of_annotations_those_alone_are_kept_that_promise_something() -> None:
    promises = {f"{prefix}promised": "1" for prefix in READS.prefixes}
    others = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "enflame.community/x": "1",
        "plain": "1",
    }

    assert taken(metadata={"annotations": {**others, **promises}}).annotations == promises


def test_a_dialect_may_read_more() -> None:
    found = pods.candidate(
        pod(metadata={"annotations": {"acme.com/card": "3", "other.com/card": "4"}}),
        AnnotationFilter(("acme.com/",)),
    )

    assert found is not None
    assert found.annotations == {"acme.com/card": "3"}


def test_a_pod_has_us_keep_no_more_than_a_bound_and_the_short_ones_first() -> None:
    many = {f"koordinator.sh/{number}": "x" * 1000 for number in range(1000)}
    huge = {"enflame.com/huge": "x" * (1 << 20)}
    found = taken(metadata={"annotations": {**huge, **many, "hami.io/gpu-assigned": "true"}})

    assert found.annotations["hami.io/gpu-assigned"] == "true"
    assert pods.MAX_ANNOTATIONS - 2000 < sum(map(len, found.annotations.values())) < pods.MAX_ANNOTATIONS
    assert huge.keys().isdisjoint(found.annotations)


@pytest.mark.parametrize("key", ["uid", "namespace", "name"])
def test_a_pod_that_can_not_be_told_from_others_is_none(key: str) -> None:
    assert pods.candidate(pod(metadata={key: ""}), READS) is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
_keys = ["containers", "initContainers", "annotations", "creationTimestamp", "phase", "deletionTimestamp"]


@given(st.dictionaries(st.sampled_from(_keys), _json), _json)
def test_no_pod_is_too_strange_to_be_read(odd: dict[str, Any], limits: Any) -> None:
    containers = [{"name": "main", "resources": {"limits": limits}}, limits]
    found = pods.candidate(pod(metadata=odd, spec={"containers": containers, **odd}, status=odd), READS)

    assert found is not None
    assert all(
        isinstance(count, int) and count > 0 for it in found.containers for count in it.limits.values()
    )


def followed(seen: MirroredObjects[Candidate], before: tuple[Candidate, ...] = ()) -> tuple[Candidate, ...]:
    """What the cell holds then; to be called where a loop runs."""
    cell = Cell(KnownPods.of(before))
    following = pods.follow(Cell(seen), cell)
    following.send(None)  # until it waits for the next change
    following.close()
    return tuple(cell.value)


#: Times of creation.
EARLY, LATE = "2026-01-29T00:00:00Z", "2026-02-01T00:00:00Z"


async def test_candidates_come_oldest_first() -> None:
    young, old = taken(), taken(metadata={"uid": "u-0", "creationTimestamp": EARLY})

    assert followed(MirroredObjects({"team-a/a": young, "team-a/b": old}, synced=True)) == (old, young)


@pytest.mark.parametrize(
    ("version", "phase", "appeared"),
    [
        ("1234", "Pending", 1234),
        ("1234", "Running", 0),
        ("", "Pending", 0),
        ("12a", "Pending", 0),
        ("9" * 21, "Pending", 0),
    ],
)
def test_when_it_appeared_is_said_by_the_version_of_a_pod_that_has_not_started(
    version: str, phase: str, appeared: int
) -> None:
    assert taken(metadata={"resourceVersion": version}, status={"phase": phase}).appeared == appeared


@pytest.mark.parametrize(
    ("conditions", "bound"),
    [
        (
            [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T00:00:00Z"}],
            1795132800.0,
        ),
        ([{"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-11-20T00:00:00Z"}], 0.0),
        ([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T00:00:00Z"}], 0.0),
        ([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "soon"}], 0.0),
        (["PodScheduled"], 0.0),
        ("PodScheduled", 0.0),
        (None, 0.0),
    ],
)
def test_when_a_pod_was_bound_is_said_by_its_condition(conditions: Any, bound: float) -> None:
    assert taken(status={"conditions": conditions}).bound == bound


async def test_when_a_pod_appeared_stays_though_it_changes() -> None:
    mirror, cell = Cell(MirroredObjects[Candidate]()), Cell(KnownPods())
    following = asyncio.create_task(pods.follow(mirror, cell))
    for version, name in ((5, "a"), (9, "b")):
        it = taken(metadata={"resourceVersion": str(version)}, spec={"schedulerName": name})
        mirror.set(MirroredObjects({"team-a/a": it}, synced=True))
        while not [one for one in cell.value if one.scheduler == name]:
            await cell.changed()
    following.cancel()

    assert [it.appeared for it in cell.value] == [5]
    assert cell.value[0] == replace(cell.value[0], appeared=7), "a newer version alone is no news"
    (listed,) = merged(cell.value, 9, PodList((taken(metadata={"resourceVersion": "12"}),), 12))
    assert (listed.appeared, listed.version) == (5, 12)


async def test_how_far_the_pods_are_followed_is_told_with_them() -> None:
    mirror, cell = Cell(MirroredObjects[Candidate]()), Cell(KnownPods())
    told: list[int] = []
    following = asyncio.create_task(pods.follow(mirror, cell, told.append))
    mirror.set(MirroredObjects({"team-a/a": taken()}, synced=True, version=7))
    await cell.changed()
    mirror.set(MirroredObjects({}, synced=True, version=9))
    await cell.changed()
    following.cancel()

    assert told == [7, 9]


async def test_until_the_list_was_here_the_pods_of_before_stay() -> None:
    assert followed(MirroredObjects(), (taken(),)) == (taken(),)


@pytest.mark.parametrize("created", [EARLY, LATE])
async def test_a_pod_that_says_anothers_uid_is_its_own_takes_nobody_s_place(created: str) -> None:
    victim = taken()
    hostile = mirror("u-1", "u-1", name="hostile", uid="u-2", creationTimestamp=created)

    assert followed(MirroredObjects({"a/a": victim, "b/b": hostile}, synced=True)) == (victim,)


async def test_of_two_that_say_one_static_pods_uid_the_older_is_believed() -> None:
    hostile = mirror(name="hostile", uid="u-2", creationTimestamp=LATE)

    assert followed(MirroredObjects({"a/a": hostile, "b/b": mirror()}, synced=True)) == (mirror(),)


SHOWN = st.builds(
    Candidate,
    uid=st.sampled_from(["u-a", "u-b", "u-c"]),
    namespace=st.just("team-a"),
    name=st.just("web"),
    created=st.sampled_from([1.0, 2.0]),
    message=st.sampled_from(["", "refused"]),
    static=st.booleans(),
    appeared=st.integers(0, 9),
)
MIRRORED = st.dictionaries(st.sampled_from(["team-a/a", "team-a/b", "team-a/c"]), SHOWN)


@given(listed=st.lists(MIRRORED, min_size=1, max_size=6))
def test_the_pods_are_what_a_look_at_the_whole_mirror_finds(listed: Sequence[dict[str, Candidate]]) -> None:
    """Each uid once, and each pod with the version at which it appeared, whatever changed before."""
    asyncio.run(follow_all(listed))


async def follow_all(listed: Sequence[dict[str, Candidate]]) -> None:
    """Let the mirror have these objects one after the other, and compare the cell with a look at all."""
    mirror, cell, reached = Cell(MirroredObjects[Candidate]()), Cell(KnownPods()), Cell(0)
    following = asyncio.create_task(pods.follow(mirror, cell, reached.set))
    appeared: dict[str, int] = {}
    expected: list[Candidate] = []
    for version, drawn in enumerate(listed, 1):
        # Only a static pod names its uid itself.
        objects = {key: it if it.static else replace(it, uid=f"u-{key[-1]}") for key, it in drawn.items()}
        # What has not changed is the same object, as in a mirror.
        same = {key: pod for key, pod in mirror.value.objects.items() if objects.get(key) == pod}
        mirror.set(MirroredObjects({**objects, **same}, synced=True, version=version))
        await reached.until(mirror.value.version)
        found = one_of_each_uid(mirror.value.objects.values())
        appeared = {it.uid: appeared.get(it.uid) or it.appeared for it in found}
        after = [replace(it, appeared=appeared[it.uid]) for it in found]
        expected = after if after != expected else expected  # a newer version alone is no news
        assert [*cell.value] == expected
        assert [it.appeared for it in cell.value] == [it.appeared for it in expected]
    following.cancel()


WITH_IDS = replace(READS, container_ids=True)


def test_the_runtimes_ids_of_a_pod_with_several_containers_are_kept() -> None:
    spec = {"initContainers": [{"name": "load"}], "containers": [{"name": "main"}]}
    status = {
        "initContainerStatuses": [{"name": "load", "containerID": "containerd://aa"}],
        "containerStatuses": [{"name": "main", "containerID": "cri-o://bb"}, {"name": "new"}, None],
    }
    assert taken(WITH_IDS, spec=spec, status=status).container_ids == {"aa": "load", "bb": "main"}
    again = {"containerStatuses": [{"name": "main", "containerID": "cri-o://cc"}]}
    assert taken(WITH_IDS, spec=spec, status=again) != taken(WITH_IDS, spec=spec, status=status)


def test_a_container_for_debugging_is_a_second_one() -> None:
    spec = {"containers": [{"name": "main"}], "ephemeralContainers": [{"name": "debugger"}]}
    status = {
        "containerStatuses": [{"name": "main", "containerID": "containerd://aa"}],
        "ephemeralContainerStatuses": [{"name": "debugger", "containerID": "containerd://bb"}],
    }
    assert taken(WITH_IDS, spec=spec, status=status).container_ids == {"aa": "main", "bb": "debugger"}


def test_where_use_is_not_sampled_a_container_that_starts_again_makes_no_other_pod() -> None:
    spec = {"containers": [{"name": "main"}, {"name": "other"}]}
    first, again = (
        taken(
            spec=spec, status={"containerStatuses": [{"name": "main", "containerID": f"containerd://{it}"}]}
        )
        for it in ("aa", "bb")
    )
    assert first == again


@pytest.mark.parametrize("odd", [None, 7, "", "containerd://", "containerd://" + "a" * 200, {}])
def test_an_id_that_no_runtime_gave_is_left_out(odd: object) -> None:
    spec = {"containers": [{"name": "main"}, {"name": "other"}]}
    assert (
        taken(
            WITH_IDS, spec=spec, status={"containerStatuses": [{"name": "main", "containerID": odd}]}
        ).container_ids
        == {}
    )


def test_the_only_container_of_a_pod_needs_no_id() -> None:
    status = {"containerStatuses": [{"name": "main", "containerID": "containerd://aa"}]}
    assert taken(WITH_IDS, status=status).container_ids == {}
