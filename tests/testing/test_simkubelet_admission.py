"""How pods get their devices: which calls a plugin sees, and what the kubelet says when it goes wrong."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from agent.kubelet.pb.deviceplugin import v1beta1 as pb
from agent.testing.kubelet import StartError
from agent.testing.node_kubelet import Admission, Container, Pod, RunOptions

from .conftest import Lab, offers, pod, until
from .plugin import TOY, device, devices, refusal

PREFERS = {"options": pb.DevicePluginOptions(get_preferred_allocation_available=True)}
PRE_STARTS = {"options": pb.DevicePluginOptions(pre_start_required=True)}


def unexpected(why: str) -> Admission:
    return Admission(False, "UnexpectedAdmissionError", f"Allocate failed due to {why}, which is unexpected")


def asked(requests: list[pb.AllocateRequest]) -> list[set[str]]:
    assert all(len(request.container_requests) == 1 for request in requests)
    return [set(request.container_requests[0].devices_ids) for request in requests]


async def test_each_container_has_an_allocate_of_its_own_without_a_deadline(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abcd")
    one = pod(1, 2)
    assert await kubelet.admit(one) == Admission(True)
    held = await kubelet.devices(one.uid)
    assert asked(plugin.of("Allocate")) == [held["c0"][TOY], held["c1"][TOY]]
    assert plugin.deadlines["Allocate"] is None


async def test_ids_come_in_no_order(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abcdefghij")
    await kubelet.admit(pod(10))
    ids = plugin.of("Allocate")[0].container_requests[0].devices_ids
    assert ids != sorted(ids)


async def test_an_init_containers_devices_serve_the_containers_after_it(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abcd", PREFERS)
    one = pod(2, 2, init=3)
    assert (await kubelet.admit(one)).admitted
    held = await kubelet.devices(one.uid)
    assert held["c0"][TOY] < held["init"][TOY]
    assert held["c0"][TOY] | held["c1"][TOY] == set("abcd")
    left = held["init"][TOY] - held["c0"][TOY]
    preferred = [request.container_requests[0] for request in plugin.of("GetPreferredAllocation")]
    assert [set(request.must_include_deviceIDs) for request in preferred] == [set(), left]
    assert preferred[1].allocation_size == 2


async def test_a_sidecar_keeps_its_devices(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    one = pod(1, init=2, sidecar=2)
    assert (await kubelet.admit(one)).admitted
    held = await kubelet.devices(one.uid)
    assert held["sidecar"][TOY] == held["init"][TOY]
    assert not held["c0"][TOY] & held["sidecar"][TOY]


async def test_too_many_devices_are_refused(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    text = f"requested number of devices unavailable for {TOY}. Requested: 4, Available: 3"
    assert await kubelet.admit(pod(4)) == unexpected(text)


async def test_a_plugins_refusal_is_shown_in_grpc_gos_words_and_frees_the_devices(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.fail["Allocate"] = refusal("no such device")
    text = "rpc error: code = InvalidArgument desc = no such device"
    assert await kubelet.admit(pod(3)) == unexpected(text)
    plugin.fail.clear()
    assert (await kubelet.admit(pod(3))).admitted


async def test_a_plain_exception_in_a_plugin_reaches_the_pod_without_its_text(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.fail["Allocate"] = ValueError("who cares")
    text = "rpc error: code = Unknown desc = Internal Server Error"
    assert await kubelet.admit(pod(1)) == unexpected(text)


@pytest.mark.parametrize(
    ("mode", "printed"),
    [("1.36", ""), ("1.33", "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}")],
)
async def test_an_answer_without_containers_leaks_the_devices(lab: Lab, mode: str, printed: str) -> None:
    kubelet, plugin = await lab.pair("abc", mode=mode)
    plugin.answer = lambda ids: pb.AllocateResponse()
    text = f"no containers return in allocation response {printed}"
    assert await kubelet.admit(pod(2)) == unexpected(text)
    plugin.answer = None
    assert "Requested: 2, Available: 1" in (await kubelet.admit(pod(2))).message
    plugin.fail["Allocate"] = refusal("no")
    await kubelet.admit(pod(1))
    plugin.fail.clear()
    assert (await kubelet.admit(pod(3))).admitted, "the next failure settles the books"


async def test_a_deleted_pods_devices_are_free_for_the_next(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    first, second = pod(3), pod(3)
    assert (await kubelet.admit(first)).admitted
    assert not (await kubelet.admit(second)).admitted
    await kubelet.delete(first.uid)
    assert (await kubelet.admit(second)).admitted


async def test_nothing_is_freed_while_the_sources_are_not_ready(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    first, second = pod(3), pod(3)
    await kubelet.admit(first)
    await kubelet.delete(first.uid)
    kubelet.sources_ready = False
    assert not (await kubelet.admit(second)).admitted
    kubelet.sources_ready = True
    assert (await kubelet.admit(second)).admitted


async def test_a_pod_is_not_taken_back_when_its_device_is_unhealthy(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab")
    one = pod(1)
    await kubelet.admit(one)
    (held,) = (await kubelet.devices(one.uid))["c0"][TOY]
    plugin.publish([device(id, "Unhealthy" if id == held else "Healthy") for id in "ab"])
    await offers(kubelet, 2, 1)
    text = f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {TOY}"
    assert await kubelet.admit(one) == unexpected(text)


async def test_a_pod_that_is_here_keeps_its_devices_without_a_call(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab")
    one = pod(1)
    await kubelet.admit(one)
    held = await kubelet.devices(one.uid)
    assert (await kubelet.admit(one)).admitted
    assert await kubelet.devices(one.uid) == held
    assert len(plugin.of("Allocate")) == 1


async def test_a_changed_request_is_refused(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abc")
    one = pod(1)
    await kubelet.admit(one)
    text = f'pod "{one.uid}" container "c0" changed request for resource "{TOY}" from 1 to 2'
    grown = Pod("pod", (Container({TOY: 2}, name="c0"),), uid=one.uid)
    assert await kubelet.admit(grown) == unexpected(text)


async def test_a_restart_takes_running_pods_back_and_refuses_those_with_init_devices(lab: Lab) -> None:
    kubelet, _ = await lab.pair("abcdef")
    plain, with_init, with_sidecar = pod(1), pod(1, init=1), pod(1, sidecar=1)
    for one in (plain, with_init, with_sidecar):
        assert (await kubelet.admit(one)).admitted
    await kubelet.restart(readmit=True)
    text = f"no healthy devices present; cannot allocate unhealthy devices {TOY}"
    assert kubelet.refused == {with_init.uid: unexpected(text)}


async def test_other_resources_are_none_of_the_device_managers_business(lab: Lab) -> None:
    kubelet, _ = await lab.pair("a")
    one = Pod("pod", (Container({"other.com/thing": 5, TOY: 0}),))
    assert await kubelet.admit(one) == Admission(True)
    assert await kubelet.run_options(one.uid, "main") == RunOptions({}, {})


async def test_a_hanging_allocate_blocks_every_later_pod(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    released = plugin.holds["Allocate"] = asyncio.Event()
    first = asyncio.create_task(kubelet.admit(pod(1)))
    second = asyncio.create_task(kubelet.admit(Pod("free", (Container({}),))))
    await plugin.was_called("Allocate")
    await anyio.wait_all_tasks_blocked()
    assert not second.done()
    released.set()
    with anyio.fail_after(30):
        assert (await first).admitted
        assert (await second).admitted


async def test_preferred_devices_are_taken_and_strange_ones_ignored(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abcd", PREFERS)
    plugin.prefer = lambda request: ["zz", "d", "c"]
    one = pod(2)
    await kubelet.admit(one)
    assert (await kubelet.devices(one.uid))["c0"][TOY] == set("cd")
    request = plugin.of("GetPreferredAllocation")[0].container_requests[0]
    assert set(request.available_deviceIDs) == set("abcd")
    assert (request.must_include_deviceIDs, request.allocation_size) == ([], 2)


async def test_a_preferred_answer_that_is_too_short_is_filled_up(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abcd", PREFERS)
    plugin.prefer = lambda request: ["d"]
    one = pod(3)
    await kubelet.admit(one)
    held = (await kubelet.devices(one.uid))["c0"][TOY]
    assert "d" in held
    assert len(held) == 3


async def test_a_preferred_answer_that_is_too_long_is_cut_anyhow(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abcd", PREFERS)
    plugin.prefer = lambda request: ["a", "b", "c"]
    one = pod(2)
    await kubelet.admit(one)
    assert (await kubelet.devices(one.uid))["c0"][TOY] < set("abc")


async def test_the_preference_is_asked_for_even_without_a_choice(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab", PREFERS)
    await kubelet.admit(pod(2))
    assert len(plugin.of("GetPreferredAllocation")) == 1


async def test_a_failing_preference_fails_the_pod(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab", PREFERS)
    plugin.fail["GetPreferredAllocation"] = refusal("no opinion")
    text = (
        "device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = InvalidArgument desc = no opinion"
    )
    assert await kubelet.admit(pod(1)) == unexpected(text)


async def test_a_container_that_starts_again_is_allocated_nothing_but_pre_started(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab", PRE_STARTS)
    one = pod(2)
    await kubelet.admit(one)
    for _ in range(2):
        await kubelet.run_options(one.uid, "c0")
    assert len(plugin.of("Allocate")) == 1
    assert [set(request.devices_ids) for request in plugin.of("PreStartContainer")] == [set("ab")] * 2
    left = plugin.deadlines["PreStartContainer"]
    assert left is not None
    assert 20 < left <= 30


async def test_a_failing_pre_start_keeps_the_container_from_starting(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab", PRE_STARTS)
    one = pod(2)
    await kubelet.admit(one)
    plugin.fail["PreStartContainer"] = refusal("too cold")
    error = "rpc error: code = InvalidArgument desc = too cold"
    text = f"device plugin PreStartContainer rpc failed with err: {error}"
    with pytest.raises(StartError) as caught:
        await kubelet.run_options(one.uid, "c0")
    assert str(caught.value) == text


async def test_a_pre_start_that_takes_too_long_is_given_up(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab", PRE_STARTS, pre_start_timeout=0.05)
    one = pod(2)
    await kubelet.admit(one)
    plugin.holds["PreStartContainer"] = asyncio.Event()
    with pytest.raises(StartError, match="rpc failed with err: rpc error: code = DeadlineExceeded desc = "):
        await kubelet.run_options(one.uid, "c0")


async def test_a_pre_start_needs_its_plugin(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("ab", PRE_STARTS)
    one = pod(2)
    await kubelet.admit(one)
    plugin.end_streams()
    await offers(kubelet, 2, 0)
    with pytest.raises(StartError, match="has been stopped"):
        await kubelet.run_options(one.uid, "c0")


async def test_answers_for_several_resources_are_merged_and_the_first_wins(lab: Lab) -> None:
    other = "other.com/toy"
    kubelet, plugin = await lab.pair("ab")
    second = await lab.plugin(kubelet, resource=other)
    second.publish(devices("x"))
    await second.register()
    await offers(kubelet, 1, 1, other)
    for toy, mark in ((plugin, "1"), (second, "2")):
        toy.answer = lambda ids, mark=mark: answer(mark)
    one = Pod("pod", (Container({TOY: 1, other: 1}),))
    await kubelet.admit(one)
    options = await kubelet.run_options(one.uid, "main")
    assert options.env.keys() == {"SAME", "ENV1", "ENV2"}
    assert options.annotations.keys() == {"note1", "note2"}
    assert set(options.devices) == {("/dev/1", "/dev/toy1", "rw"), ("/dev/2", "/dev/toy2", "rw")}
    assert len(options.mounts) == 1
    assert set(options.cdi_devices) == {"v.com/c=same", "v.com/c=1", "v.com/c=2"}


def answer(mark: str) -> pb.AllocateResponse:
    one = pb.ContainerAllocateResponse(
        envs={"SAME": mark, f"ENV{mark}": mark},
        mounts=[pb.Mount(container_path="/same", host_path=f"/{mark}", read_only=True)],
        devices=[pb.DeviceSpec(container_path=f"/dev/toy{mark}", host_path=f"/dev/{mark}", permissions="rw")],
        annotations={f"note{mark}": mark},
        cdi_devices=[pb.CdiDevice(name="v.com/c=same"), pb.CdiDevice(name=f"v.com/c={mark}")],
    )
    return pb.AllocateResponse(container_responses=[one])


SPREAD = [device("a", "Healthy", 0), device("b", "Healthy", 0), device("c", "Healthy", 1), device("d")]


async def test_single_numa_node_refuses_what_no_node_holds(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a", policy="single-numa-node")
    plugin.publish(SPREAD)
    await offers(kubelet, 4, 4)
    text = "Resources cannot be allocated with Topology locality"
    assert await kubelet.admit(pod(3)) == Admission(False, "TopologyAffinityError", text)
    one = pod(2)
    assert (await kubelet.admit(one)).admitted
    assert (await kubelet.devices(one.uid))["c0"][TOY] == set("ab")


async def test_restricted_admits_a_spread_that_is_the_narrowest(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a", policy="restricted")
    plugin.publish(SPREAD)
    await offers(kubelet, 4, 4)
    assert (await kubelet.admit(pod(3))).admitted
    plugin.publish([*SPREAD, device("e", "Healthy", 0), device("f", "Healthy", 1)])
    await offers(kubelet, 6, 6)
    assert (await kubelet.admit(pod(2))).reason == "TopologyAffinityError"


async def test_best_effort_spreads_where_it_must(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a", policy="best-effort")
    plugin.publish(SPREAD)
    await offers(kubelet, 4, 4)
    assert (await kubelet.admit(pod(4))).admitted


async def test_the_preference_is_asked_among_aligned_devices_when_they_suffice(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a", PREFERS, policy="best-effort")
    plugin.publish([device(id, "Healthy", int(id > "c")) for id in "abcdef"])
    await offers(kubelet, 6, 6)
    await kubelet.admit(pod(2))
    available = set(plugin.of("GetPreferredAllocation")[0].container_requests[0].available_deviceIDs)
    assert available in (set("abc"), set("def"))


async def test_aligned_devices_are_taken_first_when_they_do_not_suffice(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a", PREFERS, policy="best-effort")
    plugin.publish(SPREAD)
    await offers(kubelet, 4, 4)
    await kubelet.admit(pod(4))
    request = plugin.of("GetPreferredAllocation")[0].container_requests[0]
    assert set(request.must_include_deviceIDs) == set("abc")
    assert set(request.available_deviceIDs) == set("abcd")


async def test_policies_refuse_machines_with_too_many_nodes(lab: Lab) -> None:
    with pytest.raises(ValueError, match="more than 8 NUMA Nodes"):
        await lab.kubelet(policy="restricted", numa_nodes=9)


async def test_the_journal_tells_what_was_allocated(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("a")
    plugin.fail["Allocate"] = refusal("no")
    await kubelet.admit(pod(1))
    plugin.fail.clear()
    await kubelet.admit(pod(1))
    refused, given = kubelet.journal.allocations
    assert (refused.env, refused.error) == (None, "rpc error: code = InvalidArgument desc = no")
    assert (given.resource, given.ids, given.env) == (TOY, ("a",), {"DEVICES": "a"})
    await until(kubelet, lambda k: len(k.journal.allocations) == 2)
