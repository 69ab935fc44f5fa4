"""Asks the running agent for /inspect: on the admin socket, and on the port of its HTTP views."""

from __future__ import annotations

import http.client
from pathlib import Path

import anyio.to_thread
import msgspec

from agent.config import parse_address
from agent.core.errors import AgentError
from agent.http.admin_client import answer, fetch
from agent.http.inspect_document import InspectDocument, decode
from agent.http.usage import usage_document
from agent.http.usage.usage_document import UsageDocument
from agent.scheduler_api.node_checks import Observed

#: Seconds for an agent.
AGENT_PATIENCE = 5.0


async def inspected(path: Path) -> Observed[InspectDocument]:
    """What the agent behind this admin socket knows."""
    try:
        body = await anyio.to_thread.run_sync(fetch, path, "/inspect", AGENT_PATIENCE)
        return _document(body)
    except AgentError as exc:
        return Observed(why=str(exc))


async def use(path: Path) -> Observed[UsageDocument]:
    """What the agent behind this admin socket knows of the use of its cards."""
    try:
        body = await anyio.to_thread.run_sync(fetch, path, "/inspect/usage", AGENT_PATIENCE)
        return Observed(usage_document.decode(body))
    except (AgentError, msgspec.MsgspecError) as exc:
        return Observed(why=str(exc))


async def inspected_on_port(address: str) -> Observed[InspectDocument]:
    """What the agent at this address knows; at another address than loopback an agent does not say."""
    if not address:
        return Observed(why="the views are switched off")
    try:
        return _document(await anyio.to_thread.run_sync(_get, address))
    except (OSError, ValueError, http.client.HTTPException, AgentError) as exc:
        return Observed(why=f"{address}: {exc}")


def _get(address: str) -> bytes:
    place = parse_address(address)
    connection = http.client.HTTPConnection(place.host, place.port, timeout=AGENT_PATIENCE)
    return answer(connection, "GET", "/inspect")[1]


def _document(body: bytes) -> Observed[InspectDocument]:
    try:
        return Observed(decode(body))
    except msgspec.MsgspecError as exc:
        return Observed(why=f"another program than an agent answers: {exc}")
