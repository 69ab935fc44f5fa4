"""What is given out, as tools of others show it: `/inspect/NAME`, and where those tools have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from agent.core.publishing.agent_status import AgentStatus
from agent.core.publishing.status_for_tools import formats, picture
from agent.http.answer import Answer, document, text
from agent.vendor_api.agent import Format, NotShown, Vendor
from agent.vendor_api.text import shorten

INSPECT = "/inspect/"


@dataclass(frozen=True, slots=True)
class FormatRequest:
    """Whose format is asked for, and of which node; empty where none is named."""

    vendor: Vendor
    format: Format
    node: str = ""


def asked(view: AgentStatus, path: str) -> FormatRequest | None:
    """The format that is at the path; None where none is."""
    for name, (vendor, it) in formats(view).items():
        if path in (f"{INSPECT}{name}", it.path):
            return FormatRequest(vendor, it)
        if it.path and path.startswith(f"{it.path}/"):
            return FormatRequest(vendor, it, path.removeprefix(f"{it.path}/"))
    return None


def shown(view: AgentStatus, it: FormatRequest, query: Mapping[str, str]) -> Answer:
    """What the format makes of the view, or that it has nothing."""
    try:
        return document(it.format.document(picture(view, it.vendor), it.node, query))
    except NotShown as none:
        return document(none.document, 404)


def missing(view: AgentStatus, path: str) -> Answer:
    """Which there are; an agent that stands by has no vendor."""
    name, known = unquote(path.removeprefix(INSPECT)), sorted(formats(view))
    if view.standby:
        return text(503, f"this agent stands by: {view.standby}")
    there = f"there is {', '.join(known)}" if known else "there is none"
    return text(404, f"no vendor in service here has the format '{shorten(name, 60)}'; {there}")


def paths(view: AgentStatus) -> list[str]:
    """Where there is one."""
    return [path for name, (_, it) in formats(view).items() for path in (f"{INSPECT}{name}", it.path) if path]
