"""The Register call: its checks, when the plugin is dialled, and when the plugin gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from grpclib.const import Handler

from agent.kubelet.pb.deviceplugin.v1beta1 import DevicePluginOptions, Empty, RegisterRequest

from .clients import Clients, RegistrationError
from .grpc_server import unary
from .journal import Journal
from .manager import Settings
from .resource_names import is_extended_resource, quoted
from .tasks import Tasks

VERSION = "v1beta1"


@dataclass(slots=True)
class RegisterFaults:
    """Faults of Register that tests set; they outlast restarts."""

    answers: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str | None = None

    def __post_init__(self) -> None:
        self.answers.set()


class Registration:
    def __init__(
        self, settings: Settings, clients: Clients, journal: Journal, tasks: Tasks, faults: RegisterFaults
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._journal = journal
        self._tasks = tasks
        self._faults = faults

    def methods(self) -> Mapping[str, Handler]:
        return {"/v1beta1.Registration/Register": unary(RegisterRequest, Empty, self.register)}

    async def register(self, request: RegisterRequest) -> Empty:
        self._journal.register_requests.append(request)
        self._journal.note()
        await self._faults.answers.wait()
        if self._faults.refusal is not None:
            raise RegistrationError(self._faults.refusal)
        _check(request)
        await self._connect(request)
        return Empty()

    async def _connect(self, request: RegisterRequest) -> None:
        release = self._settings.release
        if release.dials_within_register:
            await self._dial(request)
            return
        attempt = self._tasks.start(self._attempt(request))
        if release.per_endpoint:
            return  # these releases answer "OK" before they dial
        error = await asyncio.shield(attempt)
        if error is not None:
            raise error

    async def _attempt(self, request: RegisterRequest) -> RegistrationError | None:
        try:
            await self._dial(request)
        except RegistrationError as exc:
            return exc
        return None

    async def _dial(self, request: RegisterRequest) -> None:
        socket = self._settings.plugin_dir / request.endpoint
        options = request.options or DevicePluginOptions()
        await self._clients.connect(request.resource_name, socket, options)
        self._journal.registrations[request.resource_name] += 1
        self._journal.note()


def _check(request: RegisterRequest) -> None:
    if request.version != VERSION:
        raise RegistrationError(
            f"requested API version {quoted(request.version)} is not supported by kubelet. "
            f'Supported version is ["{VERSION}"]'
        )
    if not is_extended_resource(request.resource_name):
        raise RegistrationError(f"the ResourceName {quoted(request.resource_name)} is invalid")
