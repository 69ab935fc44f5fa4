"""What each path answers, and to which clients."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from importlib import import_module
from urllib.parse import parse_qsl, quote

import anyio.to_thread

from agent.core.publishing.agent_status import AgentStatus
from agent.http import probes, tool_formats
from agent.http.answer import HttpAnswer, document, text
from agent.http.inspect_builder import inspect_document
from agent.http.inspect_document import to_builtins
from agent.http.usage.usage_answer import USAGE, usage_answer, wanted_history

StatusSource = Callable[[], AgentStatus]
#: Adds the use of the cards, whose making takes longer than all the rest, to a status.
WithUse = Callable[[AgentStatus], AgentStatus]
#: What threads do before the use of the cards is shown; None where use is not sampled.
PrepareUse = Callable[[], Awaitable[object] | None]
#: The views that show use.
_OF_USE = frozenset({"/metrics", "/inspect", USAGE})
#: The modules that the first answer to a path needs: tens of milliseconds of work, and memory that an agent
#: without such clients saves.
_LOADED = {"/metrics": "agent.http.metrics"}
_LOADED_WITH_USE = {"/metrics": "agent.http.usage.series", USAGE: "agent.http.usage.document_builder"}


class Audience(Enum):
    """From where a request comes: the admin socket, this machine, or the network."""

    ADMIN = "admin"
    LOCAL = "local"
    NETWORK = "network"


#: For all clients: the probes of the kubelet and the scrape of Prometheus.
_FOR_NETWORK: Mapping[str, Callable[[StatusSource], HttpAnswer]] = {
    "/healthz": lambda _: probes.healthz(),
    "/readyz": lambda status: probes.readyz(status()),
    "/metrics": lambda status: _metrics(status()),
}

#: Names of pods and paths of devices are for this machine only.
_FOR_MACHINE: Mapping[str, Callable[[StatusSource], HttpAnswer]] = {
    "/inspect": lambda status: document(to_builtins(inspect_document(status()))),
    "/version": lambda status: document({"version": status().version}),
}


def canonical(target: str) -> str:
    """The target without a query that the path does not read."""
    path, _, query = target.partition("?")
    if path == USAGE:
        wanted = wanted_history(query)
        return f"{USAGE}?history={quote(wanted)}" if wanted else USAGE
    return path if path in _FOR_NETWORK or path in _FOR_MACHINE else target


def as_it_is(status: AgentStatus) -> AgentStatus:
    """The status of an agent that has the use in it, or none."""
    return status


def nothing() -> None:
    """The preparation of an agent that needs none."""


def preparation(target: str, prepare_use: PrepareUse = nothing) -> Awaitable[object] | None:
    """What to await before the target is answered, so that the loop is not held up; None for nothing."""
    path = target.partition("?")[0]
    use = prepare_use() if path in _OF_USE else None
    wanted = (_LOADED.get(path), _LOADED_WITH_USE.get(path) if use is not None else None)
    new = [name for name in wanted if name is not None and name not in sys.modules]
    return _prepared(use, new) if use is not None or new else None


async def _prepared(use: Awaitable[object] | None, modules: Iterable[str]) -> None:
    if use is not None:
        await use
    for name in modules:
        await anyio.to_thread.run_sync(import_module, name)


def answer(status: StatusSource, audience: Audience, target: str, with_use: WithUse = as_it_is) -> HttpAnswer:
    """The answer to a GET of the target: a path with an optional query."""
    path, _, query = target.partition("?")
    is_on_machine = audience is not Audience.NETWORK

    def shown() -> AgentStatus:
        return with_use(status()) if path in _OF_USE else status()

    view = _FOR_NETWORK.get(path) or (_FOR_MACHINE.get(path) if is_on_machine else None)
    if view is not None:
        return view(shown)
    if path == USAGE and is_on_machine:
        return usage_answer(shown(), query, is_admin=audience is Audience.ADMIN)
    now = status()
    format = tool_formats.requested_format(now, path)
    if format is not None and is_on_machine:
        return tool_formats.format_answer(now, format, dict(parse_qsl(query)))
    if format is None and path.startswith(tool_formats.INSPECT) and is_on_machine:
        return tool_formats.no_such_format(now, path)
    if format is not None or path in (*_FOR_MACHINE, USAGE):
        return text(404, f"{path} is served on loopback and on the admin socket only")
    on_machine = (*_FOR_MACHINE, USAGE, *tool_formats.format_paths(now)) if is_on_machine else ()
    return text(404, f"nothing is here; there is {', '.join((*_FOR_NETWORK, *on_machine))}")


def _metrics(status: AgentStatus) -> HttpAnswer:
    # Imported here: an agent without a scrape saves the memory. `preparation` has imported the module.
    from agent.http.metrics import metrics

    return metrics(status)
