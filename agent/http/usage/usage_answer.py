"""GET /inspect/usage: the use of cards, and with ?history= of each minute of the last 24 hours."""

from __future__ import annotations

from urllib.parse import parse_qsl

import msgspec

from agent.core.publishing.agent_status import AgentStatus
from agent.http.answer import JSON, HttpAnswer, document, text

USAGE = "/inspect/usage"
#: Where sampling is switched on. `top` says the same.
SWITCHED_OFF = (
    "the use of cards is not sampled: the config key usage.enabled switches sampling on, "
    "with the chart the value usage.enabled"
)
#: The value of `history` that stands for all containers.
_ALL = "1"


def wanted_history(query: str) -> str:
    """What the query says of history: all, or NAMESPACE/POD/CONTAINER; empty for none."""
    return dict(parse_qsl(query)).get("history", "")


def usage_answer(status: AgentStatus, query: str, *, is_admin: bool) -> HttpAnswer:
    """The document; 404 where use is not sampled, 400 for a history that names no container.

    `is_admin`: whether the operator of the node asks, on the admin socket. Only the operator sees processes,
    and all histories, which hold up the agent for tens of milliseconds.
    """
    if status.standby:
        return text(503, f"this agent stands by: {status.standby}")
    if status.usage is None:
        return text(404, SWITCHED_OFF)
    wanted = wanted_history(query)
    names = tuple(wanted.split("/"))
    if wanted not in ("", _ALL) and len(names) != 3:
        return text(400, f"history: {wanted!r} is neither {_ALL} nor NAMESPACE/POD/CONTAINER")
    if wanted == _ALL and not is_admin:
        return text(403, f"history={_ALL} is served on the admin socket only; here: NAMESPACE/POD/CONTAINER")
    # Imported here: nodes without sampling do not load what makes the document.
    from agent.http.usage.document_builder import usage_document

    history = (None if wanted == _ALL else names,) if wanted else ()
    made = usage_document(status, status.usage, with_processes=is_admin, history=history)
    try:
        # A quarter of the time of `document`: 64 histories of a day are 92,000 rows.
        return HttpAnswer(200, msgspec.json.encode(made) + b"\n", JSON)
    except UnicodeEncodeError:  # a half of a surrogate pair
        return document(msgspec.to_builtins(made))
