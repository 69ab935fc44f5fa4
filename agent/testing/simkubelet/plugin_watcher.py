"""The plugin watcher: asks each socket that appears in plugins_registry for its plugin and registers it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio

from .clients import Clients, RegistrationError
from .grpc_errors import RpcError
from .journal import Journal
from .manager import Settings
from .plugin_registration import PluginInfo, Registrar
from .register_call import VERSION
from .resource_names import is_extended_resource, quoted

FIRST_RETRY, RETRY_GROWTH = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """A socket file. A new file under the same name is a different value."""

    path: Path
    inode: int
    created_ns: int


@dataclass(slots=True)
class Backoff:
    pause: float
    until: float


class Watcher:
    """Reads the directory once per interval. The real watcher uses inotify and acts once per second."""

    def __init__(self, settings: Settings, clients: Clients, journal: Journal) -> None:
        self._settings = settings
        self._clients = clients
        self._journal = journal
        self._registered: dict[Found, tuple[str, Path]] = {}
        self._backoffs: dict[Found, Backoff] = {}

    @property
    def directory(self) -> Path:
        return self._settings.directory / "plugins_registry"

    async def run(self) -> None:
        while True:
            await self.once()
            await anyio.sleep(self._settings.limits.registry_interval)

    async def once(self) -> None:
        present = set(sockets(self.directory))
        for gone in self._registered.keys() - present:
            self._clients.remove(*self._registered.pop(gone))
        for found in sorted(present - self._registered.keys(), key=lambda one: one.path):
            await self._try(found)

    async def _try(self, found: Found) -> None:
        backoff = self._backoffs.get(found)
        if backoff is not None and anyio.current_time() < backoff.until:
            return
        if await self._register(found):
            self._backoffs.pop(found, None)
            return
        pause = FIRST_RETRY if backoff is None else backoff.pause * RETRY_GROWTH
        self._backoffs[found] = Backoff(pause, anyio.current_time() + pause)

    async def _register(self, found: Found) -> bool:
        registrar = Registrar(found.path, self._settings.limits.receive_limit)
        try:
            info = await registrar.info()
            error = _objection(info, found.path) or await self._connect(info, found)
            await registrar.notify(error)
        except RpcError:
            if found in self._registered:
                self._clients.remove(*self._registered.pop(found))
            return False
        finally:
            registrar.close()
        return not error

    async def _connect(self, info: PluginInfo, found: Found) -> str:
        endpoint = Path(info.endpoint) if info.endpoint else found.path
        try:
            await self._clients.connect(info.name, endpoint, None)
        except RegistrationError as exc:
            return f"RegisterPlugin error -- plugin registration failed with err: {exc}"
        self._registered[found] = (info.name, endpoint)
        self._journal.registrations[info.name] += 1
        self._journal.note()
        return ""


def _objection(info: PluginInfo, path: Path) -> str:
    if info.type != "DevicePlugin":
        return f"RegisterPlugin error -- no handler registered for plugin type: {info.type} at socket {path}"
    problem = ""
    if VERSION not in info.supported_versions:
        versions = " ".join(info.supported_versions)
        problem = f"manager version, {VERSION}, is not among plugin supported versions [{versions}]"
    elif not is_extended_resource(info.name):
        problem = f"invalid name of device plugin socket: the ResourceName {quoted(info.name)} is invalid"
    return problem and f"RegisterPlugin error -- plugin validation failed with err: {problem}"


def sockets(directory: Path) -> Iterator[Found]:
    """Every socket below the directory with a name that does not start with a dot."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and (found := _socket(path)) is not None:
                yield found


def _socket(path: Path) -> Found | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return Found(path, status.st_ino, status.st_ctime_ns)
