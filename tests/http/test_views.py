"""What the probes, the metrics and /inspect say of a view."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from support.http_views import ALLOCATION, BAD, EMPTY, GOOD, HOSTILE, VIEW, as_text, document_of, hostile

from agent.core.model import (
    AllocationState,
    Cordon,
    NodeSnapshot,
    Resource,
    SessionStatus,
    VendorState,
    VendorStatus,
)
from agent.core.publishing.agent_status import AgentStatus, ApiServer, FollowedList
from agent.http.answer import document
from agent.http.inspect_builder import inspect_document
from agent.http.inspect_document import from_builtins, to_builtins
from agent.http.metrics import metrics
from agent.http.probes import healthz, readyz
from agent.http.routes import Audience, answer


def samples(view: AgentStatus) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics(view).body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# Probes


def test_slices_of_others_are_counted_by_card() -> None:
    view = structs.replace(VIEW, foreign_slices={("nvidia", "GPU-1"): 2})

    assert b'xpu_agent_foreign_slices{device="GPU-1",vendor="nvidia"} 2.0' in metrics(view).body


def test_alive_is_whoever_answers() -> None:
    assert (healthz().status, healthz().body) == (200, b"ok\n")


def test_ready_is_who_has_no_trouble() -> None:
    assert (readyz(VIEW).status, readyz(VIEW).body) == (200, b"ready\n")


def test_not_ready_tells_every_reason_on_a_line_of_its_own() -> None:
    told = readyz(
        structs.replace(
            VIEW,
            snapshot=NodeSnapshot((VendorStatus("nvidia", VendorState.FAILED, "hung\nfor long"),)),
            sessions={**VIEW.sessions, "a/b": SessionStatus("refused", "no")},
        )
    )

    assert told.status == 503
    assert told.body.decode().splitlines() == [
        "vendor nvidia: failed: hung for long",
        "resource a/b: refused: no",
    ]


def test_a_resource_that_nobody_has_begun_to_register_is_a_reason_not_to_be_ready() -> None:
    told = readyz(structs.replace(VIEW, sessions={}))

    assert (told.status, told.body) == (503, b"resource nvidia.com/gpu: waiting\n")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"complaints": ("vendor nvidia: unknown MIG profile",)}, "vendor nvidia: unknown MIG profile"),
        ({"checkpoint_error": "/state: no space"}, "checkpoint: /state: no space"),
        ({"cdi_error": "/var/run/cdi: no space"}, "CDI specs: /var/run/cdi: no space"),
        ({"annotations_error": "403 Forbidden"}, "annotations: 403 Forbidden"),
        ({"labels_error": "/f: no directory"}, "labels: /f: no directory"),
        ({"config_awaited": True, "config_error": "no such config"}, "config: no such config"),
    ],
)
def test_what_can_not_be_served_or_written_is_a_reason_not_to_be_ready(
    what: dict[str, Any], reason: str
) -> None:
    told = readyz(structs.replace(VIEW, **what))

    assert (told.status, told.body.decode()) == (503, f"{reason}\n")


def test_a_bad_config_behind_a_good_one_leaves_the_agent_ready() -> None:
    assert readyz(structs.replace(VIEW, config_error="a typo; the last good one stays")).status == 200


def test_a_reason_from_a_stranger_reaches_no_terminal_as_a_command() -> None:
    told = readyz(hostile()).body.decode()

    assert len(told.splitlines()) == 3
    assert all(line.isprintable() for line in told.splitlines())


def test_a_standby_is_ready_and_says_who_serves() -> None:
    told = readyz(structs.replace(EMPTY, standby="pid 7 holds the lock"))

    assert (told.status, told.body) == (200, b"standby: pid 7 holds the lock\n")


# Metrics


def test_the_metrics_tell_devices_resources_and_sessions() -> None:
    found = samples(VIEW)

    def value(name: str, **labels: str) -> float:
        return found[f"xpu_agent_{name}", tuple(sorted(labels.items()))]

    assert value("device_healthy", vendor="nvidia", uuid="GPU-0", reason="") == 1
    assert value("device_healthy", vendor="nvidia", uuid="GPU-1", reason="xid-79") == 0
    assert value("resource_devices", resource="nvidia.com/gpu", state="capacity") == 8
    assert value("resource_devices", resource="nvidia.com/gpu", state="allocatable") == 4
    assert value("resource_devices", resource="nvidia.com/gpu", state="allocated") == 2
    assert value("allocations", resource="nvidia.com/gpu", state="done") == 2
    assert value("allocations", resource="nvidia.com/gpu", state="intent") == 0
    assert value("vendor_up", vendor="nvidia", state="open") == 1
    assert value("vendor_breaker_open", vendor="nvidia") == 1
    assert value("vendor_memory_bytes", vendor="nvidia") == 60_000_000
    assert value("session_registered", resource="nvidia.com/gpu") == 1
    assert value("registrations_total", resource="nvidia.com/gpu") == 2
    assert value("config_valid") == value("checkpoint_valid") == value("ready") == 1
    assert value("standby") == 0
    assert value("build_info", version="1.2.3") == 1
    assert value("vendor_restarts_total", vendor="nvidia") == 3
    assert value("checkpoint_saves_total") == 7
    assert ("process_resident_memory_bytes", ()) in found


def test_the_metrics_count_what_is_in_use_of_nobody_knows_whom_and_nothing_that_is_over() -> None:
    unowned = replace(ALLOCATION, owner=None)
    over = replace(unowned, id="a3", state=AllocationState.RELEASED)
    begun = replace(unowned, id="a4", state=AllocationState.INTENT, resource="nvidia.com/mig-1g.10gb")

    found = samples(structs.replace(VIEW, allocations=(ALLOCATION, unowned, over, begun)))

    def counted(resource: str) -> float:
        return found["xpu_agent_allocations_unowned", (("resource", resource),)]

    assert counted("nvidia.com/gpu") == 1
    assert counted("nvidia.com/mig-1g.10gb") == 1


def test_another_plugin_on_a_resource_is_shown_everywhere() -> None:
    gpu = "nvidia.com/gpu"
    fought = structs.replace(VIEW, other_plugins={gpu: "another plugin answered for the pod"})
    key = ("xpu_agent_foreign_plugin", (("resource", gpu),))

    assert (samples(VIEW)[key], samples(fought)[key]) == (0, 1)
    assert [it["foreign"] for it in document_of(VIEW)["resources"]] == [""]
    assert [it["foreign"] for it in document_of(fought)["resources"]] == [
        "another plugin answered for the pod"
    ]
    assert "another plugin answered" in as_text(document_of(fought), 0.0)


@pytest.mark.parametrize("call", ["allocate", "pre_start"])
def test_the_histogram_of_a_call_cumulates_its_buckets(call: str) -> None:
    found = samples(VIEW)

    def bucket(bound: str) -> float:
        labels = {"resource": "nvidia.com/gpu", "outcome": "ok", "le": bound}
        return found[f"xpu_agent_{call}_seconds_bucket", tuple(sorted(labels.items()))]

    assert (bucket("0.0005"), bucket("0.001"), bucket("0.0025"), bucket("+Inf")) == (1, 1, 3, 4)
    of = (("outcome", "ok"), ("resource", "nvidia.com/gpu"))
    assert found[f"xpu_agent_{call}_seconds_count", of] == 4
    assert found[f"xpu_agent_{call}_seconds_sum", of] == 11.5


def test_errors_of_config_and_checkpoint_are_metrics() -> None:
    found = samples(structs.replace(VIEW, config_error="bad", checkpoint_error="bad"))

    assert found["xpu_agent_config_valid", ()] == 0
    assert found["xpu_agent_checkpoint_valid", ()] == 0


REFUSED = FollowedList(error="403 Forbidden", refused=True)


@pytest.mark.parametrize(
    ("followed", "up"),
    [
        ({}, 0),
        ({"nodes": FollowedList(synced=True)}, 1),
        ({"nodes": FollowedList(synced=True), "pods": FollowedList()}, 0),
        ({"nodes": FollowedList(synced=True, error="no answer")}, 0),
        ({"nodes": FollowedList(synced=True), "pods": REFUSED}, 1),
        ({"nodes": FollowedList(synced=True, error="no answer"), "pods": REFUSED}, 0),
    ],
)
def test_an_api_server_that_refuses_a_list_is_up(followed: dict[str, FollowedList], up: int) -> None:
    view = structs.replace(VIEW, api_server=ApiServer("https://a", followed=followed))

    assert samples(view)["xpu_agent_api_server_up", ()] == up


def test_an_agent_that_knows_nothing_yet_has_metrics() -> None:
    assert samples(EMPTY)["xpu_agent_ready", ()] == 0


def test_two_agents_in_one_process_have_metrics_of_their_own() -> None:
    assert metrics(EMPTY).body != metrics(VIEW).body
    assert samples(VIEW).keys() == samples(VIEW).keys()


def test_a_label_is_bounded_and_stays_different_where_the_text_is() -> None:
    reasons = ["x" * 1_000_000 + end for end in ("a", "b")]
    devices = tuple(
        replace(BAD, device=replace(BAD.device, uuid=reason), health=replace(BAD.health, reason=reason))
        for reason in reasons
    )

    view = structs.replace(VIEW, snapshot=NodeSnapshot(VIEW.snapshot.vendors, devices))
    told = [dict(labels) for name, labels in samples(view) if name == "xpu_agent_device_healthy"]

    assert len(metrics(view).body) < 20_000
    assert len({it["uuid"] for it in told}) == 2
    assert all(len(it["reason"]) == 128 and it["reason"].startswith("xxx") for it in told)


def test_hostile_names_never_break_the_page() -> None:
    found = samples(hostile())

    uuids = {dict(labels).get("uuid") for name, labels in found if name == "xpu_agent_device_healthy"}
    assert uuids == {HOSTILE.encode("utf-8", "backslashreplace").decode()}


# Inspect


def test_the_document_has_exactly_the_agreed_fields_and_may_have_more() -> None:
    told = document_of(VIEW)

    device, resource, allocation = told["devices"][1], told["resources"][0], told["allocations"][0]
    assert told["node"] == "node-1"
    assert told["version"] == "1.2.3"
    assert told["vendors"] == [
        {
            "name": "nvidia",
            "state": "open",
            "reason": "",
            "pid": 77,
            "memoryBytes": 60_000_000,
            "memoryLimitBytes": 1 << 30,
            "restarts": 3,
            "breaker": "half-open",
            "nextTry": 1600.123,
            "stuck": 78,
        }
    ]
    assert subset(
        device,
        {
            "vendor": "nvidia",
            "uuid": "GPU-1",
            "index": 1,
            "numa": None,
            "memoryBytes": 80 << 30,
            "model": "H100",
            "health": {
                "state": "unhealthy",
                "reason": "xid-79",
                "message": "fell off the bus",
                "since": 1500.123,
            },
        },
    )
    assert subset(
        resource,
        {
            "name": "nvidia.com/gpu",
            "vendor": "nvidia",
            "sharing": "replicas",
            "capacity": 8,
            "allocatable": 4,
            "session": "registered",
        },
    )
    assert subset(
        allocation,
        {
            "id": "a1",
            "resource": "nvidia.com/gpu",
            "ids": ["GPU-0::1", "GPU-0::2"],
            "devices": ["GPU-0"],
            "diverged": False,
            "owner": {"namespace": "default", "pod": "trainer", "uid": "uid-1", "container": "main"},
            "state": "done",
            "source": "allocate",
            "since": 1200.0,
        },
    )
    assert told["allocations"][1]["owner"] is None


def subset(whole: dict[str, Any], part: dict[str, Any]) -> bool:
    return {key: whole.get(key) for key in part} == part


@pytest.mark.parametrize("view", [VIEW, EMPTY, hostile()], ids=["full", "empty", "hostile"])
def test_the_document_is_json(view: AgentStatus) -> None:
    assert from_builtins(json.loads(document(to_builtins(inspect_document(view))).body)) == inspect_document(
        view
    )


def test_a_resource_without_a_session_waits() -> None:
    rule = VIEW.resources["nvidia.com/gpu"].rule
    view = structs.replace(EMPTY, resources={"a/b": Resource("a/b", "v", rule, "packed")})

    assert document_of(view)["resources"][0]["session"] == "waiting"


# Who sees what


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/inspect", "/version"])
def test_this_machine_sees_everything(path: str) -> None:
    assert answer(lambda: VIEW, Audience.LOCAL, path).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_the_network_sees_what_probes_and_scrapes_need(path: str) -> None:
    assert answer(lambda: VIEW, Audience.NETWORK, path).status == 200


@pytest.mark.parametrize("path", ["/inspect", "/version"])
def test_the_network_does_not_see_pods_and_is_told_why(path: str) -> None:
    told = answer(lambda: VIEW, Audience.NETWORK, path)

    assert told.status == 404
    assert told.body.decode() == f"{path} is served on loopback and on the admin socket only\n"


def test_an_unknown_path_names_those_that_are_there() -> None:
    told = answer(lambda: VIEW, Audience.NETWORK, "/x")

    assert (told.status, told.body) == (404, b"nothing is here; there is /healthz, /readyz, /metrics\n")


def test_the_version_is_told() -> None:
    assert json.loads(answer(lambda: VIEW, Audience.LOCAL, "/version").body) == {"version": "1.2.3"}


def test_a_cordon_is_told_apart_from_a_fault() -> None:
    cordon = Cordon("root (alice)", "fan", since=1700.0)
    cordoned = structs.replace(
        VIEW, snapshot=replace(VIEW.snapshot, devices=(replace(GOOD, cordon=cordon), BAD))
    )

    good, bad = document_of(cordoned)["devices"]
    found = samples(cordoned)

    assert good["cordon"] == {"author": "root (alice)", "reason": "fan", "since": 1700.0}
    assert (good["health"]["state"], good["inUse"]) == ("healthy", True)
    assert (bad["cordon"], bad["inUse"]) == (None, False)
    gpu = (("uuid", "GPU-0"), ("vendor", "nvidia"))
    assert found["xpu_agent_device_cordoned", gpu] == 1
    assert found["xpu_agent_device_healthy", (("reason", ""), *gpu)] == 1
    assert "cordoned by root (alice): fan" in as_text(document_of(cordoned), now=5000.0)
