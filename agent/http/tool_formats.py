"""The cards and their pods in the formats of vendors' own tools: /inspect/NAME, and the tool's own path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.status_for_tools import formats, node_listing
from agent.http.answer import HttpAnswer, document, text
from agent.vendor_api.agent import Format, NotShown, Vendor
from agent.vendor_api.text import shorten

INSPECT = "/inspect/"


@dataclass(frozen=True, slots=True)
class FormatRequest:
    """A request for a format of a vendor. `node` is empty where the path names no node."""

    vendor: Vendor
    format: Format
    node: str = ""


def requested_format(status: AgentStatus, path: str) -> FormatRequest | None:
    """The format at the path; None where the path has no format."""
    for name, (vendor, format) in formats(status).items():
        if path in (f"{INSPECT}{name}", format.path):
            return FormatRequest(vendor, format)
        if format.path and path.startswith(f"{format.path}/"):
            return FormatRequest(vendor, format, path.removeprefix(f"{format.path}/"))
    return None


def format_answer(status: AgentStatus, request: FormatRequest, query: Mapping[str, str]) -> HttpAnswer:
    """The document of the format, or status 404 where the format has nothing to show."""
    try:
        return document(request.format.document(node_listing(status, request.vendor), request.node, query))
    except NotShown as nothing:
        return document(nothing.document, 404)


def no_such_format(status: AgentStatus, path: str) -> HttpAnswer:
    """Why there is no such format. An agent that stands by has no vendor in service, so no format."""
    name, known = unquote(path.removeprefix(INSPECT)), sorted(formats(status))
    if status.standby:
        return text(503, f"this agent stands by: {status.standby}")
    formats_here = f"there is {', '.join(known)}" if known else "there is none"
    return text(404, f"no vendor in service here has the format '{shorten(name, 60)}'; {formats_here}")


def format_paths(status: AgentStatus) -> list[str]:
    """The paths that have a format."""
    named = formats(status).items()
    return [path for name, (_, it) in named for path in (f"{INSPECT}{name}", it.path) if path]
