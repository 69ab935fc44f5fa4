"""The tables of `top`: cards with bars of memory and utilization, and the containers on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.cli.inspect_cells import lasting, memory
from agent.cli.top_picture import Picture, ShownCard, ShownContainer
from agent.host import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

#: Columns of a screen below which bars and the models of cards are left out.
_NARROW = 90
#: Columns of a bar on a narrow pipe or terminal, and on a wide one.
_SHORT_BAR, _LONG_BAR = 10, 20
#: A container that used its card within so many seconds is not called idle.
_A_WHILE = 60
#: Names of processes that a row has.
_PROGRAMS = 3


def render(
    picture: Picture, width: int, sort: str = "card", blocks: tuple[str, str] = ("█", "░")
) -> list[RenderableType]:
    """The picture for so many columns. `blocks` are the full and the empty part of a bar."""
    parts: list[RenderableType] = [_heading(picture)]
    parts += [terminal.styled(f"! {remark}", "yellow") for remark in picture.remarks]
    return [*parts, _cards(picture, width, blocks), _containers(picture, width, sort)]


def _heading(picture: Picture) -> Text:
    document, usage = picture.document, picture.usage
    words = [f"node {document.node or '?'}, xpu-agent {document.version or '?'}"]
    if usage is not None:
        known = ((vendor.vendor, vendor.age_seconds) for vendor in usage.sampling)
        ages = (f"{name} {seconds:.0f}s ago" for name, seconds in known if seconds is not None)
        words += [f"sampled every {usage.interval_seconds:g} s", *ages]
    return terminal.styled(", ".join(words), "bold")


def _cards(picture: Picture, width: int, blocks: tuple[str, str]) -> Table:
    is_wide = width >= _NARROW
    columns = ["card", "model", "memory", "utilization", "temp", "power", "health"]
    rows = [[*_card(card, width, blocks)] for card in picture.cards]
    if not is_wide:
        columns.remove("model")
        rows = [[first, *rest] for first, _, *rest in rows]
    return _table("cards", columns, rows)


def _card(card: ShownCard, width: int, blocks: tuple[str, str]) -> Iterator[Text]:
    device, use = card.device, card.use
    yield terminal.styled(card.place)
    yield terminal.styled(device.model or "-")
    total = (use.memory_total_bytes if use else None) or device.memory_bytes
    taken = use.memory_used_bytes if use else None
    part = taken / total if taken is not None and total else None
    amount = memory(total) if taken is None else _of(taken, total)
    yield _bar(part, amount, width, blocks)
    busy = use.utilization if use else None
    yield _bar(busy, "-" if busy is None else f"{busy:.0%}", width, blocks)
    temperature, power = (use.temperature_celsius, use.power_watts) if use else (None, None)
    yield terminal.styled("-" if temperature is None else f"{temperature:.0f}C")
    yield terminal.styled("-" if power is None else f"{power:.0f}W")
    state = "cordoned" if device.cordon else device.health.state
    yield terminal.styled(
        state or "-", "green" if state == "healthy" else "red" if state == "unhealthy" else "yellow"
    )


def _containers(picture: Picture, width: int, sort: str) -> Table:
    columns = ["card", "pod", "container", "memory", "utilization", "idle", "processes"]
    rows = [[*_container(it)] for it in picture.containers(sort)]
    if width < _NARROW:
        columns.remove("container")
        rows = [[*row[:2], *row[3:]] for row in rows]
    return _table("containers", columns, rows)


def _container(shown: ShownContainer) -> Iterator[Text]:
    style = "" if shown.is_container else "dim"
    yield terminal.styled(shown.card, style)
    yield terminal.styled(shown.name, style)
    yield terminal.styled(shown.container or "-", style)
    limit, taken = shown.memory_limit, shown.memory
    is_over = taken is not None and limit is not None and taken > limit
    yield terminal.styled("-" if taken is None else _of(taken, limit), "red" if is_over else style)
    busy = "-" if shown.utilization is None else f"{shown.utilization:.0%}"
    granted = f" of {shown.compute_limit:.0%}" if shown.compute_limit is not None else ""
    yield terminal.styled(f"{busy}{granted}", style)
    is_idle = shown.idle is not None and shown.idle > _A_WHILE
    yield terminal.styled(lasting(shown.idle or 0) if is_idle else "-", "yellow" if is_idle else style)
    yield terminal.styled(_processes(shown), style)


def _processes(shown: ShownContainer) -> str:
    if shown.processes is None:
        return "-"
    names = [*shown.programs[:_PROGRAMS], *(["..."] if len(shown.programs) > _PROGRAMS else [])]
    return f"{shown.processes} {', '.join(names)}" if names else str(shown.processes)


def _of(taken: int, total: int | None) -> str:
    return f"{memory(taken) or '0 MiB'} / {memory(total)}" if total else memory(taken) or "0 MiB"


def _bar(part: float | None, text: str, width: int, blocks: tuple[str, str]) -> Text:
    """The text with a bar before it, where there is room for one and the part is known."""
    if part is None or width < _NARROW:
        return terminal.styled(text)
    length = _LONG_BAR if width >= 2 * _NARROW or width >= 140 else _SHORT_BAR
    share = min(1.0, max(0.0, part))
    full = round(share * length)
    color = "red" if share >= 0.9 else "yellow" if share >= 0.6 else "green"
    bar = terminal.styled(blocks[0] * full, color)
    bar.append(blocks[1] * (length - full), style="dim")
    bar.append(f" {text}")
    return bar


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(
        title=terminal.styled(title, "bold"),
        title_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1),
    )
    for column in columns:
        made.add_column(terminal.styled(column), overflow="fold")
    for row in rows:
        made.add_row(*row)
    if not rows:
        made.add_row(terminal.styled("none", "dim"))
    return made
