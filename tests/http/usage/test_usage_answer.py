"""GET /inspect/usage: to which clients, with which processes, and the minutes of which containers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from support.http_views import EMPTY, HOSTILE, VIEW, as_text, document_of, hostile
from support.used_views import CARD, INFER, NOW, REPORT, SHARED, WORKED, allocated, used, with_report

from agent.core.publishing.agent_status import AgentStatus
from agent.core.usage.usage_report import SamplingStatus
from agent.http.answer_cache import AnswerCache
from agent.http.routes import Audience, answer, canonical
from agent.http.usage.usage_answer import usage_answer
from agent.http.usage.usage_document import UsageDocument, decode

KEY = ("a", "infer-0", "main", "GPU-a")


class Minutes:
    """Histories of two minutes each."""

    def __init__(self, *keys: tuple[str, str, str, str]) -> None:
        self._keys = keys
        self.asked: list[tuple[str, ...]] = []

    def keys(self) -> Sequence[tuple[str, str, str, str]]:
        return self._keys

    def of(
        self, namespace: str, pod: str, container: str, uuid: str
    ) -> Sequence[tuple[int, int | None, float | None]]:
        self.asked.append((namespace, pod, container, uuid))
        return [(33333, 1 << 30, 0.25), (33334, None, None)]


def ask(target: str, audience: Audience = Audience.ADMIN, status: AgentStatus = WORKED) -> tuple[int, Any]:
    answered = answer(lambda: status, audience, target)
    body = answered.body.decode()
    return answered.status, json.loads(body) if answered.content_type == "application/json" else body


def read(status: AgentStatus, query: str = "") -> UsageDocument:
    """The document as `top` reads it."""
    return decode(usage_answer(status, query, is_admin=True).body)


def test_cards_have_their_account_and_what_they_are() -> None:
    (card,) = read(WORKED).cards

    assert (card.index, card.minor, card.pci, card.model) == (0, 0, "0000:01:00.0", "NVIDIA H100")
    assert (card.memory_used_bytes, card.utilization, card.power_watts) == (22548578304, 0.55, 301.5)
    assert card.unattributed_bytes == {"host": 536870912, "driver": 536870912}
    assert (card.overcounted_bytes, card.in_slices_bytes) == (0, 0)


def test_containers_have_what_they_use_beside_what_they_were_granted() -> None:
    infer, notebook = read(WORKED).containers

    assert (infer.namespace, infer.pod, infer.container, infer.uuid) == KEY
    assert (infer.memory_bytes, infer.memory_limit_bytes) == (12884901888, 21474836480)
    assert (infer.utilization, infer.compute_limit, infer.idle_seconds) == (0.41, 0.25, 1.0)
    assert (infer.share, infer.limits) == ("1/4", "none")
    assert (notebook.idle_seconds, notebook.memory_limit_bytes) == (3600.0, None)


def test_sampling_says_how_old_the_sample_is_and_what_is_wrong() -> None:
    late = SamplingStatus("nvidia", at=NOW - 100, error="no answer within 2 s", ended=True)
    sampling = read(with_report(sampling=(late, SamplingStatus("metax")))).sampling

    assert [(it.vendor, it.up, it.age_seconds, it.error, it.ended) for it in sampling] == [
        ("nvidia", False, 100.0, "no answer within 2 s", True),
        ("metax", False, None, "", False),
    ]
    assert read(WORKED).sampling[0].up


@pytest.mark.parametrize("step", [-86400.0, 86400.0], ids=["back", "ahead"])
def test_a_step_of_the_nodes_clock_changes_no_document(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    monkeypatch.setattr("time.time", lambda: NOW + step)
    _, document = ask("/inspect/usage")
    (inspected,) = ask("/inspect")[1]["allocations"][1]["use"]

    assert (document["sampling"][0]["up"], document["sampling"][0]["ageSeconds"]) == (True, 2.0)
    assert [it["idleSeconds"] for it in document["containers"]] == [1.0, 3600.0]
    assert (inspected["ageSeconds"], inspected["idleSeconds"]) == (2.0, 3600.0)


def test_what_is_not_known_is_null_and_counted() -> None:
    document = read(with_report(containers=(used("infer-0", "a", "main"),)))

    assert document.containers[0].memory_bytes is None
    assert document.containers[0].idle_seconds is None
    assert document.unknown == {"owner": 0, "memory": 0, "utilization": 1}


def test_no_figure_of_a_library_breaks_the_document() -> None:
    wild = replace(CARD.usage, utilization=float("nan"), power=float("inf"))
    status = structs.replace(hostile(), usage=REPORT)
    document = read(with_report(status, cards=(structs.replace(CARD, usage=wild),)))

    assert (document.cards[0].utilization, document.cards[0].power_watts) == (None, None)


def test_a_name_that_is_no_utf_8_breaks_no_document() -> None:
    process = structs.replace(REPORT.processes[0], name=HOSTILE)
    document = read(with_report(processes=(process,), containers=(used(HOSTILE, "a", "main"),)))

    assert document.processes is not None
    assert (document.processes[0].name, document.containers[0].pod) == (HOSTILE, HOSTILE)


# Who sees what


def test_processes_with_their_names_are_for_the_admin_socket_alone() -> None:
    _, document = ask("/inspect/usage")
    assert [(it["pid"], it["name"], it["pod"]) for it in document["processes"]] == [
        (71, "python3", "infer-0"),
        (72, "jupyter", "nb-3"),
        (9, "Xorg", ""),
    ]

    status, document = ask("/inspect/usage", Audience.LOCAL)
    assert (status, document["processes"]) == (200, None)
    assert "jupyter" not in json.dumps(document)


def test_names_of_pods_are_not_for_the_network() -> None:
    status, text = ask("/inspect/usage", Audience.NETWORK)

    assert (status, text) == (404, "/inspect/usage is served on loopback and on the admin socket only\n")


@pytest.mark.parametrize("audience", [Audience.ADMIN, Audience.LOCAL])
def test_switched_off_it_says_which_key_switches_sampling_on(audience: Audience) -> None:
    status, text = ask("/inspect/usage", audience, VIEW)

    assert status == 404
    assert "the config key usage.enabled switches sampling on" in text
    assert "with the chart the value usage.enabled" in text


def test_an_agent_that_stands_by_says_so() -> None:
    standby = structs.replace(EMPTY, standby="pid 7 holds the lock")

    assert ask("/inspect/usage", status=standby) == (503, "this agent stands by: pid 7 holds the lock\n")


def test_what_is_nowhere_names_the_page_of_use() -> None:
    assert "/inspect/usage" in ask("/nowhere")[1]
    assert "/inspect/usage" not in ask("/nowhere", Audience.NETWORK)[1]


@pytest.mark.parametrize(
    ("target", "is_made"),
    [("/metrics", True), ("/inspect", True), ("/inspect/usage", True), ("/inspect/usage?history=1", True)]
    + [(it, False) for it in ("/readyz", "/healthz", "/version", "/inspect/metax", "/nowhere")],
)
def test_use_is_made_for_the_views_that_show_use_alone(target: str, is_made: bool) -> None:
    asked: list[AgentStatus] = []

    def with_use(status: AgentStatus) -> AgentStatus:
        asked.append(status)
        return structs.replace(status, usage=REPORT)

    off = structs.replace(WORKED, usage=None)
    found = answer(lambda: off, Audience.ADMIN, target, with_use)
    assert asked == [off] * is_made
    assert any(it in found.body for it in (b"xpu_usage_up", b"8589934592")) is is_made


# The history


def test_without_a_word_of_history_there_is_none() -> None:
    status = structs.replace(WORKED, usage_history=Minutes(KEY))

    assert ask("/inspect/usage", status=status)[1]["history"] is None


@pytest.mark.parametrize("query", ["history=1", "history=a/infer-0/main", "x=1&history=a%2Finfer-0%2Fmain"])
def test_the_minutes_of_a_container_are_shown_as_they_are(query: str) -> None:
    (history,) = read(structs.replace(WORKED, usage_history=Minutes(KEY)), query).history or ()

    assert (history.namespace, history.pod, history.container, history.uuid) == KEY
    assert history.minutes == ((33333, 1 << 30, 0.25), (33334, None, None))


def test_all_histories_are_for_the_admin_socket_alone() -> None:
    minutes = Minutes(KEY)
    found = structs.replace(WORKED, usage_history=minutes)

    status, text = ask("/inspect/usage?history=1", Audience.LOCAL, found)
    assert (status, minutes.asked) == (403, [])
    assert text == "history=1 is served on the admin socket only; here: NAMESPACE/POD/CONTAINER\n"
    assert ask("/inspect/usage?history=a/infer-0/main", Audience.LOCAL, found)[0] == 200
    assert minutes.asked == [KEY]


def test_only_the_named_container_has_its_minutes() -> None:
    minutes = Minutes(KEY, ("b", "nb-3", "nb", "GPU-a"), ("a", "infer-0", "main", "GPU-b"))
    status = structs.replace(WORKED, usage_history=minutes)

    history = read(status, "history=a/infer-0/main").history or ()
    assert [it.uuid for it in history] == ["GPU-a", "GPU-b"]
    assert len(minutes.asked) == 2
    assert read(status, "history=a/other/main").history == ()


def test_a_history_that_names_no_container_is_refused() -> None:
    status, text = ask("/inspect/usage?history=infer-0")

    assert (status, text) == (400, "history: 'infer-0' is neither 1 nor NAMESPACE/POD/CONTAINER\n")


def test_an_answer_has_only_so_many_histories_and_counts_the_others() -> None:
    minutes = Minutes(*(("a", f"pod-{number}", "main", "GPU-a") for number in range(100)))
    document = read(structs.replace(WORKED, usage_history=minutes), "history=1")

    assert (len(document.history or ()), document.histories_left_out) == (64, 36)
    assert len(minutes.asked) == 64


def test_a_node_that_keeps_no_history_shows_none() -> None:
    assert read(WORKED, "history=1").history == ()


@pytest.mark.parametrize(
    ("target", "read_as"),
    [
        ("/inspect/usage", "/inspect/usage"),
        ("/inspect/usage?x=1", "/inspect/usage"),
        ("/inspect/usage?history=", "/inspect/usage"),
        ("/inspect/usage?history=1&x=2", "/inspect/usage?history=1"),
        ("/inspect/usage?history=a%2Fb/c", "/inspect/usage?history=a/b/c"),
        ("/inspect/usage?history=%26x%3D1", "/inspect/usage?history=%26x%3D1"),
        ("/inspect?history=1", "/inspect"),
    ],
)
def test_a_kept_answer_is_one_of_the_same_history(target: str, read_as: str) -> None:
    assert canonical(target) == read_as
    assert canonical(read_as) == read_as


def test_kept_answers_of_two_histories_are_not_mixed_up() -> None:
    status = structs.replace(WORKED, usage_history=Minutes(KEY))
    recent = AnswerCache(lambda target: answer(lambda: status, Audience.LOCAL, target), time.monotonic)

    found = [
        json.loads(recent(canonical(f"/inspect/usage{query}")).body)["history"]
        for query in ("", "?history=a/infer-0/main", "?history=b/nb-3/nb", "?y=1")
    ]
    assert [it if it is None else len(it) for it in found] == [None, 1, 0, None]


# inspect


def test_inspect_shows_use_beside_what_was_granted() -> None:
    document = document_of(WORKED)
    (use,) = document["allocations"][0]["use"]
    assert (use["uuid"], use["memoryBytes"], use["memoryLimitBytes"]) == ("GPU-a", 12884901888, 21474836480)

    text = as_text(document, now=NOW)
    assert "12.0 GiB / 20.0 GiB, 41% of 25%" in text
    assert "8.0 GiB, 0%, idle 60m" in text
    later = document_of(with_report(now=NOW + 120))
    assert "8.0 GiB, 0%, idle 62m, 2m ago" in as_text(later, now=NOW)


def test_no_memory_in_use_is_said_as_top_says_it() -> None:
    report = with_report(containers=(structs.replace(INFER, memory=0),))

    assert "0 MiB / 20.0 GiB, 41% of 25%" in as_text(document_of(report), now=NOW)


def test_inspect_has_no_column_of_use_where_use_is_not_sampled() -> None:
    off = structs.replace(WORKED, usage=None)
    heading = next(line for line in as_text(document_of(off), now=NOW).splitlines() if "container" in line)

    assert heading.split() == ["resource", "devices", "pod", "container", "state", "since", "allocation"]
    assert document_of(off)["allocations"][0]["use"] == []


def test_inspect_shows_the_use_of_the_allocations_own_resource() -> None:
    other = allocated("infer-0", "a", "main", resource="nvidia.com/gpu")
    status = structs.replace(WORKED, allocations=(other, *WORKED.allocations))

    uses = {it["resource"]: len(it["use"]) for it in document_of(status)["allocations"]}
    assert uses == {"nvidia.com/gpu": 0, SHARED: 1}
