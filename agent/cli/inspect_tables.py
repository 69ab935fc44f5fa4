"""Shows people what the running agent knows: tables, and the topology as a tree."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

from agent.core.errors import AgentError
from agent.daemon.scheduler_plugins import registered
from agent.host import terminal
from agent.http.admin_client import ask
from agent.scheduler_api import reporting
from agent.scheduler_api.document_parts import part_of, rows_of
from agent.vendor_api.text import shorten

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree

#: Pods that a resource names beside its kept IDs; `allocations` has all.
MANY_PODS = 5
#: Sentences on cards that are left out of a scheduler's report; --json has all.
MANY_CARDS = 5


class NoSuchFormat(AgentError):
    """Raised when the agent has no format of this name, or nothing to show in it."""


def in_format(socket: Path, name: str) -> str:
    """What the agent behind the admin socket shows in a format of a vendor's.

    Raises:
        CannotAsk: Nobody answers.
        NoSuchFormat: There is none of this name, or it has nothing to show.
    """
    status, body = ask(socket, "GET", f"/inspect/{quote(name, safe='')}")
    told = body.decode("utf-8", "replace")
    if status != 200:
        raise NoSuchFormat(shorten(told.strip(), 300))
    return told


def show(document: Mapping[str, Any], stream: TextIO | None = None, now: float | None = None) -> None:
    """Print the document of /inspect: with colors on a terminal, plain elsewhere."""
    terminal.show(render(document, time.time() if now is None else now), stream)


def as_text(document: Mapping[str, Any], now: float, width: int = terminal.PIPE_WIDTH) -> str:
    """The document as plain text."""
    return terminal.plain(render(document, now), width)


def render(document: Mapping[str, Any], now: float) -> list[RenderableType]:
    """Everything worth looking at, in the order in which one looks."""
    parts: list[RenderableType] = [_heading(document)]
    parts += [terminal.styled(f"! {trouble}", "yellow") for trouble in _troubles(document)]
    if error := part_of(document, "apiServer").get("error"):
        waits = any(it.get("placement") == "claim" for it in rows_of(document, "resources"))
        harm = "pods wait for a scheduler's choice that it tells" if waits else "nothing waits for it"
        parts.append(terminal.styled(f"the API server tells nothing new, and {harm}: {error}", "yellow"))
    parts += _reported(part_of(document, "report"))
    columns = ["vendor", "state", "memory", "restarts", "breaker", "reason"]
    parts.append(terminal.table("vendors", columns, _vendors(document)))
    columns = ["vendor", "index", "uuid", "model", "memory", "numa", "health", "reason", "since"]
    parts.append(terminal.table("devices", columns, _devices(document, now)))
    columns = ["resource", "sharing", "capacity", "allocatable", "allocated", "session", "reason"]
    parts.append(terminal.table("resources", columns, _resources(document)))
    columns = ["resource", "devices", "pod", "container", "state", "since", "allocation"]
    parts.append(terminal.table("allocations", columns, [_allocation(it, now) for it in _in_use(document)]))
    if promised := [_promise(it) for it in _in_use(document) if it.get("claim") or it.get("handed")]:
        columns = ["allocation", "promised to", "by", "cards", "share", "remark"]
        parts.append(terminal.table("what schedulers chose", columns, promised))
    if unknown := [[it.get("podUid"), it.get("resource")] for it in rows_of(document, "unknownCards")]:
        parts.append(terminal.table("pods with cards that are not here", ["pod uid", "resource"], unknown))
    if unheeded := [[_pod({"owner": it}), it.get("reason")] for it in rows_of(document, "unheeded")]:
        parts.append(terminal.table("choices of schedulers that are not heeded", ["pod", "reason"], unheeded))
    if rows_of(document, "devices"):
        parts.append(_topology(rows_of(document, "devices")))
    return parts


def _heading(document: Mapping[str, Any]) -> Text:
    ready = "ready" if document.get("ready") else "not ready"
    standby = document.get("standby")
    state = f"standby: {standby}" if standby else ready
    config = part_of(document, "config").get("source", "")
    told = f"node {document.get('node', '?')}, xpu-agent {document.get('version', '?')}, {state}"
    return terminal.styled(f"{told}, config {config}" if config else told, "bold")


def _troubles(document: Mapping[str, Any]) -> Iterator[str]:
    troubles = [str(trouble) for trouble in document.get("troubles") or ()]
    parts = ("config", "checkpoint", "log", "receipts", "locks", "report")
    errors = ((part, part_of(document, part).get("error")) for part in parts)
    unread = part_of(part_of(document, "evidence"), "errors").items()
    # A config that is awaited is a trouble already.
    told = (f"{part}: {error}" for part, error in (*errors, *unread) if error)
    yield from dict.fromkeys([*troubles, *told, *map(str, document.get("doubts") or ())])


def _reported(report: Mapping[str, Any]) -> Iterator[Text]:
    """The report of the cards to a scheduler, without a line where no scheduler waits for one."""
    reported_to = reporting(registered())
    if reported_to is None:
        return
    scheduler, mode, why = reported_to.scheduler, report.get("mode"), report.get("why")
    if mode in ("device", "feed"):
        cards = f"{report.get('cards')} cards of {report.get('vendor') or 'no vendor'}"
        yield terminal.styled(
            f"{scheduler} is told of {cards}, {report.get('healthy')} healthy, by {mode}: {why}"
        )
    elif mode == "none" and why not in reported_to.unconcerned:
        yield terminal.styled(f"{scheduler} is told of no card: {why}", "yellow")
    if report.get("overwritten") is True:
        program, kind = reported_to.program, reported_to.object.kind
        yield terminal.styled(f"! a {program} overwrote the {kind} that the agent had written", "yellow")
    left = report.get("leftOut")
    sentences = [str(it) for it in left] if isinstance(left, list) else []
    for it in sentences[:MANY_CARDS]:
        yield terminal.styled(f"! {it}", "yellow")
    if (more := len(sentences) - MANY_CARDS) > 0:
        yield terminal.styled(f"! and {more} more that {scheduler} is not told of", "yellow")


def _vendors(document: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            *(it.get("name"), it.get("state"), _memory(it.get("memoryBytes"))),
            *(it.get("restarts"), it.get("breaker"), it.get("reason")),
        ]
        for it in rows_of(document, "vendors")
    ]


def _devices(document: Mapping[str, Any], now: float) -> list[list[Any]]:
    rows = []
    for it in rows_of(document, "devices"):
        health = part_of(it, "health")
        reason = "; ".join(word for word in (reason_of(it), cordon_of(it), _foreign(it)) if word)
        rows.append(
            [
                *(it.get("vendor"), _place(it), it.get("uuid"), it.get("model")),
                *(_memory(it.get("memoryBytes")), it.get("numa")),
                *(health.get("state"), reason, age(health.get("since"), now)),
            ]
        )
    return rows


def reason_of(device: Mapping[str, Any]) -> str:
    """What its hardware has, in a few words."""
    health = part_of(device, "health")
    return ": ".join(str(word) for word in (health.get("reason"), health.get("message")) if word)


def cordon_of(device: Mapping[str, Any]) -> str:
    """Who has it given to nobody new, and why."""
    cordon = part_of(device, "cordon")
    told = ": ".join(str(word) for word in (cordon.get("author"), cordon.get("reason")) if word)
    return f"cordoned by {told}" if cordon else ""


def _foreign(device: Mapping[str, Any]) -> str:
    """How many slices of the card others made."""
    count = device.get("foreignSlices")
    return f"foreign slices: {count}" if isinstance(count, int) and count > 0 else ""


def _place(it: Mapping[str, Any]) -> Any:
    """The card's index; of a slice with its number there."""
    return it.get("index") if it.get("slice") is None else f"{it.get('index')}:{it['slice']}"


def _resources(document: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for it in rows_of(document, "resources"):
        shared = it.get("sharing") == "replicas" and it.get("replicas")
        sharing = f"replicas x{it['replicas']}" if shared else it.get("sharing")
        sharing = f"{sharing}, {it['unit']} GiB" if it.get("unit") else sharing
        counts = [it.get("capacity"), it.get("allocatable"), it.get("allocated")]
        session = f"{it.get('session')} (retired)" if it.get("retired") else it.get("session")
        waits = it.get("waits")
        awaited = waits if isinstance(waits, list) else ()
        told = (it.get("sessionReason") or it.get("foreign"), it.get("unitKept"))
        reasons = (*told, _kept(it, document), _in_other_mode(it), *awaited)
        rows.append([it.get("name"), sharing, *counts, session, "; ".join(str(it) for it in reasons if it)])
    return rows


def _kept(resource: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Why the resource lists IDs that the config does not make of its cards."""
    ids = frozenset(map(str, resource.get("kept") or ()))
    if not ids:
        return ""
    held = (it for it in _in_use(document) if it.get("resource") == resource.get("name"))
    pods = [_pod(it) or "one not known yet" for it in held if not ids.isdisjoint(it.get("ids") or ())]
    named = list(dict.fromkeys(pods))
    more = f" and {len(named) - MANY_PODS} more" if len(named) > MANY_PODS else ""
    whose = f"kept for pods of an earlier config ({', '.join(named[:MANY_PODS])}{more})"
    return f"IDs {whose}: {len(ids)}, listed until they are gone"


def _in_other_mode(resource: Mapping[str, Any]) -> str:
    """How many of its cards are other resources' for now."""
    modes = Counter(map(str, part_of(resource, "inOtherMode").values()))
    return ", ".join(f"cards given out as {name}: {count}" for name, count in sorted(modes.items()))


def _in_use(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [it for it in rows_of(document, "allocations") if it.get("state") != "released"]


def _allocation(it: Mapping[str, Any], now: float) -> list[Any]:
    pod, container = _pod(it), part_of(it, "owner").get("container")
    devices = ", ".join(str(device) for device in it.get("devices") or ())
    state = ": ".join(str(word) for word in (it.get("state"), it.get("reason")) if word)
    since = age(it.get("since"), now)
    return [it.get("resource"), devices, pod, container, state, since, it.get("id")]


def _promise(it: Mapping[str, Any]) -> list[Any]:
    """What a scheduler promised, and what of it was given otherwise."""
    claim, handed = part_of(it, "claim"), it.get("handed")
    pod = "/".join(str(word) for key in ("namespace", "pod", "container") if (word := claim.get(key)))
    devices = claim.get("devices")
    cards = ", ".join(str(card) for card in (devices if isinstance(devices, list) else ()))
    given = "" if handed is None else f"its container was given {_share(part_of(it, 'handed'))}"
    moved = "on another card than its IDs say" if it.get("diverged") else ""
    alone = "it asks no device plugin" if it.get("source") == "annotation" else ""
    words = (alone, moved, given, claim.get("remark"))
    share = _share(part_of(claim, "parameters")) if claim else ""
    return [
        it.get("id"),
        pod,
        claim.get("dialect"),
        cards,
        share,
        "; ".join(str(one) for one in words if one),
    ]


def _share(parameters: Mapping[str, Any]) -> str:
    """In the words of the claim, with bytes as people write them."""
    if not parameters:
        return "no limits"
    return ", ".join(f"{key}={_amount(key, it)}" for key, it in sorted(parameters.items()))


def _amount(key: str, text: Any) -> str:
    bytes_ = (
        key == "memory" and isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20
    )
    return (_memory(int(text)) if bytes_ else "") or str(text)


def _pod(allocation: Mapping[str, Any]) -> str:
    """Who has it; empty as long as nobody has said so."""
    owner = part_of(allocation, "owner")
    known = owner.get("pod") or owner.get("uid")
    return "/".join(str(part) for part in (owner.get("namespace"), known) if part)


def _topology(devices: Sequence[Mapping[str, Any]]) -> Tree:
    """NUMA nodes, their devices, and how each reaches the others."""
    from rich.tree import Tree

    names = {it.get("uuid"): f"{it.get('vendor')} {_place(it)}" for it in devices}
    numa: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for it in devices:
        numa[it.get("numa")].append(it)
    tree = Tree(terminal.styled("topology", "bold"))
    for node in sorted(numa, key=lambda node: (node is None, node if isinstance(node, int) else 0)):
        branch = tree.add(terminal.styled("NUMA node unknown" if node is None else f"NUMA node {node}"))
        for it in numa[node]:
            leaf = branch.add(terminal.styled(" ".join(_named(it, names))))
            for line in _links(it, names):
                leaf.add(terminal.styled(line))
    return tree


def _named(it: Mapping[str, Any], names: Mapping[Any, str]) -> Iterator[str]:
    yield names[it.get("uuid")]
    yield from (str(it[key]) for key in ("uuid", "pci") if it.get(key))
    state = part_of(it, "health").get("state")
    if state != "healthy":
        yield f"({state})"


def _links(it: Mapping[str, Any], names: Mapping[Any, str]) -> Iterator[str]:
    """Direct lanes one by one; the rest by distance."""
    links = rows_of(it, "links")
    for link in links:
        if link.get("lanes"):
            peer = names.get(link.get("peer"), link.get("peer"))
            yield f"{link['lanes']} lanes to {peer}, {link.get('distance')}"
    apart: dict[str, list[str]] = defaultdict(list)
    for link in links:
        if not link.get("lanes"):
            apart[str(link.get("distance"))].append(str(names.get(link.get("peer"), link.get("peer"))))
    for distance, peers in apart.items():
        yield f"{distance}: {', '.join(peers)}"


def age(since: object, now: float) -> str:
    """How long ago, in its largest two units at most: 45s, 12m, 3h20m, 5d."""
    if not isinstance(since, int | float) or since <= 0:
        return ""
    seconds = max(0, int(now - since))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 2:
        return f"{seconds}s"
    if hours < 2:
        return f"{minutes}m"
    return f"{hours}h{minutes % 60}m" if hours < 24 else f"{days}d" if days > 6 else f"{days}d{hours % 24}h"


def _memory(count: object) -> str:
    if not isinstance(count, int) or count <= 0:
        return ""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
