"""Register as every release answers it, and what a second registration does to the first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from agent.kubelet.pb.deviceplugin import v1beta1 as pb
from agent.testing.node_kubelet import Capacity
from agent.testing.simkubelet.grpc_server import UnixServer, unary

from .conftest import Lab, dial_shortly, offers, pod, until
from .plugin import TOY, ToyPlugin, device, devices, refusal, register

LEGACY = ["1.25", "1.32", "1.36"]


async def refused(plugin: ToyPlugin, **changes: str) -> str:
    with pytest.raises(GRPCError) as caught:
        await plugin.register(**changes)
    assert caught.value.status is Status.UNKNOWN
    return caught.value.message or ""


async def test_a_wrong_version_is_refused_before_a_wrong_name(lab: Lab) -> None:
    plugin = await lab.plugin(await lab.kubelet())
    text = 'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'
    assert await refused(plugin, version="v1", resource="gpu") == text


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu",
        "kubernetes.io/gpu",
        "a.kubernetes.io/gpu",
        "requests.vendor.com/gpu",
        "Vendor.com/GPU",
        "vendor.com/a/b",
        f"vendor.com/{'x' * 64}",
    ],
)
async def test_a_name_that_is_no_extended_resource_is_refused(lab: Lab, name: str) -> None:
    plugin = await lab.plugin(await lab.kubelet())
    assert await refused(plugin, resource=name) == f'the ResourceName "{name}" is invalid'


@pytest.mark.parametrize("name", ["koordinator.sh/gpu", f"vendor.com/{'x' * 63}", "v.com/A_b.c-d"])
async def test_an_extended_resource_name_is_taken(lab: Lab, name: str) -> None:
    kubelet = await lab.kubelet()
    plugin = await lab.plugin(kubelet, resource=name)
    await plugin.register()
    await offers(kubelet, 0, 0, name)


@pytest.mark.parametrize("mode", [*LEGACY, "1.37"])
async def test_a_socket_nobody_serves_fails_the_registration(lab: Lab, mode: str) -> None:
    plugin = await lab.plugin(await lab.kubelet(mode=mode, dial_timeout=0.2))
    text = "failed to dial device plugin: context deadline exceeded"
    assert await refused(plugin, endpoint="nobody.sock") == text


async def test_a_listener_that_never_speaks_fails_the_registration(lab: Lab) -> None:
    kubelet = await lab.kubelet(dial_timeout=0.2)
    async with silent_server(kubelet.plugin_dir / "mute.sock"):
        request = pb.RegisterRequest(version="v1beta1", endpoint="mute.sock", resource_name=TOY)
        with pytest.raises(GRPCError, match="failed to dial device plugin: context deadline exceeded"):
            await register(kubelet.plugin_dir / "kubelet.sock", request)


async def test_a_socket_that_is_served_a_little_later_is_found(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = ToyPlugin(kubelet.plugin_dir, endpoint="late.sock")
    request = asyncio.create_task(plugin.register())
    await until(kubelet, lambda k: bool(k.journal.register_requests))
    await plugin.serve("late.sock")
    await request
    await plugin.close()


async def test_a_call_whose_caller_is_killed_prints_no_traceback(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when an agent dies in the middle of Register: its own socket is gone at the same moment."""
    begun, ended = anyio.Event(), anyio.Event()

    async def answer(request: pb.RegisterRequest) -> pb.Empty:
        begun.set()
        try:
            await anyio.sleep_forever()
            return pb.Empty()
        except asyncio.CancelledError as exc:
            raise RuntimeError("the plugin's connection is lost, too") from exc
        finally:
            ended.set()

    server = UnixServer({"/v1beta1.Registration/Register": unary(pb.RegisterRequest, pb.Empty, answer)})
    await server.listen(directory / "kubelet.sock")
    caller = asyncio.create_task(register(directory / "kubelet.sock", pb.RegisterRequest()))
    await begun.wait()
    caller.cancel()
    with anyio.fail_after(30):
        await ended.wait()
        await server.shutdown()

    assert [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING] == []


async def test_failing_options_fail_the_registration(lab: Lab) -> None:
    plugin = await lab.plugin(await lab.kubelet())
    plugin.fail["GetDevicePluginOptions"] = refusal("not now")
    text = "failed to get device plugin options: rpc error: code = InvalidArgument desc = not now"
    assert await refused(plugin) == text


@pytest.mark.parametrize("mode", [*LEGACY, "1.37"])
async def test_the_options_are_asked_for_before_the_reply_and_the_list_is_no_part_of_it(
    lab: Lab, mode: str
) -> None:
    kubelet = await lab.kubelet(mode=mode)
    plugin = await lab.plugin(kubelet)
    plugin.fail["ListAndWatch"] = refusal("not now")
    await plugin.register()
    assert plugin.calls[0][0] == "GetDevicePluginOptions"
    await until(kubelet, lambda k: bool(k.journal.stream_ends))


async def test_options_of_the_register_call_are_ignored(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = await lab.plugin(kubelet)
    plugin.publish(devices("a"))
    await plugin.register(options=pb.DevicePluginOptions(pre_start_required=True))
    await offers(kubelet, 1, 1)
    one = pod(1)
    await kubelet.admit(one)
    await kubelet.run_options(one.uid, "c0")
    assert not plugin.of("PreStartContainer")


@pytest.mark.parametrize("mode", ["1.20", "1.24"])
async def test_an_old_kubelet_takes_the_options_of_the_register_call_alone(lab: Lab, mode: str) -> None:
    kubelet = await lab.kubelet(mode=mode)
    plugin = await lab.plugin(kubelet)
    plugin.publish(devices("a"))
    await plugin.register(options=pb.DevicePluginOptions(pre_start_required=True))
    await offers(kubelet, 1, 1)
    one = pod(1)
    await kubelet.admit(one)
    await kubelet.run_options(one.uid, "c0")
    assert plugin.of("PreStartContainer")
    assert not plugin.of("GetDevicePluginOptions")


async def test_an_old_kubelet_says_ok_to_a_dead_socket(lab: Lab) -> None:
    kubelet = await lab.kubelet(mode="1.20")
    plugin = await lab.plugin(kubelet)
    await plugin.register(endpoint="nobody.sock")
    assert await kubelet.capacity() == {}


@pytest.mark.parametrize("mode", ["1.32", "1.34"])
async def test_a_register_call_that_was_given_up_is_carried_through_all_the_same(lab: Lab, mode: str) -> None:
    kubelet = await lab.kubelet(mode=mode)
    plugin = await lab.plugin(kubelet)
    await give_up_while_options_hang(plugin)
    await until(kubelet, lambda k: k.journal.lists[TOY] == 1)


@pytest.mark.parametrize("mode", ["1.35", "1.36"])
async def test_a_register_call_that_was_given_up_ends_the_dialling_from_1_35_on(lab: Lab, mode: str) -> None:
    kubelet = await lab.kubelet(mode=mode)
    plugin = await lab.plugin(kubelet)
    await give_up_while_options_hang(plugin)
    plugin.publish(devices("a"))
    await plugin.register()
    await offers(kubelet, 1, 1)
    assert kubelet.journal.registrations[TOY] == 1


async def give_up_while_options_hang(plugin: ToyPlugin) -> None:
    held = plugin.holds["GetDevicePluginOptions"] = asyncio.Event()
    registering = asyncio.create_task(plugin.register())
    await plugin.was_called("GetDevicePluginOptions")
    registering.cancel()
    await asyncio.wait([registering])
    await anyio.wait_all_tasks_blocked()
    held.set()


async def test_a_list_over_the_receive_limit_cuts_the_plugin_off(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc", receive_limit=1000)
    plugin.publish([device(f"{number:050d}") for number in range(20)])
    await offers(kubelet, 3, 0)
    size = len(bytes(pb.ListAndWatchResponse(devices=plugin.list)))
    text = f"grpc: received message larger than max ({size} vs. 1000)"
    assert kubelet.journal.stream_ends[TOY] == [f"rpc error: code = ResourceExhausted desc = {text}"]
    with anyio.fail_after(30):
        await plugin.cancelled.wait()


async def test_a_list_of_four_mebibytes_is_taken(lab: Lab) -> None:
    kubelet, plugin = await lab.pair("abc")
    plugin.publish([device("x" * 1_048_500 + str(number)) for number in range(4)])
    await offers(kubelet, 4, 4)
    assert 4_190_000 < kubelet.journal.list_bytes[TOY] < 4_194_304


async def test_a_stream_that_ended_is_never_opened_again(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = await lab.plugin(kubelet)
    plugin.fail["ListAndWatch"] = refusal("no list")
    await plugin.register()
    await until(kubelet, lambda k: bool(k.journal.stream_ends))
    await anyio.wait_all_tasks_blocked()
    assert len(plugin.of("ListAndWatch")) == 1
    assert kubelet.journal.stream_ends[TOY] == ["rpc error: code = InvalidArgument desc = no list"]


@pytest.mark.parametrize("mode", LEGACY)
async def test_two_plugins_of_a_resource_both_feed_it_and_the_newest_allocates(lab: Lab, mode: str) -> None:
    kubelet, old = await lab.pair("abc", mode=mode)
    new = await lab.plugin(kubelet)
    new.publish(devices("abcd"))
    await new.register()
    await offers(kubelet, 4, 4)
    old.publish(devices("ab"))
    await offers(kubelet, 2, 2)
    assert (await kubelet.admit(pod(1))).admitted
    assert not old.of("Allocate")
    assert new.of("Allocate")


@pytest.mark.parametrize("mode", LEGACY)
async def test_the_end_of_an_old_stream_takes_the_new_plugin_down(lab: Lab, mode: str) -> None:
    kubelet, old = await lab.pair("abc", mode=mode)
    new = await lab.plugin(kubelet)
    new.publish(devices("abc"))
    await new.register()
    await until(kubelet, lambda k: k.journal.lists[TOY] == 2)
    old.end_streams()
    await offers(kubelet, 3, 0)
    with anyio.fail_after(30):
        await new.cancelled.wait()


@pytest.mark.parametrize("mode", LEGACY)
async def test_after_a_failed_second_registration_nobody_notices_the_end_of_the_first(
    lab: Lab, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet, plugin = await lab.pair("abc", mode=mode)
    dial_shortly(monkeypatch)
    await refused(plugin, endpoint="nobody.sock")
    plugin.publish(devices("abcd"))
    await offers(kubelet, 4, 4)
    plugin.end_streams()
    await until(kubelet, lambda k: bool(k.journal.stream_ends))
    await anyio.wait_all_tasks_blocked()
    assert await kubelet.capacity() == {TOY: Capacity(4, 4)}
    assert (await kubelet.admit(pod(1))).admitted


@pytest.mark.parametrize("mode", ["1.20", "1.24"])
async def test_in_an_old_kubelet_an_old_stream_ends_alone(lab: Lab, mode: str) -> None:
    kubelet, old = await lab.pair("abc", mode=mode)
    new = await lab.plugin(kubelet)
    new.publish(devices("abcd"))
    await new.register()
    await offers(kubelet, 4, 4)
    old.end_streams()
    await until(kubelet, lambda k: bool(k.journal.stream_ends))
    await anyio.wait_all_tasks_blocked()
    assert await kubelet.capacity() == {TOY: Capacity(4, 4)}
    new.end_streams()
    await offers(kubelet, 4, 0)


async def test_from_1_37_on_the_survivor_of_two_sockets_serves(lab: Lab) -> None:
    kubelet, old = await lab.pair("abc", mode="1.37")
    new = await lab.plugin(kubelet)
    new.publish(devices("abc"))
    await new.register()
    await until(kubelet, lambda k: k.journal.lists[TOY] == 2)
    new.end_streams()
    await until(kubelet, lambda k: bool(k.journal.stream_ends))
    assert (await kubelet.admit(pod(1))).admitted
    assert old.of("Allocate")
    old.end_streams()
    await offers(kubelet, 3, 0)


async def test_from_1_37_on_a_socket_that_registers_twice_is_ignored(lab: Lab) -> None:
    _, plugin = await lab.pair("abc", mode="1.37")
    await plugin.register()
    await anyio.wait_all_tasks_blocked()
    assert len(plugin.of("ListAndWatch")) == 1
    assert len(plugin.of("GetDevicePluginOptions")) == 1


async def test_the_kubelet_introduces_itself_as_grpc_go(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    async with silent_server(kubelet.plugin_dir / "raw.sock", settings=True) as seen:
        request = pb.RegisterRequest(version="v1beta1", endpoint="raw.sock", resource_name=TOY)
        registering = asyncio.create_task(register(kubelet.plugin_dir / "kubelet.sock", request))
        with anyio.fail_after(30):
            headers = await seen
        registering.cancel()
    assert headers == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/v1beta1.DevicePlugin/GetDevicePluginOptions",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "user-agent": "grpc-go/1.79.3",
        "te": "trailers",
    }


@asynccontextmanager
async def silent_server(
    path: Path, *, settings: bool = False
) -> AsyncIterator[asyncio.Future[dict[str, str]]]:
    """Accepts, at most says its SETTINGS, and tells the headers of the first request."""
    seen: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    writers: list[asyncio.StreamWriter] = []
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        if settings:
            writer.write(connection.data_to_send())
        started = False
        while data := await reader.read(65536):
            if not started:
                started = True
                assert data.startswith(preface + b"\0\0\0\x04\0\0\0\0\0"), "SETTINGS are empty"
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived) and not seen.done():
                    seen.set_result({str(name): str(value) for name, value in event.headers})
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield seen
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()
        seen.cancel()
