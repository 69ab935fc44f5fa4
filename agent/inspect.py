"""Shows people what the running agent knows: tables, and the topology as a tree."""

from __future__ import annotations

import http.client
import io
import os
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agent.core.errors import AgentError
from agent.core.text import printable, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

_TIMEOUT = 10.0
#: Wide enough that a pipe gets one line per row.
_PIPE_WIDTH = 1000
_STYLES = {
    **dict.fromkeys(("healthy", "open", "registered", "done", "yes"), "green"),
    **dict.fromkeys(("unhealthy", "failed", "left-out", "refused", "no"), "red"),
    **dict.fromkeys(("unknown", "unavailable", "starting", "waiting", "registering", "intent"), "yellow"),
}


class CannotAsk(AgentError):
    """Raised when no running agent answers; the text names the socket and what would work."""

    def __init__(self, path: Path, why: str, remedy: str) -> None:
        super().__init__(f"no agent answers at {path}: {why}; {remedy}")


def fetch(path: Path, target: str = "/inspect", timeout: float = _TIMEOUT) -> bytes:
    """Ask the agent behind the admin socket.

    Raises:
        CannotAsk: Nobody answers, or not with what was asked for.
    """
    status, body = ask(path, "GET", target, timeout=timeout)
    if status != 200:
        told = shorten(body.decode("utf-8", "replace").strip(), 300)
        raise CannotAsk(path, f"{target} was answered {status}: {told}", "look at its log")
    return body


def ask(
    path: Path, method: str, target: str, body: bytes | None = None, timeout: float = _TIMEOUT
) -> tuple[int, bytes]:
    """Ask the agent behind the admin socket; the status and the body of its answer.

    Raises:
        CannotAsk: Nobody answers.
    """
    connection = _OverUnix(path, timeout)
    try:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except FileNotFoundError:
        remedy = "start it with `xpu-agent run`, or name its directory with --state-dir"
        raise CannotAsk(path, "there is no such socket", remedy) from None
    except ConnectionRefusedError:
        raise CannotAsk(path, "the agent that made it is gone", "start one with `xpu-agent run`") from None
    except PermissionError:
        raise CannotAsk(path, "it is not yours to ask", "ask as root, or as who runs it") from None
    except TimeoutError:
        raise CannotAsk(path, f"no answer within {timeout:g} s", "look at its log") from None
    except (OSError, http.client.HTTPException) as error:
        raise CannotAsk(
            path, shorten(str(error) or type(error).__name__), "is it the agent's socket?"
        ) from error
    finally:
        connection.close()


class _OverUnix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))


def show(document: Mapping[str, Any], stream: TextIO | None = None, now: float | None = None) -> None:
    """Print the document of /inspect: with colors on a terminal, plain elsewhere."""
    _print(render(document, time.time() if now is None else now), stream)


def table(title: str, rows: Sequence[Mapping[str, Any]], stream: TextIO | None = None) -> None:
    """Print rows, each key a column."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    _print([_table(title, keys, [[row.get(key) for key in keys] for row in rows])], stream)


def as_text(document: Mapping[str, Any], now: float, width: int = _PIPE_WIDTH) -> str:
    """The document as plain text."""
    return _plain(render(document, now), width)


def render(document: Mapping[str, Any], now: float) -> list[RenderableType]:
    """Everything worth looking at, in the order in which one looks."""
    allocations = [it for it in _rows(document, "allocations") if it.get("state") != "released"]
    parts: list[RenderableType] = [_heading(document)]
    parts += [_text(f"! {trouble}", "yellow") for trouble in _troubles(document)]
    if error := _part(document, "apiServer").get("error"):
        parts.append(_text(f"the API server tells nothing new, and nothing waits for it: {error}", "yellow"))
    columns = ["vendor", "state", "memory", "restarts", "breaker", "reason"]
    parts.append(_table("vendors", columns, _vendors(document)))
    columns = ["vendor", "index", "uuid", "model", "memory", "numa", "health", "reason", "since"]
    parts.append(_table("devices", columns, _devices(document, now)))
    columns = ["resource", "sharing", "capacity", "allocatable", "allocated", "session", "reason"]
    parts.append(_table("resources", columns, _resources(document)))
    columns = ["resource", "devices", "pod", "container", "state", "since", "allocation"]
    parts.append(_table("allocations", columns, [_allocation(it, now) for it in allocations]))
    if _rows(document, "devices"):
        parts.append(_topology(_rows(document, "devices")))
    return parts


def _heading(document: Mapping[str, Any]) -> Text:
    ready = "ready" if document.get("ready") else "not ready"
    standby = document.get("standby")
    state = f"standby: {standby}" if standby else ready
    config = _part(document, "config").get("source", "")
    told = f"node {document.get('node', '?')}, xpu-agent {document.get('version', '?')}, {state}"
    return _text(f"{told}, config {config}" if config else told, "bold")


def _troubles(document: Mapping[str, Any]) -> Iterator[str]:
    troubles = [str(trouble) for trouble in document.get("troubles") or ()]
    errors = ((part, _part(document, part).get("error")) for part in ("config", "checkpoint"))
    unread = _part(_part(document, "evidence"), "errors").items()
    # A config that is awaited is a trouble already.
    told = (f"{part}: {error}" for part, error in (*errors, *unread) if error)
    yield from dict.fromkeys([*troubles, *told])


def _vendors(document: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            *(it.get("name"), it.get("state"), _memory(it.get("memoryBytes"))),
            *(it.get("restarts"), it.get("breaker"), it.get("reason")),
        ]
        for it in _rows(document, "vendors")
    ]


def _devices(document: Mapping[str, Any], now: float) -> list[list[Any]]:
    rows = []
    for it in _rows(document, "devices"):
        health = _part(it, "health")
        reason = "; ".join(word for word in (reason_of(it), cordon_of(it)) if word)
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
    health = _part(device, "health")
    return ": ".join(str(word) for word in (health.get("reason"), health.get("message")) if word)


def cordon_of(device: Mapping[str, Any]) -> str:
    """Who has it given to nobody new, and why."""
    cordon = _part(device, "cordon")
    told = ": ".join(str(word) for word in (cordon.get("author"), cordon.get("reason")) if word)
    return f"cordoned by {told}" if cordon else ""


def _place(it: Mapping[str, Any]) -> Any:
    """The card's index; of a slice with its number there."""
    return it.get("index") if it.get("slice") is None else f"{it.get('index')}:{it['slice']}"


def _resources(document: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for it in _rows(document, "resources"):
        shared = it.get("sharing") == "replicas" and it.get("replicas")
        sharing = f"replicas x{it['replicas']}" if shared else it.get("sharing")
        counts = [it.get("capacity"), it.get("allocatable"), it.get("allocated")]
        session = f"{it.get('session')} (retired)" if it.get("retired") else it.get("session")
        reason = it.get("sessionReason") or it.get("foreign")
        rows.append([it.get("name"), sharing, *counts, session, reason])
    return rows


def _allocation(it: Mapping[str, Any], now: float) -> list[Any]:
    owner = _part(it, "owner")
    known = owner.get("pod") or owner.get("uid")
    pod = "/".join(str(part) for part in (owner.get("namespace"), known) if part)
    devices = ", ".join(str(device) for device in it.get("devices") or ())
    state = ": ".join(str(word) for word in (it.get("state"), it.get("reason")) if word)
    since = age(it.get("since"), now)
    return [it.get("resource"), devices, pod or None, owner.get("container"), state, since, it.get("id")]


def _topology(devices: Sequence[Mapping[str, Any]]) -> Tree:
    """NUMA nodes, their devices, and how each reaches the others."""
    from rich.tree import Tree

    names = {it.get("uuid"): f"{it.get('vendor')} {_place(it)}" for it in devices}
    numa: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for it in devices:
        numa[it.get("numa")].append(it)
    tree = Tree(_text("topology", "bold"))
    for node in sorted(numa, key=lambda node: (node is None, node if isinstance(node, int) else 0)):
        branch = tree.add(_text("NUMA node unknown" if node is None else f"NUMA node {node}"))
        for it in numa[node]:
            leaf = branch.add(_text(" ".join(_named(it, names))))
            for line in _links(it, names):
                leaf.add(_text(line))
    return tree


def _named(it: Mapping[str, Any], names: Mapping[Any, str]) -> Iterator[str]:
    yield names[it.get("uuid")]
    yield from (str(it[key]) for key in ("uuid", "pci") if it.get(key))
    state = _part(it, "health").get("state")
    if state != "healthy":
        yield f"({state})"


def _links(it: Mapping[str, Any], names: Mapping[Any, str]) -> Iterator[str]:
    """Direct lanes one by one; the rest by distance."""
    links = _rows(it, "links")
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


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(title=_text(title, "bold"), title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in columns:
        numbers = column in ("index", "numa", "capacity", "allocatable", "allocated", "memory")
        made.add_column(_text(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    if not rows:
        made.add_row(_text("none", "dim"))
    return made


def _cell(value: object) -> Text:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    text = "-" if value is None or value == "" else str(value)
    return _text(text, _STYLES.get(text, ""))


def _text(text: str, style: str = "") -> Text:
    """Words of strangers: Text reads no markup, and no control character is left in it."""
    from rich.text import Text

    return Text(printable(text), style=style)


def _rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [row for row in document.get(key) or () if isinstance(row, Mapping)]


def _part(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = document.get(key)
    return part if isinstance(part, Mapping) else {}


def _print(parts: Sequence[RenderableType], stream: TextIO | None) -> None:
    from rich.console import Console

    stream = stream or sys.stdout
    if not stream.isatty():
        encoding = stream.encoding or "utf-8"
        stream.write(_plain(parts, _PIPE_WIDTH).encode(encoding, "replace").decode(encoding))
        return
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    for part in parts:
        console.print(part)


def _plain(parts: Sequence[RenderableType], width: int) -> str:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, emoji=False, markup=False)
    for part in parts:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
