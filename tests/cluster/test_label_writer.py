"""The node's labels at the API server: only ours, only what differs, through every refusal and outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Conflict, Forbidden, NotFound
from agent.cluster.label_patches import NODE_NAME, OWNED, feature, node_patch
from agent.cluster.label_writer import LabelTiming, LabelWriter, remove
from agent.cluster.object_record import ObjectRecord
from agent.cluster.own_node import OwnNode, own_node
from agent.core.backoff import Pauses
from agent.core.cell import Cell
from agent.core.publishing.label_rules import VendorLabels, WantedFeatures

from .fakes import FakeApi, merged

NODE = "/api/v1/nodes/n"
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/ours/nodefeatures"
FEATURE = f"{FEATURES}/xpu-agent-features-for-n"
NFD = "nfd.node.kubernetes.io/feature-labels"

TWO = {"acme.com/count": "2", "acme.com/model": "x"}
THREE = {"acme.com/count": "3"}
NAMES = "acme.com/count,acme.com/model"
MAY_NOT = Forbidden(403, "Forbidden", "no")


def told(
    labels: Mapping[str, str], told_as: Any = "node", awaited: frozenset[str] = frozenset()
) -> WantedFeatures:
    return WantedFeatures(told_as, VendorLabels(labels, awaited))


def node(labels: Mapping[str, str] | None = None, owned: str | None = None, **annotations: str) -> OwnNode:
    """A Node with these labels, and those of it that are ours."""
    kept = own_node(raw(labels, owned, **annotations))
    assert kept is not None
    return kept


def raw(
    labels: Mapping[str, str] | None = None, owned: str | None = None, **annotations: str
) -> dict[str, Any]:
    ours = {OWNED: owned} if owned is not None else {}
    return {
        "metadata": {
            "name": "n",
            "resourceVersion": "1",
            "labels": dict(labels or {}),
            "annotations": {**ours, **annotations},
        }
    }


def after(before: OwnNode, wanted: WantedFeatures) -> tuple[Mapping[str, str], str | None]:
    """The labels and the annotation once the patch is in; it needs no second one."""
    patch = node_patch(before, wanted) or {}
    mine = {"metadata": {"name": "n", "labels": before.labels, "annotations": before.annotations}}
    changed = own_node(merged(mine, patch))
    assert changed is not None
    again = OwnNode("n", labels=changed.labels, annotations=changed.annotations, nfd=before.nfd)
    assert node_patch(again, wanted) is None
    return changed.labels, changed.annotations.get(OWNED)


# What is patched


def test_labels_come_to_a_node_beside_those_of_others() -> None:
    assert after(node({"pool": "a"}), told(TWO)) == ({"pool": "a", **TWO}, NAMES)


def test_nothing_is_patched_where_nothing_differs() -> None:
    assert node_patch(node({"pool": "a", **TWO}, NAMES), told(TWO)) is None
    assert node_patch(node({"pool": "a"}), told({})) is None
    assert node_patch(node({"pool": "a"}), WantedFeatures()) is None


def test_only_what_differs_is_in_the_patch_and_the_version_guards_it() -> None:
    patch = node_patch(node({**TWO, "acme.com/count": "9"}, NAMES), told(TWO))

    assert patch == {
        "metadata": {
            "labels": {"acme.com/count": "2"},
            "annotations": {OWNED: NAMES},
            "resourceVersion": "1",
        }
    }


def test_a_label_that_vanishes_is_removed_and_one_of_another_never() -> None:
    before = node({"pool": "a", "acme.com/theirs": "1", **TWO}, NAMES)

    assert after(before, told(THREE)) == (
        {"pool": "a", "acme.com/theirs": "1", **THREE},
        "acme.com/count",
    )


def test_a_label_that_somebody_removed_or_changed_comes_back() -> None:
    assert after(node({"acme.com/count": "7"}, NAMES), told(TWO)) == (TWO, NAMES)


def test_labels_that_are_there_already_become_ours() -> None:
    assert after(node(TWO), told(TWO)) == (TWO, NAMES)


def test_a_vendor_that_has_not_spoken_keeps_the_labels_that_are_ours_and_gets_no_others() -> None:
    before = node({**TWO, "acme.com/theirs": "1", "other.com/x": "1"}, f"{NAMES},other.com/x")

    labels, names = after(before, told({}, awaited=frozenset({"acme.com"})))

    assert labels == {**TWO, "acme.com/theirs": "1"}
    assert names == NAMES


def test_where_labels_are_not_wanted_ours_are_removed() -> None:
    assert after(node({"pool": "a", **TWO}, NAMES), WantedFeatures()) == ({"pool": "a"}, None)


@pytest.mark.parametrize("told_as", ["nodeFeature", "file"])
def test_labels_told_in_another_way_stay_until_node_feature_discovery_takes_them_over(told_as: Any) -> None:
    before = node({**TWO, "acme.com/old": "1"}, f"{NAMES},acme.com/old")

    assert after(before, told({**TWO, "acme.com/new": "1"}, told_as)) == (TWO, NAMES)

    theirs = node(TWO, NAMES, **{NFD: NAMES})
    assert after(theirs, told(TWO, told_as)) == (TWO, None)


def test_what_node_feature_discovery_keeps_is_left_to_it_until_it_lets_go() -> None:
    there = {"acme.com/count": "9"}

    assert after(node(there, **{NFD: "acme.com/count"}), told(TWO)) == (
        {**there, "acme.com/model": "x"},
        "acme.com/model",
    )
    assert after(node({"acme.com/model": "x"}, "acme.com/model"), told(TWO)) == (TWO, NAMES)


@pytest.mark.parametrize(
    "key", ["kubernetes.io/hostname", "node.kubernetes.io/x", "k8s.io/x", "topology.k8s.io/zone", "pool"]
)
def test_an_annotation_that_claims_what_no_vendor_has_removes_nothing(key: str) -> None:
    before = node({key: "1"}, key)

    assert after(before, WantedFeatures()) == ({key: "1"}, None)
    assert after(before, told({key: "2"})) == ({key: "1"}, None)


@pytest.mark.parametrize(
    "claim", ["", ",", ",,acme.com/x,", "a b,\n", "acme.com/" + "x" * 100, ",".join("x" * 9999)]
)
def test_an_annotation_that_makes_no_sense_is_replaced(claim: str) -> None:
    assert after(node(TWO, claim), told(TWO)) == (TWO, NAMES)


# What a NodeFeature says


def test_a_node_feature_names_its_node_and_has_the_labels() -> None:
    made = feature(None, "n", told(TWO, "nodeFeature"))

    assert made == {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": "xpu-agent-features-for-n", "labels": {NODE_NAME: "n"}},
        "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": TWO},
    }
    assert feature(made, "n", told(TWO, "nodeFeature")) is None


def test_while_there_is_nothing_to_say_no_node_feature_is_made() -> None:
    assert feature(None, "n", told({}, "nodeFeature", frozenset({"acme.com"}))) is None


def test_a_node_feature_keeps_what_others_added_and_its_version() -> None:
    there: dict[str, Any] = {
        "metadata": {
            "name": "xpu-agent-features-for-n",
            "resourceVersion": "7",
            "labels": {"team": "a"},
            "ownerReferences": [{"kind": "DaemonSet"}],
        },
        "spec": {"labels": {"acme.com/old": "1"}, "taints": []},
    }

    changed = feature(there, "n", told(TWO, "nodeFeature"))

    assert changed is not None
    assert changed["metadata"] == {**there["metadata"], "labels": {"team": "a", NODE_NAME: "n"}}
    assert changed["spec"]["labels"] == TWO
    assert changed["spec"]["taints"] == []


def test_a_node_feature_keeps_the_labels_of_a_vendor_that_has_not_spoken() -> None:
    made = feature(None, "n", told({**TWO, "other.com/x": "1"}, "nodeFeature"))

    changed = feature(made, "n", told({}, "nodeFeature", frozenset({"acme.com"})))

    assert changed is not None
    assert changed["spec"]["labels"] == TWO


@pytest.mark.parametrize("spec", [None, [], {"labels": [1]}, {"labels": {"a b": "c", "d": 7}}])
def test_a_node_feature_that_makes_no_sense_is_mended(spec: Any) -> None:
    changed = feature({"metadata": 7, "spec": spec}, "n", told(TWO, "nodeFeature", frozenset({""})))

    assert changed is not None
    assert changed["spec"]["labels"] == TWO


# The writer


class Here:
    """A Node at a fake API server, the cells that a writer follows, and the writer."""

    def __init__(
        self, wanted: WantedFeatures | None, *, every: float = 3600.0, pauses: Pauses | None = None
    ) -> None:
        self.api = FakeApi()
        self.api.put_object(NODE, raw({"pool": "a"}))
        self.wanted = Cell(wanted)
        self.node: Cell[OwnNode | None] = Cell(None)
        self.writer = LabelWriter(
            self.api,
            "n",
            "ours",
            self.wanted,
            self.node,
            pauses=pauses or Pauses(0.001, 0.004),
            timing=LabelTiming(0.001, every),
        )
        self.returns = Cell(0)
        self.see()

    def see(self) -> None:
        """Let the watch tell of the Node as it is."""
        self.node.set(own_node(self.api.objects[NODE]))

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.api.objects[NODE]["metadata"]["labels"]
        return found

    @property
    def feature(self) -> Mapping[str, str] | None:
        found = self.api.objects.get(FEATURE)
        return found["spec"]["labels"] if found else None

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run(self.returns))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_node_follows_the_devices_and_keeps_the_labels_after_the_end() -> None:
    here = Here(told(TWO))
    async with here.runs():
        await eventually(lambda: here.labels == {"pool": "a", **TWO})

        here.see()
        here.wanted.set(told(THREE))

        await eventually(lambda: here.labels == {"pool": "a", **THREE})

    assert here.labels == {"pool": "a", **THREE}


async def test_while_nobody_knows_what_is_wanted_or_of_the_node_nothing_is_written() -> None:
    here = Here(None)
    assert await here.writer.once() == 0.0
    assert here.api.calls == []

    here.wanted.set(told(TWO))
    here.node.set(None)
    await here.writer.once()
    assert "patch" not in here.api.verbs()


async def test_a_node_as_it_should_be_is_left_alone() -> None:
    here = Here(told(TWO))
    await here.writer.once()
    here.see()
    here.api.calls.clear()

    assert await here.writer.once() == 0.0

    assert here.api.calls == []


async def test_after_a_write_the_server_is_left_alone_for_a_moment() -> None:
    here = Here(told(TWO))

    assert await here.writer.once() == 0.001


async def test_a_node_that_is_made_anew_gets_its_labels_again() -> None:
    here = Here(told(TWO))
    async with here.runs():
        await eventually(lambda: here.labels == {"pool": "a", **TWO})

        here.api.put_object(NODE, raw({"pool": "b"}))
        here.see()

        await eventually(lambda: here.labels == {"pool": "b", **TWO})


async def test_a_node_that_changed_since_it_was_seen_is_read_again() -> None:
    here = Here(told(THREE))
    here.api.put_object(NODE, raw({"pool": "b", **TWO}, NAMES))

    await here.writer.once()

    assert here.api.verbs()[:2] == ["get", "patch"]
    assert here.labels == {"pool": "b", **THREE}


AGAIN = Conflict(409, "Conflict", "the object has been modified")


@pytest.mark.parametrize("told_as", ["node", "nodeFeature"])
async def test_what_somebody_changes_in_that_moment_is_read_and_written_again_in_silence(
    told_as: Any,
) -> None:
    here = Here(told(TWO, told_as))
    here.api.put_object(FEATURE, feature(None, "n", told(THREE, "nodeFeature")) or {})
    here.api.fails = [None, AGAIN]
    with capture_logs() as logs:
        await here.writer.once()

    assert here.api.verbs()[0] == here.api.verbs()[2] == "get"
    assert TWO.items() <= (here.labels if told_as == "node" else here.feature or {}).items()
    assert (here.writer.delayed, logs) == ("", [])


async def test_what_somebody_changes_over_and_over_is_written_at_the_next_try() -> None:
    here = Here(told(TWO))
    here.api.fails = [None, AGAIN, None, AGAIN]

    assert await here.writer.once() > 0
    assert (here.writer.delayed, here.writer.error) == ("409 Conflict: the object has been modified", "")

    await here.writer.once()
    assert here.labels == {"pool": "a", **TWO}
    assert here.writer.delayed == ""


FAILURES = [
    ApiAway("nobody answers"),
    Busy(429, "TooManyRequests", "", None),
    Conflict(409, "Conflict", "again"),
    Forbidden(403, "Forbidden", "no"),
    ApiRefused(422, "Invalid", "no"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("told_as", ["node", "nodeFeature"])
async def test_labels_catch_up_once_the_server_takes_them(failure: ApiError, told_as: Any) -> None:
    here = Here(told(TWO, told_as))
    here.api.fails = [failure] * 6
    async with here.runs():
        await eventually(
            lambda: TWO.items() <= (here.labels if told_as == "node" else here.feature or {}).items()
        )
        await eventually(lambda: (here.writer.error, here.writer.delayed) == ("", ""))


async def test_an_outage_is_told_once_and_is_no_error_of_the_labels() -> None:
    here = Here(told(TWO))
    here.api.fails = [ApiAway("nobody answers")] * 5
    with capture_logs() as logs:
        async with here.runs():
            await eventually(lambda: here.writer.delayed)
            assert (here.writer.delayed, here.writer.error) == ("nobody answers", "")
            await eventually(lambda: here.writer.writes and not here.writer.delayed)

    assert [it["event"] for it in logs] == [
        "labels wait for the API server",
        "labels are as they should be again",
    ]


async def test_a_server_that_is_back_is_written_to_at_once_however_long_the_pause() -> None:
    here = Here(told(TWO), pauses=Pauses(3600.0, 3600.0))
    here.api.fails = [ApiAway("nobody answers")] * 3
    async with here.runs():
        for tries in range(1, 4):
            await eventually(partial(here.api.has_been_called, tries))
            here.returns.set(tries)
        await eventually(lambda: here.labels == {"pool": "a", **TWO})


async def test_a_refusal_is_an_error_and_told_once() -> None:
    here = Here(told(TWO))
    here.api.refuses["patch"] = Forbidden(403, "Forbidden", "nodes is forbidden")
    with capture_logs() as logs:
        async with here.runs():
            await eventually(lambda: here.api.verbs().count("patch") > 5)
            assert here.writer.error == "403 Forbidden: nodes is forbidden"

            here.api.refuses.clear()
            await eventually(lambda: here.writer.error == "" and here.writer.writes)

    assert [it["event"] for it in logs] == ["labels refused", "labels are as they should be again"]


@pytest.mark.parametrize(("asked", "expected"), [(7.5, 7.5), (1e9, 600.0)])
async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(asked: float, expected: float) -> None:
    here = Here(told(TWO))
    here.api.fails = [Busy(429, "TooManyRequests", "", asked)]

    assert await here.writer.once() == expected


async def test_a_node_feature_is_made_kept_and_made_again() -> None:
    here = Here(told(TWO, "nodeFeature"), every=0.01)
    async with here.runs():
        await eventually(lambda: here.feature == TWO)
        assert here.labels == {"pool": "a"}

        here.wanted.set(told(THREE, "nodeFeature"))
        await eventually(lambda: here.feature == THREE)

        del here.api.objects[FEATURE]
        await eventually(lambda: here.feature == THREE)

    assert here.feature == THREE


async def test_a_node_feature_is_made_where_the_config_says() -> None:
    here = Here(WantedFeatures("nodeFeature", VendorLabels(TWO), "gpu"))
    async with here.runs():
        await eventually(lambda: FEATURE.replace("/ours/", "/gpu/") in here.api.objects)


async def test_where_a_node_feature_is_made_or_kept_is_noted_and_nowhere_else() -> None:
    noted: list[tuple[str, bool]] = []
    here = Here(WantedFeatures("nodeFeature", VendorLabels(TWO), "gpu"))
    at = FEATURE.replace("/ours/", "/gpu/")
    writer = LabelWriter(
        here.api,
        "n",
        "ours",
        here.wanted,
        here.node,
        record=ObjectRecord(note=lambda it: noted.append((it, at in here.api.objects))),
    )

    here.wanted.set(told(TWO))
    await writer.once()
    assert noted == []

    here.wanted.set(WantedFeatures("nodeFeature", VendorLabels(TWO), "gpu"))
    await writer.once()
    await writer.once()
    assert noted == [("gpu", False), ("gpu", True)]


@pytest.mark.parametrize(
    ("there", "refused", "forgotten"),
    [
        (True, {}, ["ours"]),
        (False, {}, ["ours"]),
        (False, {"delete": MAY_NOT}, ["ours"]),
        (True, {"delete": MAY_NOT}, []),
        (True, {"delete": MAY_NOT, "get": MAY_NOT}, []),
    ],
)
async def test_where_no_node_feature_of_ours_is_seen_any_more_is_forgotten(
    there: bool, refused: Mapping[str, ApiError], forgotten: list[str]
) -> None:
    here = Here(told(TWO, "nodeFeature"))
    heard: list[str] = []
    writer = LabelWriter(
        here.api, "n", "ours", here.wanted, here.node, record=ObjectRecord(forget=heard.append)
    )
    if there:
        await writer.once()
    here.wanted.set(WantedFeatures())
    here.api.refuses |= refused

    await writer.once()

    assert heard == forgotten


async def test_a_cluster_without_node_features_says_what_to_do() -> None:
    here = Here(told(TWO, "nodeFeature"))
    here.api.refuses["post"] = NotFound(404, "NotFound", "the server could not find the requested resource")

    await here.writer.once()

    assert "install node-feature-discovery there, or set report.labelsAs to node" in here.writer.error


async def test_labels_told_in_another_way_leave_the_one_before() -> None:
    here = Here(told(TWO))
    async with here.runs():
        await eventually(lambda: here.labels.items() >= TWO.items())
        here.see()

        here.wanted.set(told(TWO, "nodeFeature"))
        await eventually(lambda: here.feature == TWO)
        assert here.labels.items() >= TWO.items()

        # node-feature-discovery does its part.
        here.api.objects[NODE]["metadata"]["annotations"][NFD] = NAMES
        here.see()
        await eventually(lambda: OWNED not in here.api.objects[NODE]["metadata"]["annotations"])

        here.wanted.set(WantedFeatures())
        await eventually(lambda: here.feature is None)
        assert here.labels.items() >= TWO.items()


async def test_a_node_feature_of_an_earlier_run_is_removed_where_it_is_not_wanted() -> None:
    here = Here(told(TWO))
    here.api.put_object(FEATURE, feature(None, "n", told(TWO, "nodeFeature")) or {})

    await here.writer.once()
    assert here.feature is None

    here.api.calls.clear()
    await here.writer.once()
    assert "delete" not in here.api.verbs()


async def test_what_an_agent_wrote_and_may_not_be_removed_is_an_error_told_once_and_tried_again() -> None:
    here = Here(told(TWO, "file"), every=0.01)
    here.api.put_object(NODE, raw(TWO, NAMES))
    here.api.put_object(FEATURE, feature(None, "n", told(TWO, "nodeFeature")) or {})
    here.see()
    here.api.refuses = {"delete": MAY_NOT, "patch": MAY_NOT}
    here.wanted.set(told(THREE, "file"))
    with capture_logs() as logs:
        async with here.runs():
            await eventually(
                lambda: here.api.verbs().count("patch") > 3 and here.api.verbs().count("delete") > 3
            )
            assert "labels that an agent wrote to the Node stay: 403 Forbidden: no" in here.writer.error
            assert (
                "NodeFeature xpu-agent-features-for-n stays in ours: 403 Forbidden: no" in here.writer.error
            )

            here.api.refuses.clear()
            await eventually(lambda: here.writer.error == "" and here.feature is None)

    assert here.labels == {"acme.com/count": "3"}
    assert [it["event"] for it in logs] == ["labels refused", "labels are as they should be again"]


async def test_what_may_not_be_removed_keeps_nothing_else_from_being_told() -> None:
    here = Here(told(TWO))
    here.api.put_object(FEATURE, feature(None, "n", told(TWO, "nodeFeature")) or {})
    here.api.refuses = {"delete": MAY_NOT}

    assert await here.writer.once() == 0.001

    assert here.labels == {"pool": "a", **TWO}
    assert "stays in ours" in here.writer.error


@pytest.mark.parametrize("told_as", ["file", "node"])
async def test_who_may_not_remove_what_is_not_there_has_no_error(told_as: Any) -> None:
    here = Here(told(TWO, told_as))
    here.api.refuses = {"delete": MAY_NOT}

    await here.writer.once()
    await here.writer.once()

    assert here.writer.error == ""
    assert here.api.verbs().count("delete") == 1


async def test_who_may_neither_look_nor_remove_has_no_error_and_asks_no_second_time() -> None:
    here = Here(told(TWO, "file"))
    here.api.put_object(NODE, raw(TWO, NAMES))
    here.api.put_object(FEATURE, feature(None, "n", told(TWO, "nodeFeature")) or {})
    here.see()
    here.api.refuses = {"delete": MAY_NOT, "patch": MAY_NOT, "get": MAY_NOT}
    here.wanted.set(told(THREE, "file"))

    await here.writer.once()
    asked = len(here.api.calls)
    await here.writer.once()

    assert here.writer.error == ""
    assert len(here.api.calls) == asked


async def quarrel(here: Here, undo: Callable[[dict[str, Any]], object], times: int) -> list[float]:
    """Somebody undoes each of our writes; returns how long the writer pauses after each."""
    pauses = []
    for _ in range(times):
        pauses.append(await here.writer.once())
        found = here.api.objects[NODE]
        undo(found["metadata"])
        here.api.put_object(NODE, found)
        here.see()
    return pauses


@pytest.mark.parametrize(
    ("undo", "key"),
    [
        (lambda it: it["labels"].update({"acme.com/count": "9"}), "acme.com/count"),
        (lambda it: it["labels"].pop("acme.com/model"), "acme.com/model"),
        (lambda it: it["annotations"].pop(OWNED), OWNED),
    ],
)
async def test_what_somebody_undoes_again_and_again_is_written_more_seldom_and_told_once(
    undo: Callable[[dict[str, Any]], object], key: str
) -> None:
    here = Here(told(TWO))
    with capture_logs() as logs:
        pauses = await quarrel(here, undo, 8)

    assert pauses[:3] == [0.001] * 3
    assert pauses[-1] > 0.008
    assert [(it["log_level"], it["keys"]) for it in logs] == [("warning", [key])]
    assert here.writer.error == ""


async def test_after_a_quarrel_other_changes_are_written_at_the_usual_pace() -> None:
    here = Here(told(TWO))
    await quarrel(here, lambda it: it["labels"].update({"acme.com/count": "9"}), 8)

    here.wanted.set(told(THREE))

    assert await here.writer.once() == 0.001


async def test_values_that_change_are_no_quarrel() -> None:
    here = Here(told(TWO))
    with capture_logs() as logs:
        for count in range(8):
            here.wanted.set(told({"acme.com/count": str(count)}))
            assert await here.writer.once() == 0.001
            here.see()

    assert logs == []


async def test_uninstalling_takes_all_of_ours_and_nothing_else() -> None:
    here = Here(told(TWO))
    await here.writer.once()
    here.api.put_object(FEATURE, feature(None, "n", told(TWO, "nodeFeature")) or {})

    await remove(here.api, "n", "ours")

    assert here.labels == {"pool": "a"}
    assert here.feature is None
    assert OWNED not in here.api.objects[NODE]["metadata"]["annotations"]

    await remove(here.api, "n", "ours")


def featured(api: FakeApi, namespace: str) -> str:
    """A NodeFeature object of an agent in this namespace."""
    at = FEATURE.replace("/ours/", f"/{namespace}/")
    api.put_object(at, feature(None, "n", told(TWO, "nodeFeature")) or {})
    return at


async def test_uninstalling_takes_the_node_features_of_all_namespaces_where_one_was_made() -> None:
    here = Here(told(TWO))
    for it in ("ours", "gpu", "theirs"):
        featured(here.api, it)

    await remove(here.api, "n", "ours", ["gpu"])

    assert [it for it in here.api.objects if it != NODE] == [FEATURE.replace("/ours/", "/theirs/")]


@pytest.mark.parametrize(
    ("made", "there", "may_look", "error"),
    [
        ([], True, True, "stays in ours: 403"),
        ([], False, True, ""),
        ([], True, False, ""),
        (["ours"], True, False, "stays in ours: 403"),
        (["ours"], False, True, ""),
    ],
)
async def test_uninstalling_says_which_node_feature_it_may_not_remove(
    made: list[str], there: bool, may_look: bool, error: str
) -> None:
    here = Here(told(TWO))
    if there:
        featured(here.api, "ours")
    # Its calls: get the Node, delete the NodeFeature, get that.
    here.api.fails = [None, MAY_NOT, None if may_look else MAY_NOT]
    said = ""

    try:
        await remove(here.api, "n", "ours", made)
    except ApiError as exc:
        said = str(exc)

    assert error in said
    assert bool(said) == bool(error)


async def test_uninstalling_a_node_that_may_not_be_changed_takes_its_node_feature_nevertheless() -> None:
    here = Here(told(TWO))
    await here.writer.once()
    featured(here.api, "ours")
    here.api.refuses["patch"] = MAY_NOT

    with pytest.raises(ApiError, match="403 Forbidden: no"):
        await remove(here.api, "n", "ours")

    assert here.feature is None


async def test_uninstalling_writes_again_what_somebody_changes_in_that_moment() -> None:
    here = Here(told(TWO))
    await here.writer.once()
    here.api.fails = [None, AGAIN]

    await remove(here.api, "n", "ours")

    assert here.labels == {"pool": "a"}
