"""Which path shows what, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from urllib.parse import parse_qsl

from agent.core.publishing.agent_status import AgentStatus
from agent.http import probes, tool_formats
from agent.http.answer import Answer, document, text
from agent.http.inspect_builder import inspect_document
from agent.http.inspect_document import to_builtins

Source = Callable[[], AgentStatus]


class Audience(Enum):
    """Who can ask: who may use the admin socket, this machine, or the network."""

    ADMIN = "admin"
    LOCAL = "local"
    NETWORK = "network"


#: For everybody: the probes of the kubelet and the scrape of Prometheus.
_OPEN: Mapping[str, Callable[[Source], Answer]] = {
    "/healthz": lambda _: probes.healthz(),
    "/readyz": lambda view: probes.readyz(view()),
    "/metrics": lambda view: _metrics(view()),
}

#: Names of pods and paths of devices stay on the machine.
_LOCAL: Mapping[str, Callable[[Source], Answer]] = {
    "/inspect": lambda view: document(to_builtins(inspect_document(view()))),
    "/version": lambda view: document({"version": view().version}),
}


def canonical(target: str) -> str:
    """The target without what makes no difference to the answer."""
    path = target.partition("?")[0]
    return path if path in _OPEN or path in _LOCAL else target


def answer(view: Source, reach: Audience, target: str) -> Answer:
    """What is shown at the target of a request: a path, and maybe a query."""
    path, _, query = target.partition("?")
    show = _OPEN.get(path) or (_LOCAL.get(path) if reach is not Audience.NETWORK else None)
    if show is not None:
        return show(view)
    now = view()
    format = tool_formats.asked(now, path)
    if format is not None and reach is not Audience.NETWORK:
        return tool_formats.shown(now, format, dict(parse_qsl(query)))
    if format is None and path.startswith(tool_formats.INSPECT) and reach is not Audience.NETWORK:
        return tool_formats.missing(now, path)
    if format is not None or path in _LOCAL:
        return text(404, f"{path} is served on loopback and on the admin socket only")
    shown = [*_OPEN, *((*_LOCAL, *tool_formats.paths(now)) if reach is not Audience.NETWORK else ())]
    return text(404, f"nothing is here; there is {', '.join(shown)}")


def _metrics(view: AgentStatus) -> Answer:
    # Tens of milliseconds, and memory, that an agent nobody scrapes does not need.
    from agent.http.metrics import metrics

    return metrics(view)
