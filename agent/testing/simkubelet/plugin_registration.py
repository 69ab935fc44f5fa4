"""The messages and calls of `pluginregistration.Registration`, which a plugin serves and a kubelet calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import betterproto2
from grpclib.client import UnaryUnaryMethod

from .grpc_errors import as_grpc_go
from .grpc_transport import GoChannel

SERVICE = "/pluginregistration.Registration/"
GET_INFO_TIMEOUT, NOTIFY_TIMEOUT = 1.0, 5.0

Reply = TypeVar("Reply", bound=betterproto2.Message)


@dataclass(eq=False, repr=False)
class InfoRequest(betterproto2.Message):
    pass


@dataclass(eq=False, repr=False)
class PluginInfo(betterproto2.Message):
    type: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    name: str = betterproto2.field(2, betterproto2.TYPE_STRING)
    #: The absolute path of the plugin's socket; empty means the registration socket itself.
    endpoint: str = betterproto2.field(3, betterproto2.TYPE_STRING)
    supported_versions: list[str] = betterproto2.field(4, betterproto2.TYPE_STRING, repeated=True)  # noqa: RUF009


@dataclass(eq=False, repr=False)
class RegistrationStatus(betterproto2.Message):
    plugin_registered: bool = betterproto2.field(1, betterproto2.TYPE_BOOL)
    error: str = betterproto2.field(2, betterproto2.TYPE_STRING)


@dataclass(eq=False, repr=False)
class RegistrationStatusResponse(betterproto2.Message):
    pass


class Registrar:
    """A connection to a plugin's registration socket."""

    def __init__(self, socket: Path, receive_limit: int) -> None:
        self._socket = socket
        self._channel = GoChannel(socket, receive_limit)

    async def info(self) -> PluginInfo:
        return await self._call("GetInfo", InfoRequest(), PluginInfo, GET_INFO_TIMEOUT)

    async def notify(self, error: str) -> None:
        """Send the plugin the result; an empty error means that it is registered."""
        status = RegistrationStatus(plugin_registered=not error, error=error)
        await self._call("NotifyRegistrationStatus", status, RegistrationStatusResponse, NOTIFY_TIMEOUT)

    async def _call(self, name: str, request: Any, reply: type[Reply], timeout: float) -> Reply:
        method = UnaryUnaryMethod[Any, Reply](self._channel, SERVICE + name, type(request), reply)
        with as_grpc_go(self._socket):
            return await method(request, timeout=timeout)

    def close(self) -> None:
        self._channel.close()
