"""One life of the kubelet, from its start to its end. Pods and checkpoint outlast a life."""

from __future__ import annotations

import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from . import checkpoint_bytes
from .clients import clients
from .grpc_server import UnixServer
from .journal import Journal
from .known_pods import Pods
from .manager import Manager, Settings
from .plugin_watcher import Watcher
from .pod_resources_server import PodResources
from .register_call import RegisterFaults, Registration
from .release import Release
from .tasks import Tasks


class Life:
    def __init__(
        self,
        settings: Settings,
        pods: Pods,
        journal: Journal,
        rng: random.Random,
        faults: RegisterFaults,
        pod_resources_delay: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._tasks = Tasks()
        self.manager = Manager(settings, pods, journal, rng)
        self.clients = clients(settings, self.manager, journal, self._tasks)
        registration = Registration(settings, self.clients, journal, self._tasks, faults)
        self._registration = UnixServer(registration.methods())
        served = PodResources(settings, self.manager, pods, pod_resources_delay)
        self._pod_resources = UnixServer(served.methods())
        self._watcher = Watcher(settings, self.clients, journal)

    @property
    def _sockets(self) -> tuple[Path, Path]:
        return (
            self._settings.plugin_dir / "kubelet.sock",
            self._settings.directory / "pod-resources/kubelet.sock",
        )

    async def start(self) -> None:
        plugins, pod_resources = self._sockets
        for folder in (plugins.parent, pod_resources.parent, self._watcher.directory):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        wipe(plugins.parent, self._settings.release)
        if self._settings.release.leaves_deprecation_file:
            (plugins.parent / "DEPRECATION").touch()
        await self._registration.listen(plugins)
        pod_resources.unlink(missing_ok=True)
        await self._pod_resources.listen(pod_resources)
        self._tasks.start(self._watcher.run())

    async def stop(self) -> None:
        """End in order: disconnect the plugins and remove the kubelet's own sockets."""
        self.clients.stop()
        await self.kill()
        for path in self._sockets:
            path.unlink(missing_ok=True)

    async def kill(self) -> None:
        """End as if killed: connections break, every socket file stays."""
        await self._registration.shutdown()
        await self._pod_resources.shutdown()
        self.clients.close()
        await self._tasks.close()


def wipe(directory: Path, release: Release) -> None:
    """Clear the plugin directory as a kubelet does at its start."""
    for path in directory.iterdir():
        if path.name != checkpoint_bytes.FILE and _wiped(path, release):
            path.unlink(missing_ok=True)  # its plugin may be quicker


def _wiped(path: Path, release: Release) -> bool:
    try:
        if release.wipes_files:
            return not stat.S_ISDIR(path.lstat().st_mode)
        # Follows links, as the kubelet's os.Stat does; one that leads nowhere stays.
        return path.is_socket()
    except OSError:
        return False


def remove_directory(directory: Path) -> None:
    while directory.exists():  # a plugin may be tidying up in it
        shutil.rmtree(directory, ignore_errors=True)
