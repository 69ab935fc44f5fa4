"""What each path answers, and to which clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from urllib.parse import parse_qsl, quote

from agent.core.publishing.agent_status import AgentStatus
from agent.http import probes, tool_formats
from agent.http.answer import HttpAnswer, document, text
from agent.http.inspect_builder import inspect_document
from agent.http.inspect_document import to_builtins
from agent.http.usage.usage_answer import USAGE, usage_answer, wanted_history

StatusSource = Callable[[], AgentStatus]
#: Adds the use of the cards, whose making takes longer than all the rest, to a status.
WithUse = Callable[[AgentStatus], AgentStatus]
#: The views that show use.
_OF_USE = frozenset({"/metrics", "/inspect", USAGE})


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
    # Imported here: an agent without a scrape saves the memory and tens of milliseconds.
    from agent.http.metrics import metrics

    return metrics(status)
