"""The plugin watcher: plugins that are found instead of calling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

from agent.testing.kubelet import SimKubelet
from agent.testing.simkubelet.plugin_registration import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)

from .conftest import Lab, offers, until
from .plugin import TOY, ClosingServer, ToyPlugin, devices

SERVICE = "/pluginregistration.Registration/"


class Announcer:
    """Serves a registration socket beside (or on) the plugin's own."""

    def __init__(self, info: PluginInfo, plugin: ToyPlugin | None = None) -> None:
        self.info = info
        self.statuses: asyncio.Queue[RegistrationStatus] = asyncio.Queue()
        self._plugin = plugin

    def __mapping__(self) -> dict[str, Handler]:
        unary = Cardinality.UNARY_UNARY
        ours = {
            f"{SERVICE}GetInfo": Handler(self._info, unary, InfoRequest, PluginInfo),
            f"{SERVICE}NotifyRegistrationStatus": Handler(
                self._notify, unary, RegistrationStatus, RegistrationStatusResponse
            ),
        }
        return {**ours, **(self._plugin.__mapping__() if self._plugin else {})}

    async def _info(self, stream: Stream[InfoRequest, PluginInfo]) -> None:
        await stream.recv_message()
        await stream.send_message(self.info)

    async def _notify(self, stream: Stream[RegistrationStatus, RegistrationStatusResponse]) -> None:
        status = await stream.recv_message()
        assert status is not None
        self.statuses.put_nowait(status)
        await stream.send_message(RegistrationStatusResponse())

    async def status(self) -> RegistrationStatus:
        with anyio.fail_after(30):
            return await self.statuses.get()


@asynccontextmanager
async def announced(announcer: Announcer, socket: Path) -> AsyncIterator[Announcer]:
    server = ClosingServer([announcer])
    await server.start(path=str(socket))
    try:
        yield announcer
    finally:
        await server.shutdown()


def info(**changes: object) -> PluginInfo:
    good = {"type": "DevicePlugin", "name": TOY, "supported_versions": ["v1beta1"]}
    return PluginInfo(**{**good, **changes})  # type: ignore[arg-type]


def toy(kubelet: SimKubelet) -> ToyPlugin:
    plugin = ToyPlugin(kubelet.plugin_dir)
    plugin.publish(devices("abc"))
    return plugin


async def test_a_socket_that_appears_is_registered_and_told(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    async with announced(Announcer(info(), toy(kubelet)), kubelet.registry_dir / "toy.sock") as one:
        assert (await one.status()).plugin_registered
        await offers(kubelet, 3, 3)


async def test_an_endpoint_elsewhere_is_dialled(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = await lab.plugin(kubelet)
    plugin.publish(devices("ab"))
    announcer = Announcer(info(endpoint=str(plugin.socket)))
    async with announced(announcer, kubelet.registry_dir / "toy.sock"):
        await offers(kubelet, 2, 2)


async def test_folders_are_searched_and_dotfiles_ignored(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    folder = kubelet.registry_dir / "sub"
    folder.mkdir()
    (kubelet.registry_dir / "file").write_text("no socket")
    hidden = Announcer(info(name="hidden.com/toy"), toy(kubelet))
    seen = Announcer(info(), toy(kubelet))
    async with announced(hidden, kubelet.registry_dir / ".hidden.sock"), announced(seen, folder / "t.sock"):
        await offers(kubelet, 3, 3)
        assert set(await kubelet.capacity()) == {TOY}


async def test_a_kubelet_that_starts_finds_the_sockets_that_are_there(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    plugin = toy(kubelet)
    async with announced(Announcer(info(), plugin), kubelet.registry_dir / "toy.sock"):
        await offers(kubelet, 3, 3)
        await kubelet.restart()
        await offers(kubelet, 3, 3)
        assert len(plugin.of("ListAndWatch")) == 2


async def test_a_socket_that_goes_takes_its_devices_down(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    socket = kubelet.registry_dir / "toy.sock"
    async with announced(Announcer(info(), toy(kubelet)), socket):
        await offers(kubelet, 3, 3)
        socket.unlink()
        await offers(kubelet, 3, 0)


async def test_a_stream_that_ends_is_revived_by_a_new_socket_only(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    socket = kubelet.registry_dir / "toy.sock"
    plugin = toy(kubelet)
    async with announced(Announcer(info(), plugin), socket):
        await offers(kubelet, 3, 3)
        plugin.end_streams()
        await offers(kubelet, 3, 0)
    socket.unlink(missing_ok=True)  # from 3.13 on, asyncio removes it
    async with announced(Announcer(info(), toy(kubelet)), socket):
        await offers(kubelet, 3, 3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"type": "Foo"}, "RegisterPlugin error -- no handler registered for plugin type: Foo at socket {}"),
        (
            {"name": "bad"},
            (
                "RegisterPlugin error -- plugin validation failed with err: invalid name of device plugin "
                'socket: the ResourceName "bad" is invalid'
            ),
        ),
        (
            {"supported_versions": ["v1"]},
            (
                "RegisterPlugin error -- plugin validation failed with err: manager version, v1beta1, "
                "is not among plugin supported versions [v1]"
            ),
        ),
        (
            {"endpoint": "/nowhere.sock"},
            (
                "RegisterPlugin error -- plugin registration failed with err: "
                "failed to dial device plugin: context deadline exceeded"
            ),
        ),
    ],
)
async def test_a_plugin_that_is_refused_is_told_why(lab: Lab, changes: dict[str, object], text: str) -> None:
    kubelet = await lab.kubelet(dial_timeout=0.2 if "endpoint" in changes else 30)
    socket = kubelet.registry_dir / "toy.sock"
    async with announced(Announcer(info(**changes), toy(kubelet)), socket) as one:
        status = await one.status()
        assert (status.plugin_registered, status.error) == (False, text.format(socket))


async def test_a_refused_plugin_is_tried_again_later(lab: Lab) -> None:
    kubelet = await lab.kubelet()
    async with announced(Announcer(info(type="Foo"), toy(kubelet)), kubelet.registry_dir / "t.sock") as one:
        await one.status()
        one.info = info()
        assert (await one.status()).plugin_registered
        await until(kubelet, lambda k: k.journal.registrations[TOY] == 1)
