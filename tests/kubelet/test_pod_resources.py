"""The client of PodResources: polite, and clear about what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import anyio
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st

from agent.kubelet import pod_resources
from agent.kubelet.kubelet_errors import KubeletError
from agent.kubelet.pb.podresources import v1 as pb
from agent.kubelet.pod_resources import ALLOCATABLE, GET, LIST, PodResources
from agent.kubelet.protobuf import Malformed
from agent.kubelet.rpc import MAX_ANSWER, ByteStream, SocketServer, streaming, unary

from .fakes import listening
from .test_decoding import pods_message


@asynccontextmanager
async def kubelet(path: Path, answer: Callable[[bytes], Awaitable[bytes]]) -> AsyncIterator[Path]:
    server = SocketServer({method: unary(answer) for method in (LIST, GET, ALLOCATABLE)})
    async with listening(path / "kubelet.sock", server):
        yield path / "kubelet.sock"


def pod_entry(name: str, ids: Iterable[str]) -> bytes:
    """The entry of a pod with one container, as a message of this pod alone."""
    devices = [pb.ContainerDevices(resource_name="example.com/gpu", device_ids=[*ids])]
    containers = [pb.ContainerResources(name="main", devices=devices)]
    pod = pb.PodResources(name=name, namespace="n", containers=containers)
    return pb.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()


async def test_the_pods_of_the_node_are_listed(plugins_dir: Path) -> None:
    async def answer(request: bytes) -> bytes:
        assert request == b""
        return pods_message()

    async with kubelet(plugins_dir, answer) as path:
        found = await PodResources(path).in_use()

        assert found[("ml", "train")]["main"]["example.com/gpu"] == {"a", "b"}


async def test_only_pods_with_the_ids_in_question_are_decoded(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: bytes) -> bytes:
        return pods_message()

    async with kubelet(plugins_dir, answer) as path:
        client = PodResources(path, min_interval=0.0)

        assert list(await client.in_use(["b"])) == [("ml", "train")]
        monkeypatch.setattr(pod_resources, "decoded", pytest.fail)
        assert await client.in_use(["b::1"]) == {}


async def test_of_an_answer_only_new_entries_are_decoded(plugins_dir: Path) -> None:
    held = {"one": ["a"], "two": ["b"], "three": ["c"]}
    asked = iter([["one", "two"], ["two", "three"], ["one", "two"]])

    async def answer(request: bytes) -> bytes:
        return b"".join(pod_entry(it, held[it]) for it in next(asked))

    async with kubelet(plugins_dir, answer) as path:
        client = PodResources(path, min_interval=0.0)
        first, second, third = [await client.in_use() for _ in range(3)]

    assert [sorted(name for _, name in it) for it in (second, third)] == [["three", "two"], ["one", "two"]]
    assert first["n", "two"] is second["n", "two"] is third["n", "two"]
    assert first["n", "one"] is not third["n", "one"]  # nothing of the answers before is kept


@given(st.lists(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["", "a", "b", "ab"])))))
def test_an_answer_says_the_same_whatever_came_before_it(answers: list[list[tuple[str, str]]]) -> None:
    listed = pod_resources.ListedPods()
    for entries in answers:
        data = b"".join(pod_entry(name, ids) for name, ids in entries)
        listed = listed.next(data)
        assert listed.pods == pod_resources.pods_in_use(data)


@pytest.mark.parametrize("bound", ["MAX_FIELDS", "MAX_NAMES"])
def test_entries_that_are_known_count_like_new_ones(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [pod_entry(f"pod-{number}", ["a"]) for number in range(10)]
    known = pod_resources.ListedPods().next(b"".join(entries))
    monkeypatch.setattr(pod_resources, bound, 15)

    with pytest.raises(Malformed):
        known.next(b"".join(entries))


def test_of_a_long_answer_no_entry_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pod_entry("one", ["a"])
    monkeypatch.setattr(pod_resources, "KEPT_BYTES", len(data) - 1)

    assert pod_resources.ListedPods().next(data).entries == {}


async def test_what_was_listed_can_not_be_changed(plugins_dir: Path) -> None:
    async def answer(request: bytes) -> bytes:
        return pods_message()

    async with kubelet(plugins_dir, answer) as path:
        found = await PodResources(path).in_use()
        with pytest.raises(TypeError):
            found[("x", "y")] = {}  # type: ignore[index]


async def test_many_who_ask_at_once_are_served_one_by_one(plugins_dir: Path) -> None:
    # mistake 15: the kubelet allows bursts of 10 to all callers of the node together
    running, most = 0, 0

    async def answer(request: bytes) -> bytes:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        running -= 1
        return b""

    async with kubelet(plugins_dir, answer) as path:
        client = PodResources(path, min_interval=0.001)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(client.in_use)
        assert most == 1


async def test_a_second_question_waits_for_its_time(plugins_dir: Path) -> None:
    # mistake 15
    async def answer(request: bytes) -> bytes:
        return b""

    async with kubelet(plugins_dir, answer) as path:
        client = PodResources(path, min_interval=3600.0)
        await client.in_use()
        with anyio.move_on_after(0.05) as scope:
            await client.in_use()

        assert scope.cancelled_caught


async def test_a_caller_can_wait_for_its_time_without_a_call(plugins_dir: Path) -> None:
    async def answer(request: bytes) -> bytes:
        return b""

    async with kubelet(plugins_dir, answer) as path:
        client = PodResources(path, min_interval=3600.0)
        await client.until_free()
        await client.in_use()
        with anyio.move_on_after(0.05) as scope:
            await client.until_free()

        assert scope.cancelled_caught


async def test_a_kubelet_that_limits_the_rate_is_said_to(plugins_dir: Path) -> None:
    # mistake 15
    async def answer(request: bytes) -> bytes:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")

    async with kubelet(plugins_dir, answer) as path:
        with pytest.raises(KubeletError, match="called too often on this node: rejected by rate limit"):
            await PodResources(path).in_use()


@pytest.mark.parametrize("cut", [1, 5, 20])
async def test_half_an_answer_frees_nothing(plugins_dir: Path, cut: int) -> None:
    async def answer(request: bytes) -> bytes:
        return pods_message()[:-cut]

    async with kubelet(plugins_dir, answer) as path:
        with pytest.raises(KubeletError, match="undecodable ListPodResourcesResponse"):
            await PodResources(path).in_use()


async def test_a_kubelet_that_is_away_or_silent_is_an_error(plugins_dir: Path) -> None:
    async def answer(request: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    with pytest.raises(KubeletError, match="no process answers"):
        await PodResources(plugins_dir / "none").in_use()
    async with kubelet(plugins_dir, answer) as path:
        with pytest.raises(KubeletError, match="no answer"):
            await PodResources(path, timeout=0.05).in_use()


async def test_an_answer_that_is_longer_than_any_is_not_read(plugins_dir: Path) -> None:
    """Not a byte of it is waited for."""

    async def announce(stream: ByteStream) -> None:
        await stream.send_initial_metadata()
        await stream._stream.send_data(b"\0" + (100_000_000).to_bytes(4, "big"))
        await asyncio.Event().wait()

    server = SocketServer({LIST: streaming(announce), ALLOCATABLE: streaming(announce)})
    async with listening(plugins_dir / "kubelet.sock", server) as it:
        client = PodResources(plugins_dir / "kubelet.sock", min_interval=0.0)
        with pytest.raises(KubeletError, match=f"has 100000000 bytes; at most {MAX_ANSWER} are read"):
            await client.in_use()
        with pytest.raises(KubeletError, match="has 100000000 bytes"):
            await client.allocatable(["example.com/gpu"])
        await it.shutdown(0.0)


@pytest.mark.parametrize(("over", "read"), [(0, True), (1, False)])
async def test_an_answer_of_the_longest_length_is_read(
    plugins_dir: Path, monkeypatch: pytest.MonkeyPatch, over: int, read: bool
) -> None:
    async def answer(request: bytes) -> bytes:
        return pods_message()

    monkeypatch.setattr("agent.kubelet.rpc.MAX_ANSWER", len(pods_message()) - over)
    async with kubelet(plugins_dir, answer) as path:
        with nullcontext() if read else pytest.raises(KubeletError, match=r"at most .* are read"):
            assert len(await PodResources(path).in_use()) == 2


@pytest.mark.parametrize("numa", [None, 0, 1])
async def test_the_resources_are_told_of_which_the_kubelet_has_a_healthy_device(
    plugins_dir: Path, numa: int | None
) -> None:
    topology = None if numa is None else pb.TopologyInfo(nodes=[pb.NumaNode(id=numa)])
    device = pb.ContainerDevices(resource_name="example.com/gpu", device_ids=["a"], topology=topology)

    async def answer(request: bytes) -> bytes:
        return bytes(pb.AllocatableResourcesResponse(devices=[device], cpu_ids=[0, 1]))

    async with kubelet(plugins_dir, answer) as path:
        asked = ["example.com/gpu", "example.com/gp", "example.com/gpu.shared", "e.com/gpu"]

        assert await PodResources(path).allocatable(asked) == {"example.com/gpu"}


async def test_a_kubelet_that_does_not_know_the_call_is_an_error(plugins_dir: Path) -> None:
    async def answer(request: bytes) -> bytes:
        raise GRPCError(Status.UNIMPLEMENTED, "unknown method GetAllocatableResources")

    async with kubelet(plugins_dir, answer) as path:
        with pytest.raises(KubeletError, match="unknown method"):
            await PodResources(path).allocatable(["example.com/gpu"])


@asynccontextmanager
async def kubelet_with_get(path: Path, get: Callable[[], bytes], calls: list[str]) -> AsyncIterator[Path]:
    """A kubelet whose Get answers so, and that writes down which calls it was asked."""

    async def answer_get(request: bytes) -> bytes:
        asked = pb.GetPodResourcesRequest.parse(request)
        calls.append(f"get {asked.pod_namespace}/{asked.pod_name}")
        return get()

    async def answer_list(request: bytes) -> bytes:
        calls.append("list")
        return pod_entry("web", ["gpu-1"]) + pod_entry("job", ["gpu-2"])

    server = SocketServer({GET: unary(answer_get), LIST: unary(answer_list)})
    async with listening(path / "kubelet.sock", server):
        yield path / "kubelet.sock"


async def test_one_pod_is_asked_for_alone(plugins_dir: Path) -> None:
    calls: list[str] = []
    async with kubelet_with_get(plugins_dir, lambda: pod_entry("web", ["gpu-1"]), calls) as path:
        assert await PodResources(path).in_use(["gpu-1"], ("n", "web")) == {
            ("n", "web"): {"main": {"example.com/gpu": {"gpu-1"}}}
        }

    assert calls == ["get n/web"]


async def test_a_pod_that_the_kubelet_has_no_more_is_no_reason_to_list_all_pods(plugins_dir: Path) -> None:
    get = refused(Status.UNKNOWN, "pod web in namespace n not found")
    calls: list[str] = []
    async with kubelet_with_get(plugins_dir, get, calls) as path:
        assert await PodResources(path).in_use(["gpu-1"], ("n", "web")) == {}

    assert calls == ["get n/web"]


def refused(status: Status, text: str) -> Callable[[], bytes]:
    def get() -> bytes:
        raise GRPCError(status, text)

    return get


@pytest.mark.parametrize(
    "get",
    [
        pytest.param(refused(Status.UNKNOWN, "PodResources API Get method disabled"), id="off"),
        pytest.param(refused(Status.UNIMPLEMENTED, "unknown method Get"), id="not known"),
        pytest.param(lambda: b"", id="an answer without a pod"),
        pytest.param(lambda: pod_entry("job", ["gpu-2"]), id="an answer about another pod"),
        pytest.param(lambda: b"\xff", id="no answer"),
    ],
)
@pytest.mark.parametrize(
    ("again_after", "expected"),
    [(pod_resources.GET_AGAIN_AFTER, ["get n/web", "list", "list"]), (0.0, ["get n/web", "list"] * 2)],
)
async def test_a_kubelet_without_get_lists_and_is_tried_again_an_hour_later(
    plugins_dir: Path,
    get: Callable[[], bytes],
    again_after: float,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_resources, "GET_AGAIN_AFTER", again_after)
    calls: list[str] = []
    async with kubelet_with_get(plugins_dir, get, calls) as path:
        asked = PodResources(path, min_interval=0)
        for _ in range(2):
            assert [*await asked.in_use(["gpu-1"], ("n", "web"))] == [("n", "web")]

    assert calls == expected
