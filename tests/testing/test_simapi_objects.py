"""Objects in the simulated API server: what each verb makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from agent.testing.simapi import Resource, SimApiServer

from .apiclient import JSON_PATCH, LEASES, MERGE, NODES, STRATEGIC, Client, lease, node

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
PODS = "/api/v1/namespaces/default/pods"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


def pod(name: str = "p", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def device(**more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n"},
        **more,
    }


async def test_what_is_created_has_a_uid_a_time_and_a_version(api: Client) -> None:
    reply = await api.post(NODES, node())

    assert reply.code == 201
    assert {"uid", "creationTimestamp", "resourceVersion"} < set(reply.body["metadata"])
    assert (await api.get(f"{NODES}/n")).body == reply.body


async def test_a_name_that_is_taken_is_refused(api: Client) -> None:
    await api.post(NODES, node())

    reply = await api.post(NODES, node())

    assert (reply.code, reply.body["reason"]) == (409, "AlreadyExists")
    assert reply.words == 'nodes "n" already exists'


async def test_a_generated_name_begins_as_asked_and_is_new_each_time(api: Client) -> None:
    body = {**lease(), "metadata": {"generateName": "xpu-"}}

    names = {(await api.post(LEASES, body)).body["metadata"]["name"] for _ in range(3)}

    assert len(names) == 3
    assert all(it.startswith("xpu-") and len(it) == len("xpu-") + 5 for it in names)


async def test_a_generated_name_is_cut_to_what_a_name_may_have(api: Client) -> None:
    reply = await api.post(LEASES, {**lease(), "metadata": {"generateName": "x" * 80}})

    assert len(reply.body["metadata"]["name"]) == 63


async def test_every_change_has_a_higher_version_than_all_before(api: Client) -> None:
    made = [await api.post(NODES, node(f"n{n}")) for n in range(2)]
    changed = await api.patch(f"{NODES}/n0", {"metadata": {"labels": {"a": "b"}}})

    versions = [int(it.body["metadata"]["resourceVersion"]) for it in (*made, changed)]

    assert versions == sorted(set(versions))


async def test_a_change_that_changes_nothing_has_no_version_of_its_own(api: Client) -> None:
    made = await api.post(NODES, node(labels={"a": "b"}))

    same = await api.patch(f"{NODES}/n", {"metadata": {"labels": {"a": "b"}}})

    assert same.body == made.body


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_a_stale_version_is_a_conflict(api: Client, method: str) -> None:
    stale = (await api.post(NODES, node())).body
    await api.patch(f"{NODES}/n", {"metadata": {"labels": {"a": "b"}}})

    reply = await api.ask(method, f"{NODES}/n", {**stale, "x": 1}, media=MERGE)

    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert reply.words == f'Operation cannot be fulfilled on nodes "n": {MODIFIED}'


async def test_a_patch_of_another_uid_is_invalid_and_changes_nothing(api: Client) -> None:
    await api.post(NODES, node())
    patch = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000", "labels": {"a": "b"}}}

    reply = await api.patch(f"{NODES}/n", patch)

    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert reply.words.endswith(
        'metadata.uid: Invalid value: "00000000-0000-4000-8000-000000000000": field is immutable'
    )
    assert "labels" not in (await api.get(f"{NODES}/n")).body["metadata"]


async def test_replacing_an_object_of_another_uid_is_a_conflict(api: Client) -> None:
    await api.post(NODES, node())

    reply = await api.put(f"{NODES}/n", node(uid="00000000-0000-4000-8000-000000000000"))

    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: 00000000-" in reply.words


async def test_replacing_without_a_version_is_taken_of_a_node_and_not_of_a_custom_resource(
    api: Client,
) -> None:
    await api.post(NODES, node())
    await api.post(DEVICES, device())

    assert (await api.put(f"{NODES}/n", node(labels={"a": "b"}))).code == 200
    refused = await api.put(f"{DEVICES}/n", device())
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in refused.words


async def test_a_lease_can_be_created_by_put_and_a_node_can_not(api: Client) -> None:
    assert (await api.put(f"{LEASES}/l", lease())).code == 201
    assert (await api.put(f"{NODES}/n", node())).code == 404


async def test_nobody_writes_what_is_the_server_s(api: Client) -> None:
    made = (await api.post(NODES, node())).body

    body = {
        "metadata": {"creationTimestamp": "2000-01-01T00:00:00Z", "deletionTimestamp": "x", "generation": 9}
    }
    await api.patch(f"{NODES}/n", body)

    assert (await api.get(f"{NODES}/n")).body == made


async def test_the_status_is_changed_by_its_subresource_alone(api: Client) -> None:
    await api.post(NODES, node())
    both = {"spec": {"unschedulable": True}, "status": {"phase": "Running"}}

    whole = (await api.patch(f"{NODES}/n", both)).body
    status = (await api.patch(f"{NODES}/n/status", both)).body

    assert "status" not in whole
    assert status["status"] == {"phase": "Running"}
    await api.patch(f"{NODES}/n/status", {"spec": {"unschedulable": False}})
    assert (await api.get(f"{NODES}/n")).body["spec"] == {"unschedulable": True}


async def test_a_custom_resource_s_status_changes_nothing_else(sim: SimApiServer, api: Client) -> None:
    sim.serve(Resource("example.com", "v1", "boxes", "Box", namespaced=False, custom=True, status=True))
    box = {"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "b"}, "spec": {"size": 1}}
    made = (await api.post("/apis/example.com/v1/boxes", box)).body
    more = {"metadata": {"labels": {"a": "b"}}, "spec": {"size": 2}, "status": {"full": True}}

    after = (await api.patch("/apis/example.com/v1/boxes/b/status", more)).body

    version = after["metadata"]["resourceVersion"]
    assert after == {
        **made,
        "metadata": {**made["metadata"], "resourceVersion": version},
        "status": {"full": True},
    }


async def test_the_generation_of_a_custom_resource_counts_its_content(api: Client) -> None:
    made = await api.post(DEVICES, device())
    labelled = await api.patch(f"{DEVICES}/n", {"metadata": {"labels": {"a": "b"}}})
    filled = await api.patch(f"{DEVICES}/n", {"spec": {"devices": []}})

    generations = [it.body["metadata"]["generation"] for it in (made, labelled, filled)]
    assert generations == [1, 1, 2]


@pytest.mark.parametrize(
    ("media", "patch"),
    [
        (MERGE, {"metadata": {"labels": {"a": None, "c": "3"}}}),
        (STRATEGIC, {"metadata": {"labels": {"a": None, "c": "3"}}}),
        (
            JSON_PATCH,
            [
                {"op": "test", "path": "/metadata/labels/a", "value": "1"},
                {"op": "remove", "path": "/metadata/labels/a"},
                {"op": "add", "path": "/metadata/labels/c", "value": "3"},
            ],
        ),
    ],
)
async def test_a_patch_takes_and_leaves_labels(api: Client, media: str, patch: Any) -> None:
    await api.post(NODES, node(labels={"a": "1", "b": "2"}))

    reply = await api.patch(f"{NODES}/n", patch, media)

    assert reply.body["metadata"]["labels"] == {"b": "2", "c": "3"}


async def test_a_strategic_patch_merges_conditions_by_type_and_a_merge_patch_replaces_them(
    api: Client,
) -> None:
    await api.post(NODES, node())
    for name in ("Ready", "XpuReady"):
        body = {"status": {"conditions": [{"type": name, "status": "True"}]}}
        strategic = (await api.patch(f"{NODES}/n/status", body, STRATEGIC)).body

    merge = (await api.patch(f"{NODES}/n/status", {"status": {"conditions": []}}, MERGE)).body

    assert [it["type"] for it in strategic["status"]["conditions"]] == ["Ready", "XpuReady"]
    assert merge["status"]["conditions"] == []


@pytest.mark.parametrize(
    "second",
    [
        {"op": "remove", "path": "/metadata/labels/none"},
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
    ],
)
async def test_a_json_patch_is_applied_all_or_none(api: Client, second: Any) -> None:
    made = (await api.post(NODES, node(labels={"a": "1"}))).body
    operations = [{"op": "replace", "path": "/metadata/labels/a", "value": "2"}, second]

    reply = await api.patch(f"{NODES}/n", operations, JSON_PATCH)

    assert reply.code == 422
    assert (await api.get(f"{NODES}/n")).body == made


@pytest.mark.parametrize(
    ("operation", "labels"),
    [
        ({"op": "add", "path": "/metadata/labels/x.io~1y", "value": "2"}, {"a~b": "1", "x.io/y": "2"}),
        ({"op": "replace", "path": "/metadata/labels", "value": {"c": "3"}}, {"c": "3"}),
        (
            {"op": "copy", "from": "/metadata/labels/a~0b", "path": "/metadata/labels/c"},
            {"a~b": "1", "c": "1"},
        ),
        ({"op": "move", "from": "/metadata/labels/a~0b", "path": "/metadata/labels/c"}, {"c": "1"}),
    ],
)
def test_a_json_patch_finds_its_place(operation: Any, labels: Any) -> None:
    from agent.testing.simapi.patches import json_patched

    patched = json_patched({"metadata": {"labels": {"a~b": "1"}}}, [operation])

    assert patched == {"metadata": {"labels": labels}}


async def test_a_custom_resource_takes_no_strategic_patch(api: Client) -> None:
    await api.post(DEVICES, device())

    reply = await api.patch(f"{DEVICES}/n", {}, STRATEGIC)

    assert (reply.code, reply.body["reason"]) == (415, "UnsupportedMediaType")


async def test_what_is_deleted_is_not_found(api: Client) -> None:
    made = await api.post(NODES, node())

    reply = await api.delete(f"{NODES}/n")

    details = {"name": "n", "kind": "nodes", "uid": made.body["metadata"]["uid"]}
    assert (reply.code, reply.body["status"], reply.body["details"]) == (200, "Success", details)
    after = await api.delete(f"{NODES}/n")
    assert (after.code, after.body["reason"], after.words) == (404, "NotFound", 'nodes "n" not found')


@pytest.mark.parametrize("precondition", ["uid", "resourceVersion"])
async def test_a_delete_that_means_another_one_is_a_conflict(api: Client, precondition: str) -> None:
    made = await api.post(NODES, node())
    wrong = {"preconditions": {precondition: "1"}}
    right = {"preconditions": {precondition: made.body["metadata"][precondition]}}

    reply = await api.delete(f"{NODES}/n", wrong)

    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert (await api.delete(f"{NODES}/n", right)).code == 200


async def test_what_has_a_finalizer_goes_with_it(api: Client) -> None:
    await api.post(NODES, node(finalizers=["example.com/keep"]))

    marked = await api.delete(f"{NODES}/n")

    assert marked.body["metadata"]["deletionTimestamp"]
    await api.patch(f"{NODES}/n", {"metadata": {"finalizers": []}})
    assert (await api.get(f"{NODES}/n")).code == 404


async def test_a_pod_on_a_node_is_marked_until_its_kubelet_deletes_it(api: Client) -> None:
    await api.post(PODS, pod("waits"))
    await api.post(PODS, pod("runs", nodeName="n", terminationGracePeriodSeconds=7))

    for name in ("waits", "runs"):
        await api.delete(f"{PODS}/{name}")

    assert (await api.get(f"{PODS}/waits")).code == 404
    marked = (await api.get(f"{PODS}/runs")).body["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 7
    assert (await api.delete(f"{PODS}/runs", {"gracePeriodSeconds": 0})).code == 200
    assert (await api.get(f"{PODS}/runs")).code == 404


@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"a": "b c"}},
        {"labels": {"a": "x" * 64}},
        {"labels": {"a/": "b"}},
        {"labels": {"-/a": "b"}},
        {"labels": {"x" * 64: "b"}},
        {"annotations": {"a b": "c"}},
        {"annotations": {"a": "x" * (256 << 10)}},
        {"name": "Not-A-Name"},
        {"name": ""},
    ],
)
async def test_metadata_that_is_not_valid_is_refused(api: Client, metadata: Any) -> None:
    reply = await api.post(NODES, node(**{"name": "n", **metadata}))

    assert (reply.code, reply.body["reason"]) == (422, "Invalid")


async def test_the_domain_of_an_annotation_may_have_capitals_and_a_label_s_may_not(api: Client) -> None:
    assert (await api.post(NODES, node("a", annotations={"Example.com/a": "b"}))).code == 201
    assert (await api.post(NODES, node("b", labels={"Example.com/a": "b"}))).code == 422


async def test_a_label_that_is_no_text_is_refused(api: Client) -> None:
    assert (await api.post(NODES, node(labels={"a": 1}))).code == 400


@pytest.mark.parametrize(("namespace", "code"), [("default", 201), ("kube-system", 422)])
async def test_an_event_of_a_node_lies_in_the_namespace_default(
    api: Client, namespace: str, code: int
) -> None:
    body = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}}

    assert (await api.post(f"/api/v1/namespaces/{namespace}/events", body)).code == code


async def test_a_resource_comes_and_goes_with_its_definition(sim: SimApiServer, api: Client) -> None:
    path = "/apis/example.com/v1/boxes"
    assert (await api.get(path)).body == "404 page not found\n"

    sim.serve(Resource("example.com", "v1", "boxes", "Box", namespaced=False, custom=True))

    box = {"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "b"}}
    assert (await api.post(path, box)).code == 201
    found = (await api.get("/apis/example.com/v1")).body
    assert [it["name"] for it in found["resources"]] == ["boxes"]
    sim.unserve("example.com", "boxes")
    assert (await api.get(path)).body == "404 page not found\n"
    assert sim.find("Box", "b") is None


async def test_a_path_that_names_nothing_is_not_found(api: Client) -> None:
    for path in (
        "/api/v1/unheards",
        "/api/v1/pods/no-namespace",
        f"{NODES}/n/unheard",
        "/api/v1/namespaces/x/nodes",
    ):
        reply = await api.get(path)
        assert (reply.code, reply.words) == (404, "the server could not find the requested resource")


async def test_a_method_that_nobody_expects_is_refused(api: Client) -> None:
    for method, path in (("POST", f"{NODES}/n"), ("POST", "/api/v1/pods"), ("PUT", NODES), ("DELETE", NODES)):
        assert (await api.ask(method, path, {})).body["reason"] == "MethodNotAllowed"


async def test_what_a_test_puts_is_there_status_and_all(sim: SimApiServer, api: Client) -> None:
    for phase in ("Pending", "Running"):
        sim.put_object({**pod("p", nodeName="n"), "status": {"phase": phase}})
        assert (await api.get(f"{PODS}/p")).body["status"] == {"phase": phase}

    sim.delete_object("Pod", "p", "default")

    assert (await api.get(f"{PODS}/p")).code == 404


async def test_what_a_test_looks_at_is_a_copy(sim: SimApiServer) -> None:
    sim.put_object(node())

    for found in (*sim.objects, sim.find("Node", "n"), sim.put_object(node())):
        assert found is not None
        found["metadata"]["name"] = "other"

    assert [it["metadata"]["name"] for it in sim.objects] == ["n"]


async def test_requests_are_remembered_without_their_token(sim: SimApiServer, api: Client) -> None:
    await api.patch(f"{NODES}/n", {"metadata": {}})
    await api.get(NODES, limit="1")

    assert [(it.verb, it.path, dict(it.query), it.body, it.media) for it in sim.requests] == [
        ("patch", f"{NODES}/n", {}, {"metadata": {}}, MERGE),
        ("list", NODES, {"limit": "1"}, None, "application/octet-stream"),
    ]
    assert sim.token not in repr(sim.requests)


async def test_who_brought_which_field_is_kept_as_the_real_server_keeps_it(sim: SimApiServer) -> None:
    """As koordlet's empty writes and ours were seen on kube-apiserver 1.36."""
    its: dict[str, Any] = {"spec": {}, "status": {}}

    def shown() -> list[tuple[str, dict[str, Any]]]:
        found: Any = sim.find("Device", "n")
        its = found["metadata"]["managedFields"]
        return sorted(
            (it["manager"], {k: v for k, v in it["fieldsV1"].items() if k != "f:metadata"}) for it in its
        )

    sim.put_object(device(spec={"devices": [{"minor": 0}]}), manager="ours")
    assert shown() == [("ours", {"f:spec": {".": {}, "f:devices": {}}})]

    sim.put_object(device(**its), manager="theirs")
    assert shown() == [("ours", {"f:spec": {}}), ("theirs", {"f:status": {}})]

    sim.put_object(device(spec={"devices": [{"minor": 0}]}, status={}), manager="ours")
    assert shown() == [("ours", {"f:spec": {".": {}, "f:devices": {}}}), ("theirs", {"f:status": {}})]

    sim.put_object(device(spec={"devices": [{"minor": 1}]}, status={}), manager="theirs")
    assert shown() == [("ours", {"f:spec": {}}), ("theirs", {"f:spec": {"f:devices": {}}, "f:status": {}})]
