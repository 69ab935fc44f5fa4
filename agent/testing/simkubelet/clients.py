"""The connected plugins. What a second registration does to the first depends on the release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from agent.kubelet.pb.deviceplugin.v1beta1 import DevicePluginOptions, ListAndWatchResponse

from .devices import Endpoint
from .grpc_errors import RpcError
from .journal import Journal
from .manager import Manager, Settings
from .plugin_client import DialError, Plugin
from .tasks import Tasks


class RegistrationError(Exception):
    """Raised when a plugin could not be connected; the text is the answer to its Register call."""


class Clients(ABC):
    """Connects plugins and reads their lists; a stream that ended is never opened again."""

    def __init__(self, settings: Settings, manager: Manager, journal: Journal, tasks: Tasks) -> None:
        self._settings = settings
        self._manager = manager
        self._journal = journal
        self._tasks = tasks
        self._opened: list[Plugin] = []

    @abstractmethod
    async def connect(self, resource: str, socket: Path, options: DevicePluginOptions | None) -> None:
        """Connect the plugin at this socket as the one that serves the resource.

        Raises:
            RegistrationError: The plugin does not answer, or answers with an error.
        """

    @abstractmethod
    def ended(self, plugin: Plugin) -> None:
        """The plugin's stream is over."""

    @abstractmethod
    def remove(self, resource: str, socket: Path) -> None:
        """The plugin watcher saw the socket go."""

    @abstractmethod
    def connected(self) -> Iterator[Plugin]: ...

    def stop(self) -> None:
        for plugin in list(self.connected()):
            plugin.close()
            self._manager.disconnected(plugin.resource)

    def close(self) -> None:
        """Close all plugins, also those that the kubelet no longer uses."""
        for plugin in self._opened:
            plugin.close()

    def newest(self, resource: str) -> Plugin:
        return next(plugin for plugin in reversed(self._opened) if plugin.resource == resource)

    def read(self, plugin: Plugin) -> None:
        self._tasks.start(self._read(plugin))

    def read_again(self, plugin: Plugin) -> None:
        """Open one more stream. Its end changes nothing."""
        self._tasks.start(self._lists(plugin))

    def _open(self, resource: str, socket: Path) -> Plugin:
        self._opened.append(Plugin(resource, socket, self._settings.limits.receive_limit))
        return self._opened[-1]

    async def _dial(self, plugin: Plugin) -> None:
        try:
            await plugin.dial(self._settings.limits.dial_timeout)
        except DialError as exc:
            raise RegistrationError(str(exc)) from exc

    async def _options(self, plugin: Plugin) -> DevicePluginOptions:
        try:
            return await plugin.options()
        except RpcError as exc:
            raise RegistrationError(f"failed to get device plugin options: {exc}") from exc

    async def _read(self, plugin: Plugin) -> None:
        await self._lists(plugin)
        self.ended(plugin)

    async def _lists(self, plugin: Plugin) -> None:
        self._journal.streams[plugin.resource] += 1
        error = ""
        try:
            async with aclosing(plugin.lists()) as lists:
                async for raw in lists:
                    devices = ListAndWatchResponse.parse(raw).devices
                    self._manager.received(plugin.resource, devices, len(raw))
        except RpcError as exc:
            error = str(exc)
        self._journal.stream_ended(plugin.resource, error)


class EndpointClients(Clients):
    """Up to 1.24: the newest endpoint serves, and an older one that ends takes only itself away."""

    async def connect(self, resource: str, socket: Path, options: DevicePluginOptions | None) -> None:
        plugin = self._open(resource, socket)
        await self._dial(plugin)
        # Only the plugin watcher, which sends no options, asks for them.
        self._manager.connected(plugin, await self._options(plugin) if options is None else options)
        self.read(plugin)

    def ended(self, plugin: Plugin) -> None:
        plugin.close()
        if self._manager.devices.endpoints[plugin.resource].plugin is plugin:
            self._manager.disconnected(plugin.resource)

    def remove(self, resource: str, socket: Path) -> None:
        endpoint = self._manager.devices.endpoints.get(resource)
        if endpoint is not None and endpoint.plugin is not None:
            endpoint.plugin.close()

    def connected(self) -> Iterator[Plugin]:
        endpoints = self._manager.devices.endpoints.values()
        return (one.plugin for one in endpoints if one.plugin is not None and one.stopped_at is None)


class ResourceClients(Clients):
    """1.25 to 1.36: one client per resource name, so the end of an old stream hits the new plugin."""

    def __init__(self, settings: Settings, manager: Manager, journal: Journal, tasks: Tasks) -> None:
        super().__init__(settings, manager, journal, tasks)
        self._clients: dict[str, Plugin] = {}

    async def connect(self, resource: str, socket: Path, options: DevicePluginOptions | None) -> None:
        plugin = self._clients[resource] = self._open(resource, socket)
        try:
            await self._dial(plugin)
            self._manager.connected(plugin, await self._options(plugin))
        except BaseException:
            self._clients.pop(resource, None)
            raise
        self.read(plugin)

    def ended(self, plugin: Plugin) -> None:
        self.remove(plugin.resource, plugin.socket)

    def remove(self, resource: str, socket: Path) -> None:
        client = self._clients.pop(resource, None)
        if client is not None:
            client.close()
            self._manager.disconnected(resource)

    def connected(self) -> Iterator[Plugin]:
        return iter(self._clients.values())


class SocketClients(Clients):
    """From 1.37: any number of sockets per resource; the devices suffer only when the last one goes."""

    def __init__(self, settings: Settings, manager: Manager, journal: Journal, tasks: Tasks) -> None:
        super().__init__(settings, manager, journal, tasks)
        self._clients: dict[tuple[str, Path], Plugin] = {}
        self._endpoints: dict[str, dict[Path, Endpoint]] = {}

    async def connect(self, resource: str, socket: Path, options: DevicePluginOptions | None) -> None:
        if (resource, socket) in self._clients:
            return  # silently: no dialling, no new stream
        plugin = self._clients[resource, socket] = self._open(resource, socket)
        try:
            await self._dial(plugin)
            self._join(plugin, await self._options(plugin))
        except BaseException:
            self._clients.pop((resource, socket), None)
            plugin.close()
            raise
        self.read(plugin)

    def _join(self, plugin: Plugin, options: DevicePluginOptions) -> None:
        siblings = self._endpoints.setdefault(plugin.resource, {})
        if plugin.socket in siblings:
            raise RegistrationError(f"device plugin already connected: {plugin.socket}")
        self._manager.connected(plugin, options)
        siblings[plugin.socket] = self._manager.devices.endpoints[plugin.resource]

    def ended(self, plugin: Plugin) -> None:
        self.remove(plugin.resource, plugin.socket)

    def remove(self, resource: str, socket: Path) -> None:
        client = self._clients.pop((resource, socket), None)
        if client is not None:
            client.close()
            self._leave(resource, socket)

    def _leave(self, resource: str, socket: Path) -> None:
        siblings = self._endpoints.get(resource, {})
        left = siblings.pop(socket, None)
        if left is None:
            return
        if not siblings:
            self._manager.disconnected(resource)
            return
        left.stopped_at = self._settings.clock()
        self._manager.devices.endpoints[resource] = next(iter(siblings.values()))
        self._journal.note()

    def connected(self) -> Iterator[Plugin]:
        return iter(self._clients.values())


def clients(settings: Settings, manager: Manager, journal: Journal, tasks: Tasks) -> Clients:
    if settings.release.per_socket:
        return SocketClients(settings, manager, journal, tasks)
    if settings.release.per_endpoint:
        return EndpointClients(settings, manager, journal, tasks)
    return ResourceClients(settings, manager, journal, tasks)
