"""The same scenarios with the simulated kubelet and with the real device manager: both must tell the same."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError
from peers.faults import second_stream
from peers.real import RealKubelet, built_peers
from support.waiting import eventually

from agent.kubelet.pb.deviceplugin import v1beta1 as pb
from agent.kubelet.pb.podresources.v1 import ListPodResourcesRequest, ListPodResourcesResponse
from agent.testing.kubelet import SimKubelet
from agent.testing.node_kubelet import Admission, Capacity, Container, NodeKubelet, Pod
from agent.testing.simkubelet.checkpoint_bytes import decode, encode

from .conftest import pod
from .plugin import TOY, ToyPlugin, device, devices, refusal

Told = list[Any]
Scenario = Callable[[NodeKubelet], Awaitable[Told]]
OTHER = "other.com/toy"
NODES = 4
WANTS_BOTH = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


@pytest.fixture(params=[path.name for path in built_peers()] or ["peer"])
def binary(request: pytest.FixtureRequest) -> Path:
    found = [path for path in built_peers() if path.name == request.param]
    if not found:
        pytest.skip("no kubelet peer is built: run `make peers`")
    return found[0]


@asynccontextmanager
async def both(binary: Path, policy: Any) -> AsyncIterator[tuple[NodeKubelet, NodeKubelet]]:
    async with AsyncExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-"))) for _ in range(2)]
        mode = binary.name.removeprefix("peer-")
        simulated = SimKubelet(homes[0], mode=mode, numa_nodes=NODES, policy=policy)
        real = RealKubelet(binary, homes[1], numa=NODES, policy=policy)
        yield await stack.enter_async_context(simulated), await stack.enter_async_context(real)


async def offers(kubelet: NodeKubelet, expected: Mapping[str, tuple[int, int]]) -> None:
    wanted = {resource: Capacity(*counts) for resource, counts in expected.items()}

    async def counts() -> bool:
        return await kubelet.capacity() == wanted

    await eventually(counts)  # a real kubelet tells nobody when its capacity changes


@asynccontextmanager
async def toy(kubelet: NodeKubelet, ids: str = "abc", **settings: Any) -> AsyncIterator[ToyPlugin]:
    async with ToyPlugin(kubelet.plugin_dir, **settings) as plugin:
        plugin.publish(devices(ids))
        await plugin.register()
        await offers(kubelet, {plugin.resource: (len(ids), len(ids))})
        yield plugin


async def words(attempt: Awaitable[Any]) -> str:
    try:
        await attempt
    except GRPCError as exc:
        return f"{exc.status} {exc.message}"
    return "ok"


def shapes(calls: list[tuple[str, Any]]) -> Told:
    """What can be compared of calls: the device IDs themselves are chosen at random."""
    told: Told = []
    for name, request in calls:
        if name == "Allocate":
            told.append((name, [len(one.devices_ids) for one in request.container_requests]))
        elif name == "GetPreferredAllocation":
            (one,) = request.container_requests
            available, must = one.available_deviceIDs, one.must_include_deviceIDs
            told.append((name, len(available), len(must), one.allocation_size))
        else:
            told.append(name)
    return told


async def registrations(kubelet: NodeKubelet) -> Told:
    async with ToyPlugin(kubelet.plugin_dir) as plugin:
        names = ["gpu", "a.kubernetes.io/x", "V.com/x", "v.com/a/b", "", "requests.v.com/x", 'v.com/x"y']
        told = [await words(plugin.register(version="v1"))]
        told += [await words(plugin.register(resource=name)) for name in names]
        told += [await words(plugin.register(resource=f"v.com/{'x' * size}")) for size in (63, 64)]
        plugin.fail["GetDevicePluginOptions"] = refusal("not now")
        return [*told, await words(plugin.register())]


async def admissions(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet, options=WANTS_BOTH) as plugin:
        plugin.publish([*devices("abde"), device("b", "healthy"), device("c", "Unhealthy")])
        await offers(kubelet, {TOY: (6, 4)})
        one = pod(2, 2, init=3)
        told: Told = [await kubelet.admit(one), await kubelet.admit(pod(1))]
        held = await kubelet.devices(one.uid)
        told += [{name: len(ids[TOY]) for name, ids in held.items()}, held["c0"][TOY] < held["init"][TOY]]
        await kubelet.run_options(one.uid, "c0")
        return told + shapes(plugin.calls)


async def refusals(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet, options=WANTS_BOTH) as plugin:
        told: Told = []
        for call in ("Allocate", "GetPreferredAllocation"):
            for error in (refusal("no such device"), ValueError("no text")):
                plugin.fail = {call: error}
                told.append(await kubelet.admit(pod(1)))
        plugin.fail = {}
        plugin.answer = lambda ids: pb.AllocateResponse()
        told.append(await kubelet.admit(pod(2)))
        plugin.answer = None
        told.append(await kubelet.admit(pod(2)))
        return told


async def preferences(kubelet: NodeKubelet) -> Told:
    told: Told = []
    async with toy(kubelet, "abcd", options=WANTS_BOTH) as plugin:
        for size, liked in ((2, ["c", "zz", "d"]), (4, ["a"]), (1, []), (3, ["a", "b", "d"])):
            plugin.prefer = lambda request, liked=liked: liked
            one = pod(size)
            told.append(await kubelet.admit(one))
            ids = (await kubelet.devices(one.uid))["c0"][TOY]
            told.append(sorted(ids) if len(liked) >= size else len(ids))
            await kubelet.delete(one.uid)
        return told + shapes(plugin.calls)


async def stream_ends(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet) as plugin:
        one = pod(1)
        await kubelet.admit(one)
        plugin.end_streams()
        await offers(kubelet, {TOY: (3, 0)})
        told: Told = [await kubelet.admit(pod(1)), list((await kubelet.health(one.uid)).values())]
        told += [sorted((await kubelet.run_options(one.uid, "c0")).env), await kubelet.admit(one)]
        return told


async def health(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet) as plugin:
        one = pod(3)
        await kubelet.admit(one)
        plugin.publish([device("a", "Unhealthy"), device("b", "broken"), device("c")])
        await offers(kubelet, {TOY: (3, 1)})
        told: Told = [await kubelet.health(one.uid)]
        plugin.publish(devices("c"))
        await offers(kubelet, {TOY: (1, 1)})
        return [*told, await kubelet.health(one.uid), await kubelet.admit(one)]


async def second_plugins(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet) as old, toy(kubelet, "abcd") as new:
        old.publish(devices("ab"))
        await offers(kubelet, {TOY: (2, 2)})
        told: Told = [await kubelet.admit(pod(1)), len(old.of("Allocate")), len(new.of("Allocate"))]
        old.end_streams()
        await offers(kubelet, {TOY: (2, 0)})
        with anyio.fail_after(30):
            await new.cancelled.wait()
        return told


async def restarts(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet, "abcdef") as plugin:
        one, other = pod(1), pod(1, sidecar=1)
        told: Told = [await kubelet.admit(one), await kubelet.admit(other)]
        held = await kubelet.devices(other.uid)
        await kubelet.restart()
        told += [await kubelet.capacity(), plugin.socket.exists(), await kubelet.devices(other.uid) == held]
        told.append(await kubelet.admit(pod(1)))
        await plugin.serve()
        await plugin.register()
        await offers(kubelet, {TOY: (6, 6)})
        return [*told, await kubelet.admit(pod(4)), await kubelet.admit(pod(3))]


async def checkpoints(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet) as plugin:
        listed = [device("a", "Healthy", 0), device("b", "Healthy", 0, 1), device("c"), device("d", "?")]
        plugin.publish(listed)
        await offers(kubelet, {TOY: (4, 3)})
        await kubelet.admit(Pod("one", (Container({TOY: 1}, name="<&>"),)))
        file = kubelet.plugin_dir / "kubelet_internal_checkpoint"
        raw = file.read_bytes()
        (held,) = decode(raw).holdings
        return [encode(decode(raw)) == raw, held.container, oct(file.stat().st_mode)]


async def frees(kubelet: NodeKubelet) -> Told:
    """What the file and List say of a pod that is gone: the plugin's list is sent again and again."""
    async with toy(kubelet) as plugin:
        one, other = pod(1, name="one"), pod(1, name="other")
        for admitted in (one, other):
            await kubelet.admit(admitted)
        await kubelet.delete(one.uid)
        told: Told = [await after_a_list(kubelet, plugin, one, other), await listed(kubelet)]
        told += [entries(kubelet, one, other), await after_a_list(kubelet, plugin, one, other)]
        await kubelet.finish(other.uid)
        told += [await listed(kubelet), await after_a_list(kubelet, plugin, one, other)]
        return [*told, await kubelet.capacity(), shapes(plugin.calls)]


async def without_the_api(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet, "abcde") as plugin:
        static = Pod("static", (Container({TOY: 1}),), static=True)
        stays, goes = pod(1, name="stays"), pod(1, name="goes")
        for admitted in (static, stays, goes):
            await kubelet.admit(admitted)
        held = await kubelet.devices(stays.uid)
        told: Told = []
        for _ in range(2):
            await kubelet.restart(readmit=True, api_away=True)
            await again(kubelet, plugin)
            told += [await listed(kubelet), await after_a_list(kubelet, plugin, static, stays, goes)]
        wants = Pod("late", (Container({TOY: 3}),), static=True)
        told.append(await kubelet.admit(wants))
        with pytest.raises(Exception, match="the API server is away: only static pods come to the kubelet"):
            await kubelet.admit(pod(1))
        with pytest.raises(Exception, match="no pod with uid"):
            await kubelet.devices(stays.uid)
        await kubelet.delete(goes.uid)
        told += [await listed(kubelet), await after_a_list(kubelet, plugin, static, stays, goes)]
        await kubelet.api_back(readmit=True)
        told += [entries(kubelet, static, stays, goes), await listed(kubelet)]
        told += [await after_a_list(kubelet, plugin, static, stays, goes)]
        told += [await kubelet.devices(stays.uid) == held, await kubelet.admit(pod(1))]
        return [*told, shapes(plugin.calls)]


async def apis_that_come_back(kubelet: NodeKubelet) -> Told:
    """Before the plugin is there again, or with the next life."""
    async with toy(kubelet) as plugin:
        runs, done = pod(1, name="runs"), pod(1, init=1, name="done")
        told: Told = [await kubelet.admit(runs), await kubelet.admit(done)]
        for readmit in (False, True):
            await kubelet.restart(readmit=readmit, api_away=True)
            told.append(await listed(kubelet))
            await kubelet.api_back(readmit=readmit)
            told += [[kubelet.refused.get(it.uid) for it in (runs, done)], await listed(kubelet)]
        await kubelet.restart(api_away=True)
        await kubelet.restart()
        await again(kubelet, plugin)
        return [*told, await listed(kubelet), await kubelet.admit(pod(1)), await kubelet.admit(pod(2))]


async def spoilt_checkpoints(kubelet: NodeKubelet) -> Told:
    """A kubelet that lost its file gives out again what pods run on."""
    told: Told = []
    async with toy(kubelet, options=pb.DevicePluginOptions(pre_start_required=True)) as plugin:
        for end in (0, 1, -9):
            one, other = pod(1), pod(3)
            told.append(await kubelet.admit(one))
            await kubelet.kill()
            spoilt = kubelet.checkpoint.read_bytes()[:end]
            kubelet.checkpoint.write_bytes(spoilt)
            await kubelet.start(readmit=True)
            told += [
                await kubelet.capacity(),
                await listed(kubelet),
                kubelet.checkpoint.read_bytes() == spoilt,
            ]
            await again(kubelet, plugin)
            told += [entries(kubelet, one), await listed(kubelet), await no_start(kubelet, one)]
            told += [await kubelet.admit(other), entries(kubelet, one, other)]
            for gone in (one, other):
                await kubelet.delete(gone.uid)
        return [*told, shapes(plugin.calls)]


async def no_start(kubelet: NodeKubelet, one: Pod) -> str:
    with pytest.raises(Exception, match="no devices found allocated in local cache") as refused:
        await kubelet.run_options(one.uid, "c0")
    return str(refused.value).replace(one.uid, "UID")


async def older_checkpoints(kubelet: NodeKubelet) -> Told:
    """Without PreStartContainer a container whose entry is lost gets any free device when it starts."""
    async with toy(kubelet) as plugin:
        known, lost = pod(1, name="known"), pod(1, name="lost")
        await kubelet.admit(known)
        older = kubelet.checkpoint.read_bytes()
        await kubelet.admit(lost)
        await kubelet.kill()
        kubelet.checkpoint.write_bytes(older)
        await kubelet.start(readmit=True)
        await again(kubelet, plugin)
        told: Told = [await listed(kubelet), entries(kubelet, known, lost)]
        for started in (known, lost):
            await kubelet.run_options(started.uid, "c0")
        return [*told, await listed(kubelet), entries(kubelet, known, lost), shapes(plugin.calls)]


async def ends_in_flight(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet) as plugin:
        plugin.holds["Allocate"] = asyncio.Event()
        one, equal = pod(1, name="one"), pod(1, name="equal")
        admissions = [asyncio.create_task(kubelet.admit(one))]
        await plugin.was_called("Allocate")
        admissions.append(asyncio.create_task(kubelet.admit(equal)))
        deletion = asyncio.create_task(kubelet.delete(one.uid))
        told: Told = [await listed(kubelet), await after_a_list(kubelet, plugin, one, equal)]
        told += [deletion.done(), len(plugin.of("Allocate"))]
        plugin.holds["Allocate"].set()
        told += [await task for task in admissions]
        await deletion
        told += [await listed(kubelet), await after_a_list(kubelet, plugin, one, equal)]
        return told


async def equal_starts(kubelet: NodeKubelet) -> Told:
    """An init container and the one after it start with the same devices, however often."""
    async with toy(kubelet, options=WANTS_BOTH) as plugin:
        one = pod(2, init=2)
        await kubelet.admit(one)
        starts = [kubelet.run_options(one.uid, name) for name in ("init", "c0", "c0")]
        told: Told = [sorted(options.env) for options in await asyncio.gather(*starts)]
        return [*told, len({frozenset(it.devices_ids) for it in plugin.of("PreStartContainer")})]


async def new_directories(kubelet: NodeKubelet) -> Told:
    async with toy(kubelet) as plugin:
        one = pod(1, name="one")
        await kubelet.admit(one)
        await kubelet.recreate_directory()
        told: Told = [await kubelet.capacity(), await listed(kubelet), kubelet.checkpoint.exists()]
        await again(kubelet, plugin)
        return [*told, entries(kubelet, one)]


async def sockets_removed(kubelet: NodeKubelet) -> Told:
    """The kubelet does not notice: who has a stream keeps it, nobody else gets in."""
    async with toy(kubelet) as plugin:
        (kubelet.plugin_dir / "kubelet.sock").unlink()
        told: Told = [await kubelet.admit(pod(1)), (await after_a_list(kubelet, plugin))]
        with pytest.raises(FileNotFoundError):
            await plugin.register()
        await kubelet.restart()
        await again(kubelet, plugin)
        return [*told, await kubelet.capacity()]


async def second_streams(kubelet: NodeKubelet) -> Told:
    """Opened by anybody, beside the kubelet's own: it ends alone."""
    async with toy(kubelet) as plugin:
        async with second_stream(plugin.socket) as lists:
            told: Told = [await anext(lists)]
        plugin.publish(devices("ab"))
        await offers(kubelet, {TOY: (2, 2)})
        return [*told, plugin.of("ListAndWatch")]


async def again(kubelet: NodeKubelet, plugin: ToyPlugin) -> None:
    """Register on a new socket, as a plugin must with every life of the kubelet."""
    before = written(kubelet)
    await plugin.serve()
    await plugin.register()
    await offers(kubelet, {plugin.resource: (len(plugin.list),) * 2})
    await rewritten(kubelet, before)


async def after_a_list(kubelet: NodeKubelet, plugin: ToyPlugin, *pods: Pod) -> Told:
    """Let the plugin send the same list again; the entries in the file that this makes the kubelet write."""
    before = written(kubelet)
    plugin.publish(plugin.list)
    await rewritten(kubelet, before)
    return entries(kubelet, *pods)


async def rewritten(kubelet: NodeKubelet, before: tuple[int, int]) -> None:
    # A real kubelet tells nobody when it has written.
    await eventually(lambda: written(kubelet) != before)


def written(kubelet: NodeKubelet) -> tuple[int, int]:
    """Which of the kubelet's files it is: each takes the place of the one before."""
    if not kubelet.checkpoint.exists():
        return 0, 0
    found = kubelet.checkpoint.stat()
    return found.st_ino, found.st_mtime_ns


def entries(kubelet: NodeKubelet, *pods: Pod) -> Told:
    """The pods in the kubelet's file; the order there is that of a Go map."""
    names = {it.uid: it.name for it in pods}
    held = decode(kubelet.checkpoint.read_bytes()).holdings
    return sorted((names[it.pod], it.container, len(it.ids)) for it in held if it.pod in names)


async def listed(kubelet: NodeKubelet) -> Mapping[str, list[int]]:
    """How many devices PodResources lists for each container of each pod."""
    async with Channel(path=str(kubelet.pod_resources_socket)) as channel:
        answer = await UnaryUnaryMethod[ListPodResourcesRequest, ListPodResourcesResponse](
            channel, "/v1.PodResourcesLister/List", ListPodResourcesRequest, ListPodResourcesResponse
        )(ListPodResourcesRequest())
    return {it.name: [len(one.devices) for one in it.containers] for it in answer.pod_resources}


SCENARIOS: list[Scenario] = [
    registrations,
    admissions,
    refusals,
    preferences,
    stream_ends,
    health,
    second_plugins,
    restarts,
    checkpoints,
    frees,
    without_the_api,
    apis_that_come_back,
    spoilt_checkpoints,
    older_checkpoints,
    ends_in_flight,
    equal_starts,
    new_directories,
    sockets_removed,
    second_streams,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_both_tell_the_same_of(scenario: Scenario, binary: Path) -> None:
    async with both(binary, "none") as (simulated, real):
        assert await scenario(simulated) == await scenario(real)


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
async def test_both_judge_any_topology_alike_under(policy: str, binary: Path) -> None:
    async with both(binary, policy) as (simulated, real):
        assert await verdicts(simulated) == await verdicts(real)


async def verdicts(kubelet: NodeKubelet, rounds: int = 20) -> list[Admission]:
    """Of one pod after another, each on devices of its own."""
    rng, told = random.Random(1), []
    async with ToyPlugin(kubelet.plugin_dir) as one, ToyPlugin(kubelet.plugin_dir, resource=OTHER) as other:
        await one.register()
        await other.register()
        for turn in range(rounds):
            await one_after(kubelet, [one, other], turn, rng)
            limits = {name: rng.randrange(1, 4) for name in rng.choice(((TOY,), (TOY, OTHER)))}
            wanted = Pod("pod", (Container(limits),))
            verdict = await kubelet.admit(wanted)
            # Which of two short resources is named is up to a Go map.
            told.append(Admission(verdict.admitted, verdict.reason))
            await kubelet.delete(wanted.uid)
    return told


async def one_after(kubelet: NodeKubelet, plugins: list[ToyPlugin], turn: int, rng: random.Random) -> None:
    """Publish lists of new lengths, so that the capacity tells when they have been taken in."""
    for plugin in plugins:
        spread = (0, 1, 1, 2, 3) if plugin is plugins[0] else (1, 1, 2)
        size = 2 * rng.randrange(1, 4) - turn % 2
        nodes = [rng.sample(range(NODES), rng.choice(spread)) for _ in range(size)]
        plugin.publish([device(f"{turn}-{at}", "Healthy", *where) for at, where in enumerate(nodes)])
    await offers(kubelet, {plugin.resource: (len(plugin.list),) * 2 for plugin in plugins})
