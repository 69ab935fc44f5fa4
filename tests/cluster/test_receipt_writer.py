"""What pods are to tell their schedulers is written once, to the pod that is meant, whatever may happen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from support.waiting import eventually

from agent.cluster.api_client import CallTimeouts, open_api
from agent.cluster.api_errors import ApiAway, ApiError, ApiRefused, Busy, Conflict, Forbidden, NotFound
from agent.cluster.api_protocol import Api, Object
from agent.cluster.credentials import find
from agent.cluster.pods import candidate
from agent.cluster.receipt_writer import DENIED, ReceiptWriter, patch, path
from agent.core.cell import Cell
from agent.core.publishing.receipt_rules import OwedReceipt
from agent.scheduler_api.scheduler import AnnotationFilter
from agent.testing.simapi import SimApiServer

from .fakes import FakeApi, Unasked

KEY = "acme.com/assigned"
DENIAL = Forbidden(403, "Forbidden", "cannot patch pods")
QUICK = (0.001, 0.004)


def owed(name: str, uid: str = "", /, **texts: str) -> OwedReceipt:
    return OwedReceipt(uid or f"uid-{name}", "default", name, texts or {KEY: "true"})


def pod(name: str, uid: str = "", **annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "default", "name": name, "uid": uid or f"uid-{name}", "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "i"}]},
    }


class Here:
    """A writer and what it is to write. Its pauses are some milliseconds, unless others are asked for."""

    def __init__(self, api: Api, **paces: Any) -> None:
        self.api = api
        self.owed: Cell[tuple[OwedReceipt, ...]] = Cell(())
        self.returns = Cell(0)
        given: dict[str, Any] = {"away": QUICK, "refused": QUICK, "again": QUICK, "every": 3600.0, **paces}
        self.writer = ReceiptWriter(api, self.owed, **given)

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.writer.run, self.returns)
            yield
            group.cancel_scope.cancel()


class Faked(Here):
    """At an API server of a few pods, without a wire."""

    def __init__(self, *names: str, **paces: Any) -> None:
        self.fake = FakeApi()
        super().__init__(self.fake, **paces)
        for name in names:
            self.fake.put_object(path(owed(name)), pod(name))

    def annotations(self, name: str) -> Mapping[str, str]:
        found: Mapping[str, str] = self.fake.objects[path(owed(name))]["metadata"]["annotations"]
        return found

    @property
    def tried(self) -> list[str]:
        return [at.rpartition("/")[2] for _, at in self.fake.calls]


@asynccontextmanager
async def served(
    tmp_path: Path, *, call: float = 30.0, **paces: Any
) -> AsyncIterator[tuple[SimApiServer, Here]]:
    """At the embedded API server, over the wire."""
    async with SimApiServer() as server:
        access = find(server.kubeconfig(tmp_path / "kubeconfig"), {})
        assert access is not None
        api = await open_api(access, CallTimeouts(call=call))
        try:
            yield server, Here(api, **paces)
        finally:
            await api.close()


def its(server: SimApiServer, name: str) -> dict[str, str]:
    found = server.find("Pod", name, "default")
    assert found is not None
    return {**found["metadata"].get("annotations", {})}


def test_a_patch_names_the_pod_and_changes_annotations_alone() -> None:
    assert patch(owed("web")) == {"metadata": {"uid": "uid-web", "annotations": {KEY: "true"}}}
    assert path(replace(owed("../x"), namespace="a/b")) == "/api/v1/namespaces/a%2Fb/pods/..%2Fx"


async def test_what_is_owed_is_written_and_leaves_the_rest_of_the_pod_as_it_is(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, here), here.runs():
        server.put_object(pod("web", **{"their.io/x": "1", KEY: "false"}))
        before = server.find("Pod", "web", "default")

        here.owed.set((owed("web"),))

        await eventually(lambda: here.writer.writes == 1)
        after = server.find("Pod", "web", "default")
        assert before is not None
        assert after is not None
        assert its(server, "web") == {"their.io/x": "1", KEY: "true"}
        assert (after["spec"], after["metadata"]["uid"]) == (before["spec"], "uid-web")


async def test_a_pod_that_was_made_anew_under_the_same_name_is_never_written_to(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, here), here.runs():
        server.put_object(pod("web", uid="uid-new"))
        server.put_object(pod("job"))

        here.owed.set((owed("web"), owed("job")))

        await eventually(lambda: its(server, "job") == {KEY: "true"})
        assert its(server, "web") == {}
        assert (here.writer.error, here.writer.delayed) == ("", "")


async def test_a_server_that_is_away_gets_it_all_once_it_is_back(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, here), here.runs():
        for name in ("one", "two"):
            server.put_object(pod(name))
        await server.go_away()
        here.owed.set((owed("one"), owed("two")))
        await eventually(lambda: here.writer.delayed)

        await server.come_back()

        await eventually(lambda: here.writer.writes == 2)
        assert [its(server, name) for name in ("one", "two")] == [{KEY: "true"}] * 2
        assert here.writer.delayed == ""


async def test_a_server_that_hangs_is_left_alone_and_written_to_once_it_answers(tmp_path: Path) -> None:
    async with served(tmp_path, call=0.2) as (server, here), here.runs():
        server.put_object(pod("web"))
        server.hang()
        here.owed.set((owed("web"),))
        await eventually(lambda: "no answer in time" in here.writer.delayed)

        server.hang(False)

        await eventually(lambda: its(server, "web") == {KEY: "true"})


async def test_the_end_of_an_outage_ends_the_pause(tmp_path: Path) -> None:
    async with served(tmp_path, away=(3600.0, 3600.0)) as (server, here), here.runs():
        server.put_object(pod("web"))
        await server.go_away()
        here.owed.set((owed("web"),))
        await eventually(lambda: here.writer.delayed)
        await server.come_back()

        here.returns.set(1)

        await eventually(lambda: here.writer.writes == 1)


async def test_a_missing_right_is_told_tried_seldom_and_taken_once_it_is_given(tmp_path: Path) -> None:
    async with served(tmp_path) as (server, here):
        server.put_object(pod("web"))
        server.forbid("patch", path(owed("web")))
        with capture_logs() as logs:
            async with here.runs():
                here.owed.set((owed("web"),))
                await eventually(lambda: "pods.receipts" in here.writer.error)
                server.permit("patch", path(owed("web")))

                await eventually(lambda: here.writer.error == "")

        assert its(server, "web") == {KEY: "true"}
        assert [it["event"] for it in logs if it["log_level"] == "error"] == ["receipts refused"]


async def test_an_outage_makes_no_pod_wait_longer_for_the_devices_of_its_next_container() -> None:
    here = Faked("web", away=(0.0, 0.0), again=(100.0, 1000.0), jitter=lambda: 1.0)
    here.fake.fails = [ApiAway("gone")] * 20
    here.owed.set((owed("web", KEY="one"),))
    while not here.writer.writes:
        await here.writer.once()

    here.owed.set((owed("web", KEY="one,two"),))

    assert await here.writer.once() <= 100.0


async def test_an_answer_that_was_lost_costs_one_patch_that_changes_nothing() -> None:
    here = Faked("web")
    lost = [True]
    real = here.fake.patch

    async def written_and_lost(at: str, body: Any, kind: Any = "merge") -> Object:
        made = await real(at, body, kind)
        if lost.pop() if lost else False:
            raise ApiAway("no answer in time")
        return made

    setattr(here.fake, "patch", written_and_lost)  # noqa: B010
    async with here.runs():
        here.owed.set((owed("web"),))

        await eventually(lambda: here.writer.writes == 1)

    assert (here.annotations("web"), here.tried) == ({KEY: "true"}, ["web", "web"])


async def test_a_server_that_never_answers_holds_up_only_its_own_task() -> None:
    hung = anyio.Event()

    class Hanging(Unasked):
        async def patch(self, at: str, body: Any, kind: Any = "merge") -> Object:
            hung.set()
            await anyio.sleep_forever()
            raise AssertionError

    here = Here(Hanging())
    async with here.runs():
        here.owed.set((owed("web"),))
        with anyio.fail_after(30):
            await hung.wait()
        here.owed.set((owed("web"), owed("job")))
        assert here.writer.owed == 2


async def test_while_nothing_changes_nothing_is_asked() -> None:
    here = Faked("web")
    here.owed.set((owed("web"),))

    assert await here.writer.once() > 1000
    for _ in range(3):
        await here.writer.once()

    assert here.tried == ["web"]  # the watch lags behind
    here.owed.set(())
    assert await here.writer.once() == float("inf")
    assert here.tried == ["web"]


async def test_what_the_watch_never_shows_is_written_again_only_after_a_while() -> None:
    here = Faked("web", every=0.0)
    here.owed.set((owed("web"),))

    await here.writer.once()
    await here.writer.once()

    assert here.tried == ["web", "web"]


async def test_another_container_s_devices_are_told_though_the_watch_lags() -> None:
    here = Faked("web")
    async with here.runs():
        here.owed.set((owed("web", KEY="one"),))
        await eventually(lambda: here.writer.writes == 1)

        here.owed.set((owed("web", KEY="one,two"),))

        await eventually(lambda: here.annotations("web") == {"KEY": "one,two"})


async def test_what_somebody_undoes_is_written_again_more_and_more_seldom() -> None:
    here = Faked("web", again=(1000.0, 8000.0), jitter=lambda: 1.0)
    here.owed.set((owed("web"),))
    await here.writer.once()
    here.owed.set(())
    await here.writer.once()
    here.owed.set((owed("web"),))
    pause = await here.writer.once()

    assert here.tried == ["web"]
    assert 900 < pause <= 1000


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        pytest.param(DENIAL, "pods.receipts", id="forbidden"),
        pytest.param(ApiRefused(422, "Invalid", "too long"), "too long", id="invalid"),
        pytest.param(NotFound(404, "NotFound", "gone"), "", id="gone"),
        pytest.param(ApiRefused(422, "Invalid", "metadata.uid: field is immutable"), "", id="another one"),
        pytest.param(
            Conflict(409, "Conflict", "UID in precondition: x"), "", id="another one, in other words"
        ),
        pytest.param(Conflict(409, "Conflict", "has been modified"), "modified", id="written by many"),
    ],
)
async def test_a_pod_that_is_refused_holds_up_no_other(refusal: ApiError, told: str) -> None:
    here = Faked("one", "two")
    here.fake.fails = [refusal]
    here.owed.set((owed("one"), owed("two")))

    await here.writer.once()

    assert here.annotations("two") == {KEY: "true"}
    assert told in here.writer.error
    assert bool(told) is bool(here.writer.error)


async def test_without_the_right_a_node_of_many_pods_asks_for_few_and_then_for_one_at_a_time() -> None:
    names = [f"pod-{n}" for n in range(50)]
    here = Faked(*names, refused=(1000.0, 2000.0), again=(0.0, 0.0), jitter=lambda: 1.0)
    here.fake.refuses = {"patch": DENIAL}
    here.owed.set(tuple(map(owed, names)))

    assert 900 < await here.writer.once() <= 1000
    assert len(here.tried) == DENIED
    here.owed.set((*map(owed, names), owed("new")))
    await here.writer.once()

    assert len(here.tried) == DENIED
    assert f"(and {DENIED - 1} pods more)" in here.writer.error
    here.returns.set(1)
    async with here.runs():
        await eventually(lambda: len(here.tried) > DENIED)
    assert len(here.tried) == DENIED + 1


async def test_who_was_refused_comes_after_who_was_not_tried_yet() -> None:
    here = Faked("bad", "good", away=(0.0, 0.0))
    here.fake.fails = [ApiAway("its webhook fails")]
    here.owed.set((owed("bad"), owed("good")))

    await here.writer.once()
    await here.writer.once()

    assert here.tried[:2] == ["bad", "good"]


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks() -> None:
    here = Faked("web")
    here.fake.fails = [Busy(429, "TooManyRequests", "later", 77.0)]
    here.owed.set((owed("web"),))

    assert await here.writer.once() == 77.0
    assert "later" in here.writer.delayed


async def test_a_refusal_of_a_pod_that_is_gone_is_told_no_more() -> None:
    here = Faked("web")
    here.fake.fails = [DENIAL]
    here.owed.set((owed("web"),))
    await here.writer.once()
    assert here.writer.error

    here.owed.set(())
    await here.writer.once()

    assert here.writer.error == ""


def test_what_was_written_is_what_is_read_of_the_pod_again() -> None:
    made = candidate(pod("web", **{KEY: "true"}), AnnotationFilter(("acme.com/assigned",)))

    assert made is not None
    assert made.annotations == {KEY: "true"}
